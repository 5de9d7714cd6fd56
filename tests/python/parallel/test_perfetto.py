"""Timelines of real ranks in Perfetto: its trace processor finds what the files hold."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from perfetto_page import PerfettoPage, start_perfetto

import lightcc as hvd
from lightcc.testing import RankProcesses, mark, spawn_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.multiproc, pytest.mark.extra]

ODD_NAME = 'odd "name" \\ of \xe4'
ARGUMENTS = ("sequence", "lane", "bytes", "dtype", "shape", "tensors", "topk_sent_bytes", "records")
SLICES = f"""
select process.pid, process.name as process, thread.name as thread, slice.name, ts, dur, depth,
  {", ".join(f"extract_arg(slice.arg_set_id, 'args.{name}') as {name}" for name in ARGUMENTS)}
from slice
left join thread_track on thread_track.id = slice.track_id left join thread using (utid)
left join process_track on process_track.id = slice.track_id
left join process on process.upid = coalesce(thread.upid, process_track.upid)
"""


class Slice(NamedTuple):
    """A slice, as the file has it or as Perfetto does; times in nanoseconds."""

    pid: int
    process: str | None
    thread: str | None
    name: str
    begin: int
    duration: int  #: -1: it does not end in the file.
    depth: int
    arguments: tuple[tuple[str, Any], ...]


def arguments_of(found: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, found[name]) for name in ARGUMENTS if found.get(name) is not None)


def nanoseconds(us: float) -> int:
    return round(us * 1000)


def track_of(event: dict[str, Any]) -> tuple[int, int]:
    return event["pid"], event.get("tid", event["pid"])


def slices_of(path: Path) -> Counter[Slice]:
    """Reads a file as the description of Chrome's trace format says."""
    processes: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    stacks: dict[tuple[int, int], list[dict[str, Any]]] = {}
    found: list[tuple[dict[str, Any], dict[str, Any], float | None, int]] = []
    for event in json.loads(path.read_text()):
        pid, arguments = event["pid"], event.get("args", {})
        track = track_of(event)
        stack = stacks.setdefault(track, [])
        if event["ph"] == "M" and event["name"] == "process_name" and "name" in arguments:
            processes[pid] = arguments["name"]
        elif event["ph"] == "M" and event["name"] == "thread_name":
            threads[track] = arguments["name"]
        elif event["ph"] == "B":
            stack.append(event)
        elif event["ph"] == "E":
            begun = stack.pop()
            found.append(
                (begun, begun.get("args", {}) | arguments, event["ts"] - begun["ts"], len(stack))
            )
        elif event["ph"] in {"X", "i"}:
            found.append((event, arguments, event.get("dur", 0), len(stack)))
    for stack in stacks.values():
        found += [(event, event.get("args", {}), None, i) for i, event in enumerate(stack)]
    return Counter(
        Slice(
            event["pid"],
            processes.get(event["pid"]),
            None if event.get("s") == "p" else threads.get(track_of(event)),
            event["name"],
            nanoseconds(event["ts"]),
            -1 if duration is None else nanoseconds(duration),
            depth,
            arguments_of(arguments),
        )
        for event, arguments, duration, depth in found
    )


def slices_in(page: PerfettoPage) -> Counter[Slice]:
    return Counter(
        Slice(
            row["pid"],
            row["process"],
            row["thread"],
            row["name"],
            row["ts"],
            row["dur"],
            row["depth"],
            arguments_of(row),
        )
        for row in page.query(SLICES)
    )


def check(page: PerfettoPage, path: Path) -> Counter[Slice]:
    """Opens a file, and returns its slices, which are those that Perfetto finds."""
    page.open(path)
    assert page.problems() == {}
    found, expected = slices_in(page), slices_of(path)
    assert found - expected == Counter()
    assert expected - found == Counter()
    return found


@pytest.fixture(scope="module")
def perfetto() -> Iterator[PerfettoPage]:
    yield from start_perfetto()


def all_kinds() -> None:
    hvd.init()
    first = hvd.add_process_set([0])
    for _step in range(3):
        handles = [
            hvd.allreduce_async(np.ones(100 * i + 1, np.float32), name=f"g{i}") for i in range(12)
        ]
        for handle in handles:
            hvd.synchronize(handle)
        hvd.allreduce(np.ones(5000, np.float32), name="large")
        hvd.allgather(np.ones((hvd.rank() + 1, 2)), name="gathered")
        hvd.broadcast(np.ones(5), root_rank=1, name=ODD_NAME)
        hvd.alltoall(np.arange(4.0))
        hvd.reducescatter(np.ones((4, 2)))
        if hvd.rank() == 0:
            hvd.allreduce(np.ones(2), name="own", process_set=first)
        hvd.barrier()
    hvd.join()
    hvd.shutdown()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 0's file of a job on two hosts in name; rank 1's lies beside it."""
    path = tmp_path_factory.mktemp("recorded") / "trace.json"
    env = {
        "LIGHT_TIMELINE": str(path),
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
        "HOROVOD_DYNAMIC_PROCESS_SETS": "1",
        "LIGHT_TOPK_ALLREDUCE": "1",
        "LIGHT_TOPK_THRESHOLD": "16K",
    }
    spawn_ranks(all_kinds, 2, env=env, hosts=[0, 1])
    return path


def test_a_merged_file_is_what_perfetto_finds_in_order(
    perfetto: PerfettoPage, recorded: Path, tmp_path: Path
) -> None:
    merged = tmp_path / "merged.json"
    merge = [sys.executable, "-m", "lightcc.timeline", "merge", str(recorded), "-o", str(merged)]
    subprocess.run(merge, check=True)
    both = check(perfetto, merged)
    parts = [slices_of(recorded), slices_of(recorded.with_name("trace.rank1.json"))]
    names = [Counter(one.name for one in part.elements()) for part in (both, *parts)]
    assert names[0] == names[1] + names[2]
    assert names[1]["NEGOTIATE_ALLREDUCE"] == names[1]["ALLREDUCE"] == 3 * 14
    processes = {one.process for one in parts[0]}
    lanes = {"lane 0", "lane 0 of process set 1"}
    assert lanes | {f"broadcast.{ODD_NAME}", "allreduce.own (process set 1)"} <= processes
    assert {one.thread for one in parts[0] if one.process in lanes} == {"buckets"}
    slices = [one for one in both if one.pid == 0]
    # Nothing that is not looked for above: each tensor's parts lie in one another.
    depths = {(one.name, one.depth) for one in slices if one.thread != "lane 0"}
    assert {
        ("NEGOTIATE_ALLREDUCE", 0),
        ("0", 1),
        ("1", 1),
        ("ALLREDUCE", 0),
        ("QUEUE", 1),
        ("TOPK_ALLREDUCE", 1),
    } <= depths
    sizes = {dict(one.arguments)["shape"] for one in slices if one.name == "ALLREDUCE"}
    assert {"[1]", "[1101]", "[5000]"} <= sizes
    ranks = perfetto.query("select pid, name from process where name is not null order by pid")
    assert [(row["pid"], row["name"].split(" on ")[0]) for row in ranks] == [
        (0, "rank 0"),
        (1, "rank 1"),
    ]
    # To Perfetto the main thread is one more kind of row, which goes to the top.
    assert perfetto.query("select tid from thread where is_main_thread and name is not null") == []
    rows = [name.rpartition(" ")[0] for name in perfetto.rows()]  # Without Perfetto's numbers.
    ranks_at = [index for index, name in enumerate(rows) if name.startswith("rank ")]
    assert [rows[index].split(" on ")[0] for index in ranks_at] == ["rank 0", "rank 1"]
    # A thread is a group of one row, which has its name as well.
    of_first = list(dict.fromkeys(rows[ranks_at[0] + 1 : ranks_at[1]]))
    of_second = list(dict.fromkeys(rows[ranks_at[1] + 1 :]))
    assert of_first[:3] == ["marks", "lane 0", "lane 0 of process set 1"]
    assert of_second[0] == "lane 0"
    for of_rank in (of_first, of_second):
        gradients = [name for name in of_rank if name.startswith("allreduce.g")]
        assert gradients == [f"allreduce.g{i}" for i in range(12)]
    perfetto.expand()
    perfetto.wait_text("allreduce.g0")


def reduce_until_error() -> None:
    hvd.init()
    try:
        for step in range(1_000_000):
            hvd.allreduce(np.ones(3), name="again")
            if step == 20:
                mark("running")
    except hvd.HorovodInternalError:
        hvd.shutdown()


def test_a_job_that_failed_leaves_files_that_perfetto_opens(
    perfetto: PerfettoPage, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    with RankProcesses(reduce_until_error, 2, env={"LIGHT_TIMELINE": str(path)}) as processes:
        processes.wait_mark("running")
        processes.kill(1, signal.SIGKILL)
        processes.wait(ranks=[0])
    slices = check(perfetto, path)
    assert sum(one.name == "WORLD_FAILED" for one in slices) == 1
    assert all(one.duration >= 0 for one in slices)


def test_perfetto_tells_of_a_file_that_is_wrong(perfetto: PerfettoPage, tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    overlapping = [{"ph": "X", "name": "a", "pid": 1, "ts": ts, "dur": 5} for ts in (1, 3)]
    path.write_text(json.dumps(overlapping))
    perfetto.open(path)
    assert perfetto.problems() == {"slice_drop_overlapping_complete_event": 1}
