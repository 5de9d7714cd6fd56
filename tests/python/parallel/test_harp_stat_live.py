"""Two ranks talk over HARP; harp-stat reads what they count meanwhile, and what they leave."""

from __future__ import annotations

import contextlib
import io
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from faults import processes, wait_for_file
from grids import TWO_APART

import lightcc as hvd
from lightcc.harp.stat import cli, export, files, layout
from lightcc.testing import mark

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightcc.harp.stat.files import Process

pytestmark = pytest.mark.multiproc

ELEMENTS = 500_000
ROUNDS = 10
STAT_DOCS = Path(__file__).resolve().parents[3] / "docs/harp/stat.md"


def send_when_told(go: str, end: str) -> None:
    """Reduces once, more when the file `go` is there, and leaves when `end` is."""
    hvd.init()
    x = np.ones(ELEMENTS, np.float32)
    hvd.allreduce(x, op=hvd.Sum)
    hvd.barrier()
    mark("warm")
    wait_for_file(go)
    for _ in range(ROUNDS):
        hvd.allreduce(x, op=hvd.Sum)
    hvd.barrier()
    mark("sent")
    wait_for_file(end)
    hvd.barrier()
    hvd.shutdown()


def eventually(is_so: Callable[[], bool], what: str) -> None:
    """Asks again and again. The bound is against hanging."""
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def settled(folder: Path, pids: list[int]) -> list[Process]:
    """Returns the ranks' counters, once each has published twice without having sent between."""
    first: dict[int, tuple[int, int]] = {}  # What each had sent, and when it first said so.
    found: list[Process] = []

    def is_quiet() -> bool:
        nonlocal found
        by_pid = {one.pid: one for one in files.read_folder(folder).processes}
        if set(by_pid) != set(pids) or not all(by_pid[pid].engines for pid in pids):
            return False
        found = [by_pid[pid] for pid in pids]
        for one in found:
            now = (payload_sent(one), one.engines[0].written_ns)
            if one.pid not in first or first[one.pid][0] != now[0]:
                first[one.pid] = now
        # Each publishes at its own times: none may be asked to do so between two looks.
        return all(one.engines[0].written_ns > first[one.pid][1] for one in found)

    eventually(is_quiet, "the counters of both ranks")
    return found


def total(process: Process, name: str) -> int:
    values = [engine.values[name] for engine in process.engines]
    return sum(value for value in values if isinstance(value, int))


def payload_sent(process: Process) -> int:
    return total(process, "data_bytes_sent") - total(process, "data_bytes_retransmitted")


def harp_stat(*options: str) -> str:
    """Returns what the program writes."""
    with contextlib.redirect_stdout(io.StringIO()) as written:
        assert cli.main(options) == 0
    return written.getvalue()


def test_counters_are_documented_grow_by_what_is_sent_and_go_with_their_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "stat"
    folder.mkdir()
    go, end = tmp_path / "go", tmp_path / "end"
    env = {"LIGHT_NET": "harp", "HARP_STAT_DIR": str(folder)}
    with processes(TWO_APART, send_when_told, str(go), str(end), **env) as ranks:
        ranks.wait_mark("warm")
        before = settled(folder, ranks.pids)
        go.touch()
        ranks.wait_mark("sent")
        after = settled(folder, ranks.pids)
        sent = [payload_sent(b) - payload_sent(a) for a, b in zip(before, after, strict=True)]
        received = [
            total(b, name) - total(a, name)
            for name in ("bytes_copied", "bytes_taken")
            for a, b in zip(before, after, strict=True)
        ]
        placed = [received[0] + received[2], received[1] + received[3]]
        # Two ranks that reduce n bytes each send n to the other, and a little to agree on it.
        payload = ROUNDS * ELEMENTS * 4
        for rank in (0, 1):
            assert payload <= sent[rank] < 1.01 * payload, (rank, sent)
            assert placed[rank] == sent[1 - rank], (rank, sent, placed)
        check_what_is_shown(folder, ranks.pids, after)
        check_that_fields_are_documented(after[0])
        end.touch()
        for result in ranks.wait(60):
            assert result.ok, result.describe()
    assert list(folder.iterdir()) == []
    assert cli.main(["--dir", str(folder)]) == 1
    assert "no process publishes anything of HARP" in capsys.readouterr().err


def check_what_is_shown(folder: Path, pids: list[int], after: list[Process]) -> None:
    """Checks the program's outputs while the ranks run."""
    shown = json.loads(harp_stat("--dir", str(folder), "--json"))
    assert shown["problems"] == []
    by_pid: dict[int, Any] = {one["pid"]: one for one in shown["processes"]}
    for pid, process in zip(pids, after, strict=True):
        assert by_pid[pid]["state"] == "alive"
        sessions = [s for engine in by_pid[pid]["engines"] for s in engine["sessions_shown"]]
        assert sessions
        assert {one["state"] for one in sessions} == {"open"}
        assert sum(one["data_bytes_sent"] for one in sessions) == total(process, "data_bytes_sent")
        assert len(sessions[0]["paths_shown"]) == 8
    prometheus = export.as_prometheus(files.read_folder(folder))
    for pid in pids:
        assert f'harp_process_up{{pid="{pid}"}} 1\n' in prometheus
        assert re.search(rf'harp_session_data_bytes_sent_total{{pid="{pid}",', prometheus)
    alone = harp_stat("--dir", str(folder), "--pid", str(pids[1]))
    assert f"process {pids[1]}," in alone
    assert f"process {pids[0]}," not in alone


def check_that_fields_are_documented(process: Process) -> None:
    engine = process.engines[0]
    documented = set(re.findall(r"`(\w+)`", STAT_DOCS.read_text()))
    for record in (engine, engine.below[0], engine.below[0].below[0]):
        assert {field.name for field in record.fields} <= documented
        for field in record.fields:
            assert field.help, f"{field.name} says what it means"
            assert (field.unit == "ns") == field.name.endswith("_ns")
            assert field.kind != layout.COUNTER or not field.name.endswith("total")


def test_what_a_killed_process_leaves_is_said_to_be_dead(tmp_path: Path) -> None:
    folder, end = tmp_path / "stat", tmp_path / "end"
    folder.mkdir()
    env = {"LIGHT_NET": "harp", "HARP_STAT_DIR": str(folder)}
    with processes(TWO_APART, send_when_told, str(end), str(end), **env) as ranks:
        ranks.wait_mark("warm")
        settled(folder, ranks.pids)
        for rank in (0, 1):
            ranks.kill(rank)
        ranks.wait(60)
        pid = ranks.pids[0]
    assert len(list(folder.iterdir())) == 2
    shown = harp_stat("--dir", str(folder), "--pid", str(pid))
    assert re.search(rf"process {pid}, .*: DEAD", shown), shown
