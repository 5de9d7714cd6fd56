"""Where the time of a rank went, and for which rank the others waited.

A step ends where a tensor is handed in again that was handed in before in the same step. Its time
is split so that the parts add up:

    hidden    communication ran before this rank had handed in its last tensor
    exposed   communication ran after that
    waiting   all was handed in, nothing ran, and something was not done: others were late
    alone     the rest: this rank computed, and nothing ran
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lightcc.timeline.devices import DeviceSummary, summarize_devices
from lightcc.timeline.intervals import covered, total, union

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightcc.timeline.intervals import Interval
    from lightcc.timeline.trace import Bucket, Operation, Trace

#: Ranks for which others waited for a smaller share of the time are not called late.
LATE_SHARE = 0.01


@dataclass(frozen=True)
class Step:
    """Seconds of one step."""

    start: float
    end: float
    hidden: float
    exposed: float
    waiting: float

    @property
    def alone(self) -> float:
        """What is left."""
        return max(self.end - self.start - self.hidden - self.exposed - self.waiting, 0.0)


@dataclass(frozen=True)
class Lateness:
    """What others waited for one rank, after all of them had asked."""

    rank: int
    seconds: float
    operations: int  #: In which it was the last.


@dataclass
class Work:
    """What one algorithm did."""

    buckets: int = 0
    tensors: int = 0
    num_bytes: int = 0
    seconds: float = 0.0


@dataclass
class Summary:
    """What one file says."""

    rank: int
    size: int
    seconds: float
    steps: list[Step]
    late: list[Lateness]  #: The latest first; empty where the file has no ticks of other ranks.
    compared_operations: int  #: Those of which two ranks or more are known.
    work: dict[str, Work]
    dense_bytes: int
    sent_bytes: int
    lost_records: int
    error: str
    slowest: list[tuple[str, float]] = field(default_factory=list)  #: Tensors, by their wait.
    devices: DeviceSummary | None = None  #: `None`: the file has no rows of GPUs.

    @property
    def late_rank(self) -> int | None:
        """The rank that is to be looked at first, if there is one."""
        if not self.late or self.late[0].seconds < LATE_SHARE * self.seconds:
            return None
        return self.late[0].rank


def summarize(trace: Trace) -> Summary:
    """Returns what the file of one rank says. Other ranks' ticks are in that of rank 0."""
    running = union(_running(trace))
    operations = sorted(trace.operations, key=lambda operation: handed_in(trace, operation))
    groups = in_steps(operations)
    times = [time for operation in operations for time in _times(operation)]
    times += [time for interval in running for time in interval]
    seconds = max(times) - min(times) if times else 0.0
    late, compared = _lateness(operations)
    return Summary(
        rank=trace.rank,
        size=trace.size,
        seconds=seconds,
        steps=_split(trace, groups, running),
        late=late,
        compared_operations=compared,
        work=_work(trace.buckets),
        dense_bytes=sum(bucket.dense_bytes for bucket in trace.buckets),
        sent_bytes=sum(bucket.sent_bytes for bucket in trace.buckets),
        lost_records=trace.lost_records,
        error=trace.error,
        slowest=_slowest(operations),
        devices=summarize_devices(trace, groups, handed_in),
    )


def handed_in(trace: Trace, operation: Operation) -> float:
    """Returns when the rank of this file handed the tensor in."""
    return operation.ticks.get(trace.rank, operation.begin)


def _times(operation: Operation) -> list[float]:
    times = (operation.begin, operation.announced, operation.finished)
    return [time for time in times if time is not None]


def _running(trace: Trace) -> list[Interval]:
    if trace.buckets:
        return [(bucket.start, bucket.end) for bucket in trace.buckets]
    # Horovod's files have no lanes.
    return [
        (
            operation.announced if operation.started is None else operation.started,
            operation.finished,
        )
        for operation in trace.operations
        if operation.announced is not None and operation.finished is not None
    ]


def in_steps(operations: Sequence[Operation]) -> list[list[Operation]]:
    """Returns operations, in the order in which they were handed in, step by step."""
    steps: list[list[Operation]] = []
    names: set[str] = set()
    for operation in operations:
        if not steps or operation.name in names:
            steps.append([])
            names.clear()
        steps[-1].append(operation)
        names.add(operation.name)
    return steps


def _split(
    trace: Trace, groups: Sequence[Sequence[Operation]], running: Sequence[Interval]
) -> list[Step]:
    starts = [handed_in(trace, group[0]) for group in groups]
    steps = []
    first = 0  # The first interval of `running` that still matters. This makes it one scan.
    for number, group in enumerate(groups):
        start = starts[number]
        done = max(time for operation in group for time in _times(operation))
        end = starts[number + 1] if number + 1 < len(groups) else done
        last = min(max(handed_in(trace, operation) for operation in group), end)
        while first < len(running) and running[first][1] <= start:
            first += 1
        near = []
        for interval in running[first:]:
            if interval[0] >= end:
                break
            near.append(interval)
        hidden = covered(near, start, last)
        exposed = covered(near, last, end)
        pending = min(done, end) - last
        waiting = max(pending - covered(near, last, min(done, end)), 0.0)
        steps.append(Step(start, end, hidden, exposed, waiting))
    return steps


def _lateness(operations: Sequence[Operation]) -> tuple[list[Lateness], int]:
    waits: dict[int, list[Interval]] = defaultdict(list)
    counts: dict[int, int] = defaultdict(int)
    compared = 0
    for operation in operations:
        if len(operation.ticks) < 2:
            continue
        compared += 1
        (before, _), (last, rank) = sorted((at, rank) for rank, at in operation.ticks.items())[-2:]
        waits[rank].append((before, last))
        counts[rank] += 1
    late = [
        Lateness(rank, total(union(intervals)), counts[rank]) for rank, intervals in waits.items()
    ]
    return sorted(late, key=lambda one: -one.seconds), compared


def _work(buckets: Sequence[Bucket]) -> dict[str, Work]:
    work: dict[str, Work] = defaultdict(Work)
    intervals: dict[str, list[Interval]] = defaultdict(list)
    for bucket in buckets:
        done = work[bucket.algorithm]
        done.buckets += 1
        done.tensors += bucket.tensors
        done.num_bytes += bucket.num_bytes
        intervals[bucket.algorithm].append((bucket.start, bucket.end))
    for algorithm, done in work.items():
        done.seconds = total(union(intervals[algorithm]))
    return dict(work)


def _slowest(operations: Sequence[Operation], count: int = 5) -> list[tuple[str, float]]:
    waits: dict[str, float] = defaultdict(float)
    for operation in operations:
        if operation.announced is not None:
            waits[operation.name] += operation.announced - operation.begin
    return sorted(waits.items(), key=lambda pair: -pair[1])[:count]
