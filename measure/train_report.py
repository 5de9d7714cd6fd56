"""The table and JSON rows of emulated training steps.

`efficiency` is the median step without communication (`none`) over the median step; `wire` is what
the host that sent most sent per step, with all headers; `CPU` is processor time per step and rank,
of all its threads, beside which the emulated GPU costs nothing. `predicted` is the step of
`lightcc.plan`, and `error` that of the prediction against the median.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightcc.bench.layer_table import Training

_WITHOUT = "none"
_PUBLISHED = {"horovod_tcp": "Horovod, TCP", "lightcc_harp": "LightCC, HARP"}
_HEADER = (
    f"# {'variant':<26} {'link':>9} {'step':>10} {'min':>10} {'efficiency':>10} "
    f"{'wire':>9} {'CPU':>8} {'steps':>6} {'errors':>6} {'predicted':>10} {'error':>7}\n"
    f"# {'':<26} {'(Gb/s)':>9} {'(ms)':>10} {'(ms)':>10} {'':>10} "
    f"{'(MB)':>9} {'(s)':>8} {'':>6} {'':>6} {'(ms)':>10}"
)


@dataclass
class Steps:
    """What one variant did on one model."""

    variant: str
    library: str
    link_bps: float  # Unscaled.
    predicted_s: float | None = None  # A step's, scaled; None: of what is not lightcc.
    times_s: list[float] = field(default_factory=list)  # Slowest rank of each step.
    cpu_s: list[float] = field(default_factory=list)  # A rank's time for a step, by turn.
    errors: int = 0
    note: str = ""
    calls: int = 0  # Steps that sent something, also those that are not timed.
    wire_bytes: int = 0


@dataclass(frozen=True)
class Row:
    """One variant's result on one model."""

    model: str
    variant: str
    library: str
    hosts: int
    ranks: int
    time_scale: float
    link_bps: float  # Unscaled.
    gradient_bytes: int
    compute_s: float  # A step's, scaled, as the table of layers has it.
    steps: int
    errors: int
    note: str
    predicted_s: float | None
    step_s: float | None = None
    min_s: float | None = None
    efficiency: float | None = None
    wire_bytes: float | None = None
    cpu_s: float | None = None


def make_rows(training: Training, measured: list[Steps], run: dict[str, Any]) -> list[Row]:
    """Computes the rows of one model; `run` are the arguments of the command."""
    medians = {
        steps.variant: statistics.median(steps.times_s)
        for steps in measured
        if steps.times_s and not steps.note
    }
    alone = medians.get(_WITHOUT)
    rows = []
    for steps in measured:
        figures: dict[str, float | None] = {}
        median = medians.get(steps.variant)
        if median is not None:
            figures = {
                "step_s": median,
                "min_s": min(steps.times_s),
                "efficiency": None if alone is None else alone / median,
                "wire_bytes": steps.wire_bytes / max(1, steps.calls),
                "cpu_s": statistics.mean(steps.cpu_s),
            }
        rows.append(
            Row(
                model=training.name,
                variant=steps.variant,
                library=steps.library,
                hosts=run["hosts"],
                ranks=run["hosts"] * run["ranks_per_host"],
                time_scale=run["time_scale"],
                link_bps=steps.link_bps,
                gradient_bytes=training.gradient_bytes,
                compute_s=training.step_s * run["time_scale"],
                steps=len(steps.times_s),
                errors=steps.errors,
                note=steps.note,
                predicted_s=steps.predicted_s,
                **figures,
            )
        )
    return rows


def heading(training: Training, line_bps: float) -> str:
    """Returns the lines above a model's table."""
    published = [
        f"{label} {efficiency:.1%}"
        for what, label in _PUBLISHED.items()
        if (efficiency := training.published_efficiency(what)) is not None
    ]
    lines = [
        f"# {training.name}: {training.gradient_bytes / 1e6:.1f} MB of gradients, "
        f"{training.step_s * 1e3:.1f} ms of computing on one {training.gpu} (unscaled), "
        f"line {line_bps / 1e9:g} Gb/s",
        f"#   step: {training.source}",
    ]
    if published:
        lines.append(f"#   published for {training.gpus} GPUs, {training.link}: "
                     + ", ".join(published))  # fmt: skip
    return "\n".join(lines) + "\n" + _HEADER


def table_line(row: Row) -> str:
    """Returns one line of the table."""
    start = f"  {row.variant:<26} {row.link_bps / 1e9:>9.3g} "
    if row.step_s is None or row.min_s is None:
        return start + (row.note.splitlines()[0] if row.note else "no result")
    efficiency = "-" if row.efficiency is None else f"{row.efficiency:.1%}"
    predicted = ""
    if row.predicted_s is not None:
        error = row.predicted_s / row.step_s - 1
        predicted = f" {row.predicted_s * 1e3:>10.1f} {error:>+7.1%}"
    return (
        f"{start}{row.step_s * 1e3:>10.1f} {row.min_s * 1e3:>10.1f} {efficiency:>10} "
        f"{(row.wire_bytes or 0) / 1e6:>9.1f} {row.cpu_s:>8.3f} {row.steps:>6} {row.errors:>6}"
        f"{predicted}"
    )
