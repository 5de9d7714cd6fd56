"""Reads the timelines that ranks record: one picture of all ranks, and where the time went.

`python -m lightcc.timeline merge|summary FILE`; see docs/running/timeline.md.
"""

from __future__ import annotations

from lightcc.timeline.clocks import ClockOffset, clock_offsets
from lightcc.timeline.devices import DeviceSummary
from lightcc.timeline.merging import merge
from lightcc.timeline.summary import Summary, summarize
from lightcc.timeline.trace import Bucket, DeviceSpan, Operation, Trace, TraceError, read, read_all

__all__ = [
    "Bucket",
    "ClockOffset",
    "DeviceSpan",
    "DeviceSummary",
    "Operation",
    "Summary",
    "Trace",
    "TraceError",
    "clock_offsets",
    "merge",
    "read",
    "read_all",
    "summarize",
]
