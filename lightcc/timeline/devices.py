"""How much of a step's communication on GPUs lay behind its backward pass.

A span belongs to the step of its operations, whenever the GPU came to it: the host may be a step
ahead by then. What a GPU did before the last inputs of that step were ready is *hidden*, as the
GPU had gradients left to compute. What it did afterwards is *exposed*. Where several streams or
GPUs of the rank did something at once, that time counts once.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightcc.timeline.intervals import covered, total, union

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightcc.timeline.trace import DeviceSpan, Operation, Trace


@dataclass(frozen=True)
class DeviceStep:
    """Seconds of one step in which GPUs communicated."""

    hidden: float
    exposed: float
    #: Whether GPUs said when inputs were ready; else it is when the host had handed in the last.
    by_device: bool

    @property
    def communication(self) -> float:
        """Both parts."""
        return self.hidden + self.exposed


@dataclass
class DeviceRow:
    """What one row did."""

    spans: int = 0
    num_bytes: int = 0
    seconds: float = 0.0
    failed: int = 0  #: Spans that the GPU did not end.


@dataclass
class DeviceSummary:
    """What the rows of GPUs of one file say."""

    steps: list[DeviceStep]  #: Those of the file; one without communication on a GPU has 0 seconds.
    rows: dict[str, DeviceRow]
    error_s: float  #: Times on the rows are wrong by so much at most.
    failure: str  #: Why the first unfinished span of a GPU failed; empty: there is none.

    @property
    def hidden(self) -> float:
        """In all steps."""
        return sum(step.hidden for step in self.steps)

    @property
    def exposed(self) -> float:
        """In all steps."""
        return sum(step.exposed for step in self.steps)


def summarize_devices(
    trace: Trace,
    groups: Sequence[Sequence[Operation]],
    handed_in: Callable[[Trace, Operation], float],
) -> DeviceSummary | None:
    """Returns what the file says of GPUs; `None`: nothing.

    Args:
        trace: The file.
        groups: Its operations, step by step.
        handed_in: Says when the rank of the file handed an operation in.
    """
    if not trace.device_spans:
        return None
    step_of = {
        operation.sequence: number
        for number, group in enumerate(groups)
        for operation in group
        if operation.sequence is not None
    }
    spans: dict[int, list[DeviceSpan]] = defaultdict(list)
    for span in trace.device_spans:
        if span.sequence in step_of:
            spans[step_of[span.sequence]].append(span)
    steps = []
    for number, group in enumerate(groups):
        ready = [span.end for span in spans[number] if span.is_ready]
        last = max(ready or [handed_in(trace, operation) for operation in group])
        steps.append(_step(spans[number], last, by_device=bool(ready)))
    failures = [span.failed for span in trace.device_spans if span.failed]
    return DeviceSummary(
        steps=steps,
        rows=_rows(trace.device_spans),
        error_s=trace.device_error_s,
        failure=failures[0] if failures else "",
    )


def _step(spans: Sequence[DeviceSpan], last_ready: float, *, by_device: bool) -> DeviceStep:
    busy = union((span.start, span.end) for span in spans if not span.is_ready and not span.failed)
    hidden = covered(busy, busy[0][0], max(last_ready, busy[0][0])) if busy else 0.0
    return DeviceStep(hidden, max(total(busy) - hidden, 0.0), by_device)


def _rows(spans: Sequence[DeviceSpan]) -> dict[str, DeviceRow]:
    rows: dict[str, DeviceRow] = defaultdict(DeviceRow)
    counted: set[tuple[str, int]] = set()  # Buckets of which parts do not say their bytes.
    for span in spans:
        if span.is_ready:
            continue
        row = rows[span.row]
        row.spans += 1
        if span.failed:
            row.failed += 1
        else:
            if span.num_bytes is not None:
                row.num_bytes += span.num_bytes
            elif (span.row, span.sequence) not in counted:
                counted.add((span.row, span.sequence))
                row.num_bytes += span.bucket_bytes
            row.seconds += span.end - span.start
    return dict(sorted(rows.items()))
