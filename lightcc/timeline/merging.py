"""One file of all ranks: a rank is a process. Its tensors, lanes and rows of GPUs are its threads.

Perfetto goes by no sort index. It sorts processes by their number of slices, then by name, and
threads by number, but for the one with the process' own number, which it takes for the main thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightcc.timeline.clocks import clock_offsets
from lightcc.timeline.trace import FIRST_LANE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightcc.timeline.trace import Trace

_MICROSECONDS = 1e6
_OF_THE_RANK = 0  # The track of what concerns the rank and no tensor.


def merge(traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """Returns the events of all files, the first rank 0's, on its clock, from 0 microseconds on."""
    offsets = clock_offsets(traces)
    shift = -min(offset.seconds for offset in offsets)
    last_rank = max(trace.rank for trace in traces)
    digits = len(str(last_rank))
    events: list[dict[str, Any]] = []
    for trace, offset in zip(traces, offsets, strict=True):
        name = f"rank {trace.rank:0{digits}}" + (f" on {trace.host}" if trace.host else "")
        events.append(_metadata("process_name", trace.rank, 0, {"name": name}))
        events.append(_metadata("process_sort_index", trace.rank, 0, {"sort_index": trace.rank}))
        about = {"offset_s": offset.seconds, "error_s": offset.error_s, "file": str(trace.path)}
        if trace.device_spans:
            about["device_error_s"] = trace.device_error_s
        events.append(_metadata("lightcc", trace.rank, 0, about))
        events += _events_of(trace, (offset.seconds + shift) * _MICROSECONDS, last_rank + 1)
    return events


def _metadata(name: str, pid: int, tid: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": arguments}


def _track(event: dict[str, Any]) -> int:
    return _OF_THE_RANK if event.get("ph") == "i" else int(event.get("pid", _OF_THE_RANK))


def _events_of(trace: Trace, shift_us: float, first_tid: int) -> list[dict[str, Any]]:
    timed = [event for event in trace.events if event.get("ph") != "M"]
    names = {pid: f"tensor {pid}" for pid in map(_track, timed)} | trace.tracks
    names[_OF_THE_RANK] = "marks"
    # Marks, lanes, rows of devices, tensors.
    order = sorted(set(map(_track, timed)), key=lambda pid: (0 < pid < FIRST_LANE, pid))
    threads = {pid: first_tid + index for index, pid in enumerate(order)}
    events: list[dict[str, Any]] = []
    for pid, tid in threads.items():
        events.append(_metadata("thread_name", trace.rank, tid, {"name": names[pid]}))
        events.append(_metadata("thread_sort_index", trace.rank, tid, {"sort_index": tid}))
    for event in timed:
        ts = round(event["ts"] + shift_us, 3)
        moved = event | {"ts": ts, "pid": trace.rank, "tid": threads[_track(event)]}
        if "s" in moved:
            moved["s"] = "t"  # Perfetto has no name for the row of a mark that is no thread's.
        events.append(moved)
    return events
