"""Timelines of real ranks: by the environment, by calls, of one rank and of all, after errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lightcc as hvd
from lightcc import timeline
from lightcc.testing import RankProcesses, mark, spawn_ranks
from lightcc.timeline import __main__ as tool

pytestmark = pytest.mark.multiproc

PHASES = {"B", "E", "X", "M", "i"}
PATIENCE_S = 30.0


def events_of(path: Path) -> list[dict[str, Any]]:
    """Reads a file and checks what viewers of Chrome's trace format rely on."""
    events: list[dict[str, Any]] = json.loads(path.read_text())
    names: dict[int, str] = {}
    open_slices: dict[int, list[float]] = {}
    for event in events:
        assert event["ph"] in PHASES
        if event["ph"] == "M":
            if event["name"] == "process_name" and event["pid"] > 0:
                assert event["pid"] not in names
                names[event["pid"]] = event["args"]["name"]
            continue
        assert event["ts"] >= 0
        if event["ph"] == "i":
            assert (event["s"], event["pid"]) == ("p", 0)
            continue
        assert event["pid"] in names, "a track is named before it is used"
        begun = open_slices.setdefault(event["pid"], [])
        if event["ph"] == "B":
            assert event["name"]
            begun.append(event["ts"])
        elif event["ph"] == "E":
            assert begun.pop() <= event["ts"]
        else:
            assert event["dur"] >= 0
    return events


def names_in(events: list[dict[str, Any]]) -> set[str]:
    named = {event["name"] for event in events if "name" in event}
    return named | {event["args"]["name"] for event in events if "name" in event.get("args", {})}


def reduce_once(name: str = "test_allreduce") -> None:
    hvd.allreduce(np.arange(3, dtype=np.float32), name=name)


# -- By the environment ---------------------------------------------------------------------------


def reduce_and_read(path: str) -> str:
    """Returns rank 0's file as it is a moment after an operation, while all goes on."""
    hvd.init()
    reduce_once()
    text = ""
    give_up = time.monotonic() + PATIENCE_S
    while hvd.rank() == 0 and "shape" not in text and time.monotonic() < give_up:
        time.sleep(0.01)
        text = Path(path).read_text()
    hvd.shutdown()
    return text


def test_rank_0_records_what_horovods_test_looks_for(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    env = {"HOROVOD_TIMELINE": str(path), "HOROVOD_TIMELINE_MARK_CYCLES": "1"}
    live = spawn_ranks(reduce_and_read, 2, str(path), env=env)[0]
    events = events_of(path)
    for text in (live, path.read_text()):
        assert isinstance(json.loads(text), list)
        for word in (
            "allreduce.test_allreduce",
            "NEGOTIATE_ALLREDUCE",
            '"ALLREDUCE"',
            "SHM_ALLREDUCE",
            "CYCLE_START",
            "start_time_since_epoch_in_micros",
        ):
            assert word in text
    ticks = {event["name"] for event in events if event["ph"] == "X" and "args" not in event}
    assert ticks == {"0", "1"}
    assert [path] == list(tmp_path.iterdir())  # The other rank records nothing.
    ended = [event["args"] for event in events if event["ph"] == "E" and "args" in event]
    assert {"dtype": "float32", "shape": "[3]"} in ended


def many_kinds() -> None:
    hvd.init()
    evens = hvd.add_process_set([0])
    for _step in range(3):
        handles = [
            hvd.allreduce_async(np.ones(100 * i + 1, np.float32), name=f"g{i}") for i in range(20)
        ]
        for handle in handles:
            hvd.synchronize(handle)
        hvd.allgather(np.ones((hvd.rank() + 1, 2)), name="gathered")
        hvd.broadcast(np.ones(5), root_rank=1)
        hvd.alltoall(np.arange(4.0))
        hvd.reducescatter(np.ones((4, 2)))
        if hvd.rank() == 0:
            hvd.allreduce(np.ones(2), name="own", process_set=evens)
        hvd.barrier()
    with pytest.raises(hvd.RankMismatchError):
        hvd.allreduce(np.ones(hvd.rank() + 1), name="mismatched")
    hvd.join()
    hvd.shutdown()


@pytest.mark.parametrize("hosts", [None, [0, 1]], ids=["one host", "two hosts"])
def test_all_ranks_record_all_kinds_of_operations(tmp_path: Path, hosts: list[int] | None) -> None:
    path = tmp_path / "trace.json"
    env = {"LIGHT_TIMELINE": str(path), "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    spawn_ranks(many_kinds, 2, env=env, hosts=hosts)
    traces = timeline.read_all(path)
    assert [(trace.rank, trace.size) for trace in traces] == [(0, 2), (1, 2)]
    assert {file.name for file in tmp_path.iterdir()} == {"trace.json", "trace.rank1.json"}
    for trace in traces:
        named = names_in(events_of(trace.path))
        for kind in ("ALLREDUCE", "ALLGATHER", "BROADCAST", "ALLTOALL", "REDUCESCATTER"):
            assert {f"NEGOTIATE_{kind}", kind} <= named
            assert any(name.endswith(f"_{kind}") for name in named)
        assert {"NEGOTIATE_BARRIER", "NEGOTIATE_JOIN"} <= named
        gradients = [one for one in trace.operations if one.name.startswith("allreduce.g")]
        assert len(gradients) == 60
        for one in gradients:
            assert one.announced is not None
            assert one.started is not None
            assert one.finished is not None
            assert one.begin <= one.announced <= one.started <= one.finished
        assert sum(bucket.tensors for bucket in trace.buckets) >= 60
        assert trace.lost_records == 0
    assert "allreduce.own (process set 1)" in names_in(traces[0].events)
    assert "allreduce.own (process set 1)" not in names_in(traces[1].events)


def fail_to_init() -> str:
    with pytest.raises((ValueError, hvd.HorovodInternalError)) as caught:
        hvd.init()
    return f"{type(caught.value).__name__}: {caught.value}"


def test_a_file_that_cannot_be_written_ends_init_on_all_ranks(tmp_path: Path) -> None:
    path = tmp_path / "no" / "folder.json"
    reported = spawn_ranks(fail_to_init, 2, env={"HOROVOD_TIMELINE": str(path)})
    assert reported[0].startswith(
        f"ValueError: the timeline '{path}' cannot be written: No such file"
    )
    assert f"'{path}' cannot be written" in reported[1]


# -- By calls -------------------------------------------------------------------------------------


def record_parts(folder: str) -> None:
    hvd.init()
    first, second, third = (Path(folder) / name for name in ("first", "second", "third"))
    hvd.start_timeline(first, mark_cycles=True)
    reduce_once("one")
    hvd.start_timeline(str(first))  # Goes on.
    reduce_once("two")
    hvd.start_timeline(second)
    hvd.barrier()  # What a rank reports that is ahead belongs to the file before.
    reduce_once("three")
    hvd.stop_timeline()
    hvd.barrier()
    reduce_once("nowhere")
    hvd.stop_timeline()  # Does nothing.
    hvd.start_timeline(third, mark_cycles=True)
    hvd.barrier()
    reduce_once("four")
    hvd.barrier()
    hvd.shutdown()


def test_calls_begin_and_end_files(tmp_path: Path) -> None:
    spawn_ranks(record_parts, 2, str(tmp_path), env={"HOROVOD_TIMELINE": "DYNAMIC"})
    files = {path.name: names_in(events_of(path)) for path in tmp_path.iterdir()}
    found = {
        name: {part.removeprefix("allreduce.") for part in parts if part.startswith("allreduce.")}
        for name, parts in files.items()
    }
    assert found == {"first": {"one", "two"}, "second": {"three"}, "third": {"four"}}
    assert {name for name, parts in files.items() if "CYCLE_START" in parts} == {"first", "third"}


def test_a_call_needs_a_world_the_variable_and_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="not been initialized"):
        hvd.start_timeline("x")
    with pytest.raises(ValueError, match="not been initialized"):
        hvd.stop_timeline()
    hvd.init()
    with pytest.raises(ValueError, match="Set HOROVOD_TIMELINE=DYNAMIC to enable"):
        hvd.start_timeline(tmp_path / "x")
    hvd.shutdown()
    monkeypatch.setenv("LIGHT_TIMELINE", "DYNAMIC")
    hvd.init()
    for bad in (tmp_path, tmp_path / "no" / "x", "/dev/full", ""):
        with pytest.raises(ValueError, match=f"the timeline '{bad}' cannot be written: "):
            hvd.start_timeline(bad)
    hvd.start_timeline(tmp_path / "good")
    reduce_once()
    hvd.shutdown()
    assert "allreduce.test_allreduce" in names_in(events_of(tmp_path / "good"))


# -- After errors ---------------------------------------------------------------------------------


def reduce_until_error() -> str:
    hvd.init()
    try:
        for step in range(1_000_000):
            reduce_once("again")
            if step == 20:
                mark("running")
    except hvd.HorovodInternalError as error:
        hvd.shutdown()
        return str(error)
    return ""


def test_files_are_complete_when_a_rank_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    env = {"LIGHT_TIMELINE": str(path)}
    with RankProcesses(reduce_until_error, 3, env=env) as processes:
        processes.wait_mark("running")
        processes.kill(2, signal.SIGKILL)
        results = processes.wait(ranks=[0, 1])
    traces = timeline.read_all(path)
    assert len(traces) == 3
    for trace, result in zip(traces, results, strict=False):
        assert result.value is not None
        assert trace.error in result.value
        assert trace.error
        events_of(trace.path)
    assert not traces[2].error


EXIT_AT_ONCE = """
import os, sys, time
import numpy as np, lightcc as hvd
hvd.init()
hvd.allreduce(np.arange(3.0), name="test_allreduce")
give_up = time.monotonic() + 30
while "shape" not in open(sys.argv[1]).read() and time.monotonic() < give_up:
    time.sleep(0.01)
os._exit(0)
"""


def test_a_process_that_ends_without_shutdown_leaves_a_complete_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    environment = os.environ | {"HOROVOD_TIMELINE": str(path)}
    command = [sys.executable, "-c", EXIT_AT_ONCE, str(path)]
    subprocess.run(command, env=environment, check=True, timeout=60)
    assert "allreduce.test_allreduce" in names_in(events_of(path))


# -- What is read out of it -----------------------------------------------------------------------


def train_with_a_slow_rank(slow: int) -> None:
    hvd.init()
    for _ in range(15):
        if hvd.rank() == slow:
            time.sleep(0.02)
        handles = [
            hvd.allreduce_async(np.ones(1000, np.float32), name=f"gradient.{i}") for i in range(4)
        ]
        for handle in handles:
            hvd.synchronize(handle)
    hvd.shutdown()


@pytest.mark.parametrize("slow", [0, 2])
def test_summary_alone_finds_the_slow_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], slow: int
) -> None:
    path = tmp_path / "trace.json"
    spawn_ranks(train_with_a_slow_rank, 3, slow, env={"HOROVOD_TIMELINE": str(path)})
    assert tool.main(["summary", str(path)]) == 0
    text = capsys.readouterr().out
    assert f"rank {slow} was late: look there first" in text
    assert all(len(line) <= 100 for line in text.splitlines())
    summary = timeline.summarize(timeline.read(path))
    assert summary.late_rank == slow
    assert summary.late[0].seconds > 0.03  # 15 times 20 ms, or more elsewhere.
    assert len(summary.steps) == 15
    waited = sum(step.waiting for step in summary.steps)
    assert (waited > 0.1) == (slow != 0)


def test_clocks_of_two_machines_are_told_by_the_files(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    spawn_ranks(train_with_a_slow_rank, 2, 1, env={"LIGHT_TIMELINE": str(path)}, hosts=[0, 1])
    first, second = timeline.read_all(path)
    (_, exact) = timeline.clock_offsets([first, second])
    assert exact.error_s == 0
    second.clock = "another machine"
    (_, reported) = timeline.clock_offsets([first, second])
    assert reported.error_s is not None
    assert abs(reported.seconds - exact.seconds) <= reported.error_s + 1e-6
