"""A summary as text, for programs, and as a picture."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lightcc._figures import duration, load_pyplot, save_figure, size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lightcc.timeline.summary import Summary

_PARTS = ("alone", "hidden", "exposed", "waiting")
_MEANING = {
    "alone": "nothing ran: this rank computed",
    "hidden": "communication, while this rank had tensors left to hand in",
    "exposed": "communication, after it had handed in its last tensor",
    "waiting": "all was handed in: other ranks were late",
}
_COLORS = {"alone": "#9aa0a6", "hidden": "#5b9bd5", "exposed": "#ed7d31", "waiting": "#c00000"}
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


def as_dict(summary: Summary) -> dict[str, Any]:
    """Returns the summary for `--json`."""
    steps = [asdict(step) | {"alone": step.alone} for step in summary.steps]
    return asdict(summary) | {"late_rank": summary.late_rank, "steps": steps}


def plot(summaries: Sequence[Summary], path: Path) -> None:
    """Draws where each rank's average step went into `path`.

    Raises:
        PlotError: matplotlib is not installed, or cannot write this file.
    """
    height = 1.5 + 0.4 * len(summaries)
    figure, axes = load_pyplot().subplots(figsize=(8, height), layout="constrained")
    names = [f"rank {summary.rank}" for summary in summaries]
    left = [0.0] * len(summaries)
    for part in _PARTS:
        widths = [
            1e3 * sum(getattr(step, part) for step in one.steps) / max(len(one.steps), 1)
            for one in summaries
        ]
        axes.barh(names, widths, left=left, label=part, color=_COLORS[part])
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("average step (ms)")
    axes.legend(ncols=len(_PARTS), loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    save_figure(figure, path)
