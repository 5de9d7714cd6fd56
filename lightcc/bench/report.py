"""Statistics, the table, JSON lines and the plot.

Bandwidths are those of nccl-tests: algbw = size / time, busbw = algbw times the share of the data
that must cross a link, which makes different collectives and rank counts comparable. `ratio` is a
peer's median over lightcc's: above 1, lightcc is faster.

Between hosts, `wire` is what the host that sent most sent per call, with all headers; `link` is the
share of the link's rate that this makes; and `bound` is the share that the least possible time has
in the median: that time is what must leave a host (cases.py) at the link's rate, without headers.
`formula` is what the variant's own algorithm sends, without headers; `own` is as `bound`, of that.
"""

from __future__ import annotations

import importlib
import json
import math
import statistics
from dataclasses import asdict, dataclass, replace
from typing import IO, TYPE_CHECKING, Any

from lightcc.bench.cases import size_text
from lightcc.bench.measure import MEMCPY, Samples
from lightcc.bench.peers import LIGHTCC

if TYPE_CHECKING:
    from pathlib import Path

    from lightcc.bench.cases import Case
    from lightcc.bench.cluster import Cluster, NominalHosts

_HEADER = (
    f"{'size':>12} {'count':>12} {'type':>8} {'redop':>7}  {'library':<20} "
    f"{'median':>10} {'min':>10} {'p99':>10} {'algbw':>8} {'busbw':>8} "
    f"{'iters':>6} {'errors':>6} {'ratio':>7}"
)
_UNITS = (
    f"{'(B)':>12} {'(elements)':>12} {'':>8} {'':>7}  {'':<20} "
    f"{'(us)':>10} {'(us)':>10} {'(us)':>10} {'(GB/s)':>8} {'(GB/s)':>8} "
    f"{'':>6} {'':>6} {'':>7}"
)
_LINK_HEADER = f" {'wire':>10} {'formula':>10} {'link':>6} {'own':>6} {'bound':>6}"
_LINK_UNITS = f" {'(MB)':>10} {'(MB)':>10} {'':>6} {'':>6} {'':>6}"


class PlotError(RuntimeError):
    """No plot could be made; the text says why."""


@dataclass(frozen=True)
class Row:
    """One library's result in one case."""

    collective: str
    model: str
    ranks: int
    size_bytes: int
    count: int
    tensors: int
    dtype: str
    op: str
    inplace: bool
    library: str
    mode: str
    iterations: int
    errors: int
    note: str
    median_us: float | None = None
    min_us: float | None = None
    p99_us: float | None = None
    algbw_gbs: float | None = None
    busbw_gbs: float | None = None
    ratio: float | None = None  # This median over lightcc's.
    wire_bytes: float | None = None  # Per call.
    formula_bytes: float | None = None  # What its algorithm sends, without headers.
    link_share: float | None = None
    own_share: float | None = None  # Of the time that its formula allows.
    bound_share: float | None = None
    best: bool = True  # Of the library's modes.


def percentile(values: list[float], percent: float) -> float:
    """Returns the smallest value that at least `percent` of `values` do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def make_rows(
    case: Case,
    num_ranks: int,
    measured: list[Samples],
    hosts: Cluster | NominalHosts | None = None,
    *,
    base: str = LIGHTCC,
    ratios: dict[str, float] | None = None,
) -> list[Row]:
    """Computes the rows of one case; the column `ratio` is a median over that of `base`.

    `ratios` are the shares of the elements that lossy variants send.
    """
    medians = {id(s): statistics.median(s.times_s) for s in measured if s.times_s and not s.note}
    best: dict[str, float] = {}
    for samples in measured:
        if id(samples) in medians:
            known = best.get(samples.library, math.inf)
            best[samples.library] = min(known, medians[id(samples)])
    rows = []
    for samples in measured:
        median = medians.get(id(samples))
        is_best = median is None or median == best[samples.library]
        row = _make_row(case, num_ranks, samples, median, best.get(base), is_best=is_best)
        if hosts is not None and median is not None and samples.library != MEMCPY:
            ratio = (ratios or {}).get(samples.library)
            row = _add_link(row, case, samples, hosts, ratio)
        rows.append(row)
    return rows


def _add_link(
    row: Row, case: Case, samples: Samples, hosts: Cluster | NominalHosts, ratio: float | None
) -> Row:
    median_s = (row.median_us or 0.0) * 1e-6
    wire = samples.wire_bytes / samples.calls
    num_hosts = len(hosts.names)
    formula = case.bytes_of_host(samples.library, row.ranks, num_hosts, ratio)
    minimum = case.min_bytes_of_host(row.ranks, num_hosts)
    return replace(
        row,
        wire_bytes=wire,
        formula_bytes=formula,
        link_share=wire * 8 / hosts.rate / median_s,
        own_share=None if formula is None else formula * 8 / hosts.rate / median_s,
        bound_share=None if ratio is not None else minimum * 8 / hosts.rate / median_s,
    )


def _make_row(
    case: Case,
    num_ranks: int,
    samples: Samples,
    median_s: float | None,
    lightcc_s: float | None,
    *,
    is_best: bool,
) -> Row:
    figures: dict[str, float] = {}
    if median_s is not None:
        figures = {
            "median_us": median_s * 1e6,
            "min_us": min(samples.times_s) * 1e6,
            "p99_us": percentile(samples.times_s, 99) * 1e6,
        }
        if lightcc_s is not None:
            figures["ratio"] = median_s / lightcc_s
        if case.size_bytes:
            bandwidth = case.size_bytes / median_s / 1e9
            figures["algbw_gbs"] = bandwidth
            if samples.library != MEMCPY:
                figures["busbw_gbs"] = bandwidth * case.bus_factor(num_ranks)
    return Row(
        collective=case.collective,
        model=case.model,
        ranks=num_ranks,
        size_bytes=case.size_bytes,
        count=sum(case.counts),
        tensors=len(case.counts),
        dtype=case.dtype,
        op=case.op,
        inplace=case.inplace,
        library=samples.library,
        mode=samples.mode,
        iterations=len(samples.times_s),
        errors=samples.errors,
        note=samples.note,
        best=is_best,
        **figures,
    )


def table_header(*, hosts: bool = False) -> str:
    """Returns the two lines above a table; `hosts`: with the columns of links."""
    more = (_LINK_HEADER, _LINK_UNITS) if hosts else ("", "")
    return f"#{_HEADER[1:]}{more[0]}\n#{_UNITS[1:]}{more[1]}"


def table_line(row: Row) -> str:
    """Returns one line of the table."""
    name = row.library + (f"/{row.mode}" if row.mode else "") + ("" if row.best else " *")
    start = f"{row.size_bytes:>12} {row.count:>12} {row.dtype:>8} {row.op:>7}  {name:<20} "
    if row.median_us is None:
        return start + (row.note.splitlines()[0] if row.note else "no result")
    figures = f"{row.median_us:>10.1f} {row.min_us:>10.1f} {row.p99_us:>10.1f} "
    figures += f"{_optional(row.algbw_gbs):>8} {_optional(row.busbw_gbs):>8} "
    figures += f"{row.iterations:>6} {row.errors:>6} {_optional(row.ratio):>7}"
    if row.wire_bytes is not None:
        formula = None if row.formula_bytes is None else row.formula_bytes / 1e6
        figures += f" {row.wire_bytes / 1e6:>10.2f} {_optional(formula):>10} "
        figures += f"{_optional(row.link_share):>6} {_optional(row.own_share):>6} "
        figures += f"{_optional(row.bound_share):>6}"
    return start + figures


def _optional(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def write_json(file: IO[str], kind: str, content: dict[str, Any] | Row) -> None:
    """Writes one JSON line, `kind` ("machine" or "result") first."""
    fields = asdict(content) if isinstance(content, Row) else content
    file.write(json.dumps({"kind": kind} | fields) + "\n")
    file.flush()


def load_pyplot() -> Any:
    """Returns matplotlib.pyplot, drawing into files.

    Raises:
        PlotError: matplotlib is not installed.
    """
    try:
        importlib.import_module("matplotlib").use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        msg = "--plot needs matplotlib: pip install matplotlib"
        raise PlotError(msg) from error


def save_figure(figure: Any, path: Path) -> None:
    """Writes an image file.

    Raises:
        PlotError: It cannot be written, or has an ending that is no format.
    """
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        msg = f"--plot: {error}"
        raise PlotError(msg) from error


def plot(rows: list[Row], path: Path) -> None:
    """Draws time over size, or bars for models, into an image file.

    Raises:
        PlotError: matplotlib is not installed, or cannot write this file.
    """
    pyplot = load_pyplot()
    shown = [row for row in rows if row.median_us is not None and row.best]
    figure, axes = pyplot.subplots(figsize=(9, 6), layout="constrained")
    by_size = not any(row.model for row in shown)
    for library in dict.fromkeys(row.library for row in shown):
        mine = [row for row in shown if row.library == library]
        positions = (
            [float(row.size_bytes) for row in mine] if by_size else [row.model for row in mine]
        )
        axes.plot(positions, [row.median_us for row in mine], marker="o", label=library)
    if by_size:
        axes.set_xscale("log", base=2)
        sizes = sorted({row.size_bytes for row in shown if row.size_bytes > 0})
        axes.set_xticks(sizes[:: max(1, len(sizes) // 12)], minor=False)
        axes.xaxis.set_major_formatter(lambda size, _: size_text(int(size)))
    axes.set_yscale("log")
    axes.set_xlabel("size in bytes" if by_size else "gradients of one step")
    axes.set_ylabel("median time of the slowest rank (us)")
    if shown:
        axes.set_title(f"{shown[0].collective}, {shown[0].ranks} ranks, {shown[0].dtype}")
        axes.legend()
    axes.grid(visible=True, which="both", alpha=0.3)
    save_figure(figure, path)
