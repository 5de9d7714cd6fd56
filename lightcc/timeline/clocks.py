"""Puts the ranks' files on one clock.

Files of one machine share its steady clock. For others the files themselves tell: each operation
goes from a rank to rank 0, which notes its tick, and comes back as an announcement. These are the
four times from which NTP computes an offset; the quickest way in each direction, of all
operations, bounds it best.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightcc.timeline.trace import Operation, Trace


class ClockOffset(NamedTuple):
    """What to add to a file's times to get those of the first file."""

    seconds: float
    error_s: float | None  #: At most so far from the truth; `None` where that is not known.


def clock_offsets(traces: Sequence[Trace]) -> list[ClockOffset]:
    """Returns the offset of each file to the first, which must be rank 0's."""
    first = traces[0]
    announced = _by_sequence(first)
    return [
        ClockOffset(0.0, 0.0) if trace is first else _offset(first, announced, trace)
        for trace in traces
    ]


def _by_sequence(trace: Trace) -> dict[tuple[int, str], Operation]:
    return {
        (operation.sequence, operation.name): operation
        for operation in trace.operations
        if operation.sequence is not None and operation.sequence >= 0
    }


def _offset(first: Trace, announced: dict[tuple[int, str], Operation], trace: Trace) -> ClockOffset:
    if trace.clock and trace.clock == first.clock:
        return ClockOffset(trace.steady_s - first.steady_s, 0.0)
    up, down = [], []
    for key, operation in _by_sequence(trace).items():
        there = announced.get(key)
        if there is None or operation.announced is None or there.announced is None:
            continue
        if trace.rank in there.ticks and trace.rank in operation.ticks:
            up.append(there.ticks[trace.rank] - operation.ticks[trace.rank])
            down.append(operation.announced - there.announced)
    if not up:
        return ClockOffset(trace.epoch_s - first.epoch_s, None)
    return ClockOffset((min(up) - min(down)) / 2, max((min(up) + min(down)) / 2, 0.0))
