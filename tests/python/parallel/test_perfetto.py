"""Timelines of real ranks in Perfetto: its trace processor finds what the files hold."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
from perfetto_page import PerfettoPage, start_perfetto

import lightcc as hvd
from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.multiproc, pytest.mark.extra]

ODD_NAME = 'odd "name" \\ of \xe4'
SLICES = """
select process.pid, slice.name, ts, extract_arg(slice.arg_set_id, 'args.shape') as shape from slice
left join thread_track on thread_track.id = slice.track_id left join thread using (utid)
left join process_track on process_track.id = slice.track_id
left join process on process.upid = coalesce(thread.upid, process_track.upid)
"""


def slices_of(path: Path) -> Counter[tuple[int, str, int]]:
    """Returns process, name and begin in nanoseconds of each slice of a file."""
    return Counter(
        (event["pid"], event["name"], round(event["ts"] * 1000))
        for event in json.loads(path.read_text())
        if event["ph"] in {"B", "X", "i"}
    )


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


def test_a_merged_file_is_what_perfetto_finds_in_order(
    perfetto: PerfettoPage, tmp_path: Path
) -> None:
    recorded, merged = tmp_path / "trace.json", tmp_path / "merged.json"
    env = {
        "LIGHT_TIMELINE": str(recorded),
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
        "HOROVOD_DYNAMIC_PROCESS_SETS": "1",
        "LIGHT_TOPK_ALLREDUCE": "1",
        "LIGHT_TOPK_THRESHOLD": "16K",
    }
    spawn_ranks(all_kinds, 2, env=env, hosts=[0, 1])
    merge = [sys.executable, "-m", "lightcc.timeline", "merge", str(recorded), "-o", str(merged)]
    subprocess.run(merge, check=True)
    perfetto.open(merged)
    assert perfetto.problems() == {}
    found = perfetto.query(SLICES)
    assert Counter((it["pid"], it["name"], it["ts"]) for it in found) == slices_of(merged)
    shapes = Counter(it["shape"] for it in found if it["name"] == "ALLREDUCE")
    assert shapes.total() == 3 * (14 + 13)  # Rank 0 has one more, by itself.
    assert {"[1]", "[1101]", "[5000]"} <= set(shapes)
    rows = [name.rpartition(" ")[0] for name in perfetto.rows()]  # Without Perfetto's numbers.
    ranks_at = [index for index, name in enumerate(rows) if name.startswith("rank ")]
    assert [rows[index].split(" on ")[0] for index in ranks_at] == ["rank 0", "rank 1"]
    # A thread is a group of one row, which has its name as well.
    of_first = list(dict.fromkeys(rows[ranks_at[0] + 1 : ranks_at[1]]))
    of_second = list(dict.fromkeys(rows[ranks_at[1] + 1 :]))
    assert of_first[:3] == ["marks", "lane 0", "lane 0 of process set 1"]
    assert {f"broadcast.{ODD_NAME}", "allreduce.own (process set 1)"} <= set(of_first)
    assert of_second[0] == "lane 0"
    for of_rank in (of_first, of_second):
        gradients = [name for name in of_rank if name.startswith("allreduce.g")]
        assert gradients == [f"allreduce.g{i}" for i in range(12)]


def test_perfetto_tells_of_a_file_that_is_wrong(perfetto: PerfettoPage, tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    overlapping = [{"ph": "X", "name": "a", "pid": 1, "ts": ts, "dur": 5} for ts in (1, 3)]
    path.write_text(json.dumps(overlapping))
    perfetto.open(path)
    assert perfetto.problems() == {"slice_drop_overlapping_complete_event": 1}
