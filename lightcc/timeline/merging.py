"""One file of all ranks: a rank is a process, and its tensors and lanes are its threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightcc.timeline.clocks import clock_offsets
from lightcc.timeline.trace import FIRST_LANE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightcc.timeline.trace import Trace

_MICROSECONDS = 1e6


def merge(traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """Returns the events of all files, the first rank 0's, on its clock, from 0 microseconds on."""
    offsets = clock_offsets(traces)
    shift = -min(offset.seconds for offset in offsets)
    events: list[dict[str, Any]] = []
    for trace, offset in zip(traces, offsets, strict=True):
        name = f"rank {trace.rank}" + (f" on {trace.host}" if trace.host else "")
        events.append(_metadata("process_name", trace.rank, 0, {"name": name}))
        events.append(_metadata("process_sort_index", trace.rank, 0, {"sort_index": trace.rank}))
        about = {"offset_s": offset.seconds, "error_s": offset.error_s, "file": str(trace.path)}
        events.append(_metadata("lightcc", trace.rank, 0, about))
        events += _events_of(trace, (offset.seconds + shift) * _MICROSECONDS)
    return events


def _metadata(name: str, pid: int, tid: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": arguments}


def _events_of(trace: Trace, shift_us: float) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    threads: dict[int, int] = {}
    lanes = sum(pid >= FIRST_LANE for pid in trace.tracks)
    lane, tensor = 1, lanes + 1  # Lanes come first.
    for pid, name in trace.tracks.items():
        if pid >= FIRST_LANE:
            threads[pid], lane = lane, lane + 1
        else:
            threads[pid], tensor = tensor, tensor + 1
        tid = threads[pid]
        events.append(_metadata("thread_name", trace.rank, tid, {"name": name}))
        events.append(_metadata("thread_sort_index", trace.rank, tid, {"sort_index": tid}))
    for event in trace.events:
        if event.get("ph") == "M":
            continue
        moved = event | {"ts": round(event["ts"] + shift_us, 3), "pid": trace.rank}
        moved["tid"] = threads.get(event.get("pid", 0), 0)
        if event["ph"] == "i":
            moved["s"] = "p"  # It concerns its rank.
        events.append(moved)
    return events
