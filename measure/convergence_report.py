"""Keeps what measure/convergence.py has run, a line of JSON for each run; makes tables and plots.

A table has a row for each variant and ratio: the mean over seeds, their standard deviation, and the
mean difference to the dense run of the same seed with its 95% confidence interval (Student's t of
the differences; that seeds come in pairs takes away what they have in common).
"""

from __future__ import annotations

import importlib
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

#: What a table shows, and the factor to that.
UNITS = {
    "fashion": ("accuracy, %", 100.0),
    "convolutions": ("accuracy, %", 100.0),
    "text": ("bits/character", 1.0),
    "transformer": ("bits/character", 1.0),
    "pieces": ("bits/piece", 1.0),
}
DIGITS = {"fashion": 2, "convolutions": 2, "text": 4, "transformer": 4, "pieces": 4}
#: 97.5% quantiles of Student's t for 1, 2, ... degrees of freedom.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
LABELS = {
    "dense": "dense",
    "int8": "int8",
    "int4": "int4",
    "local steps": "local steps",
    "local steps after int4": "local steps after a fifth in int4",
    "sparse local steps": "local steps, top-k at 5%",
    "sparse local steps after int4": "local steps, top-k at 5%, after a fifth in int4",
    "local steps, 4": "means, int8, every 4",
    "local steps, 16": "means, int8, every 16",
    "DiLoCo, 4": "DiLoCo's numbers, int8, every 4",
    "DiLoCo, 16": "DiLoCo's numbers, int8, every 16",
    "sharded": "FSDP2",
    "sharded, int8 and int4": "FSDP2, int8 weights, int4 gradients",
    "sharded, int4 differences and int4": "FSDP2, int4 differences, int4 gradients",
    "HSDP, int4": "HSDP, int4",
    "feedback": "top-k",
    "warm-up": "top-k, warm-up",
    "auto": "auto",
    "default": "`LIGHT_TOPK_ALLREDUCE=1`",
}
#: What plots show, in black and matplotlib's ten colours; no task has all of it.
PLOTTED = (
    "dense",
    "int8",
    "int4",
    "local steps",
    "local steps after int4",
    "sparse local steps",
    "sharded, int8 and int4",
    "HSDP, int4",
    "feedback",
    "auto",
    "default",
)
#: What has no ratio.
WHOLE = tuple(it for it in LABELS if it not in ("feedback", "warm-up"))

Row = dict[str, Any]
Setting = tuple[str, float]  # Variant and ratio.


class Difference(NamedTuple):
    """To the dense runs of the same seeds. `half_width` is NaN for a single pair."""

    mean: float
    half_width: float


def _subject(task: str) -> str:
    """Returns the task that another one varies, or itself."""
    return task.partition(", ")[0]


def _order(row: Row) -> tuple[str, float, int, int]:
    """Says where a run stands in a table; no two runs stand at the same."""
    return row["task"], -row["ratio"], list(LABELS).index(row["variant"]), row["seed"]


def read(kept: Path) -> list[Row]:
    """Returns the runs of a file; none, where there is no such file."""
    return [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []


def keep(results: Path, kept: Path) -> int:
    """Puts runs into the file of those that are kept, instead of what it has of the same ones.

    Args:
        results: Folder of JSON files, one for each run.
        kept: The file.
    """
    rows = {_order(row): row for row in read(kept)}
    new = [json.loads(path.read_text()) for path in results.glob("*.json")]
    rows |= {_order(row): row for row in new}
    kept.write_text("".join(json.dumps(rows[order]) + "\n" for order in sorted(rows)))
    sys.stdout.write(f"{kept}: {len(rows)} runs, {len(new)} of them from {results}\n")
    return 0


def load(kept: Path) -> dict[str, dict[Setting, list[Row]]]:
    """Returns the runs that are kept, by task, then by variant and ratio, in a table's order."""
    tasks: dict[str, dict[Setting, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in sorted(read(kept), key=_order):
        tasks[row["task"]][row["variant"], row["ratio"]].append(row)
    return tasks


def difference(rows: Iterable[Row], dense: Iterable[Row], points: float) -> Difference | None:
    """Returns how `rows` differ from the dense runs of their seeds, if there are some."""
    base = {row["seed"]: row["result"] for row in dense}
    pairs = [points * (row["result"] - base[row["seed"]]) for row in rows if row["seed"] in base]
    if not pairs:
        return None
    if len(pairs) == 1:
        return Difference(pairs[0], math.nan)
    error = statistics.stdev(pairs) / math.sqrt(len(pairs))
    return Difference(statistics.mean(pairs), STUDENT[len(pairs) - 2] * error)


def _bytes(count: float) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def table(task: str, settings: dict[Setting, list[Row]]) -> str:
    """Returns the table of one task, in Markdown."""
    unit, points = UNITS[_subject(task)]
    digits = DIGITS[_subject(task)]
    dense = settings.get(("dense", 1.0), [])
    heads = ["", "ratio", "seeds", unit, "std", "difference to dense", "sent per step and rank"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for (variant, ratio), rows in settings.items():
        finite = [row for row in rows if row["result"] is not None]
        cells = [LABELS[variant], "" if variant in WHOLE else f"{ratio:.1%}", str(len(rows))]
        if len(finite) < len(rows):
            cells += [f"{len(rows) - len(finite)} diverged", "", ""]
        else:
            values = [points * row["result"] for row in finite]
            spread = f"{statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
            against = None if variant == "dense" else difference(finite, dense, points)
            cells += [f"{statistics.mean(values):.{digits}f}", spread]
            cells += [_shown(against, statistics.mean(values), task)]
        cells.append(_bytes(statistics.mean(row["bytes_per_step"] for row in rows)))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def tables(tasks: dict[str, dict[Setting, list[Row]]]) -> dict[str, str]:
    """Returns the tables of a page, by what is between their marks.

    What varies a task has one table, "TASK, varied", whose first column says what is varied.
    """
    found: dict[str, str] = {}
    for task, settings in tasks.items():
        rows = table(task, settings)
        subject, _, varied = task.partition(", ")
        if not varied:
            found[task] = rows
            continue
        head, line, *body = rows.splitlines()
        before = found.get(f"{subject}, varied", f"| training {head}\n|---{line}")
        found[f"{subject}, varied"] = "\n".join([before, *(f"| {varied} {row}" for row in body)])
    return found


def _shown(against: Difference | None, mean: float, task: str) -> str:
    if against is None:
        return ""
    digits = DIGITS[_subject(task)]
    text = f"{against.mean:+.{digits}f}"
    if not math.isnan(against.half_width):
        text += f" +- {against.half_width:.{digits}f}"
    if UNITS[_subject(task)][0].startswith("bits/"):
        text += f" ({100 * against.mean / (mean - against.mean):+.1f}%)"
    return text


def plot(task: str, settings: dict[Setting, list[Row]], path: Path) -> None:
    """Draws the mean of every variant over the steps, one picture for each ratio.

    The last picture has all results over the bytes that were sent.

    Raises:
        ImportError: matplotlib is not installed.
    """
    importlib.import_module("matplotlib").use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    # The same runs give the same file.
    pyplot.rcParams.update({"svg.hashsalt": "lightcc", "svg.fonttype": "none", "font.size": 9})
    unit, points = UNITS[task]
    ratios = sorted({ratio for variant, ratio in settings if variant not in WHOLE}, reverse=True)
    ratios = ratios or [1.0]
    figure, panels = pyplot.subplots(1, len(ratios) + 1, figsize=(9, 4), sharey=True, squeeze=False)
    for panel, ratio in zip(panels[0][:-1], ratios, strict=True):
        for variant in PLOTTED:
            rows = settings.get((variant, 1.0 if variant in WHOLE else ratio), [])
            curves = [row["curve"] for row in rows if row["result"] is not None]
            if not curves:
                continue
            steps = [step for step, _ in curves[0]]
            values = [[points * curve[at][1] for curve in curves] for at in range(len(steps))]
            color = _color(variant)
            line = {"label": LABELS[variant].strip("`"), "ls": "--" if variant == "dense" else "-"}
            panel.plot(steps, [statistics.mean(v) for v in values], color=color, lw=1.2, **line)
            panel.fill_between(steps, [min(v) for v in values], [max(v) for v in values],
                               color=color, alpha=0.12, lw=0)  # fmt: skip
        panel.set_title("" if ratio == 1.0 else f"top-k of {ratio:.1%}")
        panel.set_xlabel("step")
        panel.grid(alpha=0.3)
    _plot_bytes(panels[0][-1], settings, points)
    panels[0][0].set_ylabel(unit)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=7, loc="lower center", ncols=4, frameon=False)
    figure.tight_layout(rect=(0, 0.05 * math.ceil(len(labels) / 4), 1, 1))
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _color(variant: str) -> str:
    return "black" if variant == "dense" else f"C{PLOTTED.index(variant) - 1}"


def _plot_bytes(panel: Any, settings: dict[Setting, list[Row]], points: float) -> None:
    """Draws a bar from the smallest to the largest result of each setting, and their mean."""
    for (variant, _), rows in settings.items():
        values = [points * row["result"] for row in rows if row["result"] is not None]
        if values and variant in PLOTTED:
            middle = statistics.mean(values)
            panel.errorbar(
                [statistics.mean(row["bytes_per_step"] for row in rows)],
                [middle],
                yerr=[[middle - min(values)], [max(values) - middle]],
                fmt="o",
                ms=4,
                color=_color(variant),
            )
    panel.set_xscale("log")
    panel.set_title("at the end")
    panel.set_xlabel("bytes per step and rank")
    panel.grid(alpha=0.3)


def put(page: str, name: str, shown: str) -> str:
    """Returns a page with a table between its marks.

    Raises:
        SystemExit: The page has no such marks.
    """
    begin, end = f"<!-- table: {name} -->\n", "<!-- end -->"
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        sys.exit(f"the page has no <!-- table: {name} --> ... <!-- end -->")
    return f"{before}{begin}{shown}\n{end}{after}"


def main(kept: Path, write: Path | None) -> int:
    """Prints the tables; or puts them into a page between their marks, and plots beside it."""
    tasks = load(kept)
    if not tasks:
        sys.stderr.write(f"no runs in {kept}\n")
        return 1
    every = [row for settings in tasks.values() for rows in settings.values() for row in rows]
    wrong = [row for row in every if not row["replicas_agree"]]
    if wrong:
        sys.stderr.write(f"replicas differ in {wrong[0]}\n")
        return 1
    page = "" if write is None else write.read_text()
    for name, text in tables(tasks).items():
        if write is None:
            sys.stdout.write(f"{name}\n\n{text}\n\n")
            continue
        shown = text
        if name in UNITS:
            picture = f"convergence-{name}.svg"
            plot(name, tasks[name], write.with_name(picture))
            shown += f"\n\n![{UNITS[name][0]}, by step]({picture})"
        page = put(page, name, shown)
    if write is not None:
        write.write_text(page)
    return 0
