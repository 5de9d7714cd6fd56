"""A summary as text, and for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lightcc._figures import duration, size

if TYPE_CHECKING:
    from lightcc.timeline.devices import DeviceSummary
    from lightcc.timeline.summary import Summary

_PARTS = ("alone", "hidden", "exposed", "waiting")
_MEANING = {
    "alone": "nothing ran: this rank computed",
    "hidden": "communication, while this rank had tensors left to hand in",
    "exposed": "communication, after it had handed in its last tensor",
    "waiting": "all was handed in: other ranks were late",
}
_MAX_RANKS = 5


def text(summary: Summary) -> str:
    """Returns the summary for a terminal, in lines of at most 100 columns."""
    of = f" of {summary.size}" if summary.size else ""
    lines = [f"rank {summary.rank}{of}: {duration(summary.seconds)}, {len(summary.steps)} steps"]
    if summary.error:
        lines.append(f"the job failed: {summary.error}")
    if summary.lost_records:
        lines.append(f"{summary.lost_records} events are missing: the file system was too slow")
    if summary.steps:
        lines += ["", *_step_lines(summary)]
    lines += ["", *_late_lines(summary)]
    if summary.work:
        lines += ["", *_work_lines(summary)]
    if summary.devices is not None:
        lines += ["", *_device_lines(summary.devices)]
    if summary.dense_bytes:
        saved = 1 - summary.sent_bytes / summary.dense_bytes
        lines += [
            "",
            f"compression sent {size(summary.sent_bytes)} instead of {size(summary.dense_bytes)}: "
            f"{saved:.1%} saved",
        ]
    if summary.slowest:
        lines += ["", "longest from the first rank's asking to the announcement, in all:"]
        lines += [f"  {duration(wait):>10}  {name[:80]}" for name, wait in summary.slowest]
    return "\n".join(lines) + "\n"


def _step_lines(summary: Summary) -> list[str]:
    count = len(summary.steps)
    whole = sum(step.end - step.start for step in summary.steps)
    lines = [f"a step took {duration(whole / count)} on average:"]
    for part in _PARTS:
        seconds = sum(getattr(step, part) for step in summary.steps)
        share = seconds / whole if whole > 0 else 0.0
        lines.append(f"  {part:<8} {duration(seconds / count):>10} {share:>6.1%}  {_MEANING[part]}")
    return lines


def _late_lines(summary: Summary) -> list[str]:
    if not summary.late:
        return ["which rank was late is in rank 0's file, if the job had several ranks"]
    rank = summary.late_rank
    if rank is None:
        lines = ["no rank was late: others waited for none for 1% of the time or more"]
    else:
        lines = [f"rank {rank} was late: look there first"]
    for one in summary.late[:_MAX_RANKS]:
        share = one.seconds / summary.seconds if summary.seconds > 0 else 0.0
        lines.append(
            f"  rank {one.rank}: last in {one.operations} of {summary.compared_operations} "
            f"operations; all others waited {duration(one.seconds)} for it ({share:.1%})"
        )
    return lines


def _work_lines(summary: Summary) -> list[str]:
    lines = [
        f"{'what ran':<24} {'buckets':>8} {'tensors':>8} {'bytes':>9} {'time':>9} {'rate':>12}"
    ]
    for algorithm, work in sorted(summary.work.items(), key=lambda pair: -pair[1].seconds):
        rate = size(work.num_bytes / work.seconds) + "/s" if work.seconds > 0 else ""
        lines.append(
            f"{algorithm:<24} {work.buckets:>8} {work.tensors:>8} {size(work.num_bytes):>9} "
            f"{duration(work.seconds):>9} {rate:>12}"
        )
    return lines


def _device_lines(devices: DeviceSummary) -> list[str]:
    whole = devices.hidden + devices.exposed
    count = sum(step.communication > 0 for step in devices.steps)
    lines = [
        f"GPUs communicated for {duration(whole)} in {count} steps, "
        f"by their clocks (to {duration(devices.error_s)}):"
    ]
    whose = "on the GPU" if all(step.by_device for step in devices.steps) else "or handed in"
    for part, meaning in (
        ("hidden", f"before the last inputs of the step were ready {whose}"),
        ("exposed", "after that"),
    ):
        seconds = getattr(devices, part)
        share = seconds / whole if whole > 0 else 0.0
        lines.append(f"  {part:<8} {duration(seconds):>10} {share:>6.1%}  {meaning}")
    lines += ["", f"{'row':<24} {'spans':>8} {'bytes':>9} {'time':>9} {'rate':>12}"]
    for name, row in devices.rows.items():
        rate = size(row.num_bytes / row.seconds) + "/s" if row.seconds > 0 else ""
        lines.append(
            f"{name:<24} {row.spans:>8} {size(row.num_bytes):>9} {duration(row.seconds):>9} "
            f"{rate:>12}" + (f"  {row.failed} failed" if row.failed else "")
        )
    if devices.failure:
        lines.append(f"the first failure on a row: {devices.failure[:70]}")
    return lines


def steps_text(summary: Summary) -> str:
    """Returns a line for each step, in which times are milliseconds."""
    devices = summary.devices
    columns = ["step", "took", *_PARTS]
    if devices is not None:
        columns += ["GPU hidden", "GPU exposed"]
    lines = ["".join(f"{column:>12}" for column in columns)]
    for number, step in enumerate(summary.steps):
        times = [step.end - step.start, *(getattr(step, part) for part in _PARTS)]
        if devices is not None:
            times += [devices.steps[number].hidden, devices.steps[number].exposed]
        lines.append(f"{number:>12}" + "".join(f"{1e3 * seconds:>12.3f}" for seconds in times))
    return "\n".join(lines) + "\n"


def as_dict(summary: Summary) -> dict[str, Any]:
    """Returns the summary for `--json`."""
    steps = [asdict(step) | {"alone": step.alone} for step in summary.steps]
    result = asdict(summary) | {"late_rank": summary.late_rank, "steps": steps}
    if summary.devices is not None:
        result["devices"] |= {"hidden": summary.devices.hidden, "exposed": summary.devices.exposed}
    return result
