"""How much of a GPU's communication a timeline finds behind the backward pass."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from lightcc import timeline
from lightcc.timeline import report

if TYPE_CHECKING:
    from pathlib import Path


def check(path: Path, row: str, steps: int) -> str:
    """Raises AssertionError unless each step communicated on `row`; returns what users read."""
    trace = timeline.read(path)
    summary = timeline.summarize(trace)
    devices = summary.devices
    assert devices is not None
    busy = [step for step in devices.steps if step.communication > 0]
    assert len(busy) >= steps
    assert all(step.by_device for step in busy)
    assert devices.failure == ""
    assert devices.error_s > 0
    assert devices.rows[row].spans >= steps
    buckets = {(bucket.algorithm, bucket.num_bytes) for bucket in trace.buckets}
    on_row = [span for span in trace.device_spans if span.row == row]
    assert {(span.algorithm, span.bucket_bytes) for span in on_row} <= buckets
    for before, after in itertools.pairwise(on_row):
        assert before.start <= before.end <= after.start + 1e-9  # The file has nanoseconds.
    return report.text(summary)
