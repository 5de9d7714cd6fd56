"""Statistics, the table and JSON lines.

Bandwidths are those of nccl-tests: algbw = size / time, busbw = algbw times the share of the data
that must cross a link, which makes different collectives and rank counts comparable. `ratio` is a
peer's median over lightcc's: above 1, lightcc is faster.

Between hosts, `wire` is what the host that sent most sent per call, with all headers; `link` is the
share of the link's rate that this makes; and `bound` is the share that the least possible time has
in the median: that time is what must leave a host (cases.py) at the link's rate, without headers.
`formula` is what the variant's own algorithm sends, without headers; `own` is as `bound`, of that.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from dataclasses import asdict, dataclass, replace
from typing import IO, TYPE_CHECKING, Any

from lightcc._figures import duration, size
from lightcc.bench.cases import size_text
from lightcc.bench.measure import MEMCPY, Samples
from lightcc.bench.peers import LIGHTCC

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable
    from pathlib import Path

    from lightcc.bench.cases import Case
    from lightcc.bench.cluster import Cluster, NominalHosts

_START = f"{'size':>8}  {'library':<22} {'median':>9}"


@dataclass(frozen=True)
class Row:
    """One library's result in one case."""

    collective: str
    model: str
    ranks: int
    size_bytes: int
    count: int
    tensors: int
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
    own_share: float | None = None  # The share of the median that its formula's bytes need.
    bound_share: float | None = None
    best: bool = True  # The library's fastest mode.


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
    ratios: dict[str, float | None] | None = None,
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
        inplace=case.inplace,
        library=samples.library,
        mode=samples.mode,
        iterations=len(samples.times_s),
        errors=samples.errors,
        note=samples.note,
        best=is_best,
        **figures,
    )


#: What may stand behind the median: its width and its text.
_COLUMNS: dict[str, tuple[int, Callable[[Row], str]]] = {
    "min": (9, lambda row: _time(row.min_us)),
    "p99": (9, lambda row: _time(row.p99_us)),
    "algbw": (7, lambda row: _optional(row.algbw_gbs)),
    "busbw": (7, lambda row: _optional(row.busbw_gbs)),
    "iters": (6, lambda row: str(row.iterations)),
    "errors": (6, lambda row: str(row.errors)),
    "ratio": (6, lambda row: _optional(row.ratio)),
    "wire": (8, lambda row: _bytes(row.wire_bytes)),
    "formula": (8, lambda row: _bytes(row.formula_bytes)),
    "link": (5, lambda row: _optional(row.link_share)),
    "own": (5, lambda row: _optional(row.own_share)),
    "bound": (5, lambda row: _optional(row.bound_share)),
}
#: At most 100 columns: beside links, others give way.
_SHOWN = {
    False: ("min", "p99", "algbw", "busbw", "iters", "errors", "ratio"),
    True: ("busbw", "errors", "ratio", "wire", "formula", "link", "own", "bound"),
}


def table_header(*, hosts: bool = False) -> str:
    """Returns the line above a table; `hosts`: with the columns of links."""
    names = "".join(f" {name:>{_COLUMNS[name][0]}}" for name in _SHOWN[hosts])
    return f"#{_START[1:]}{names}"


def table_line(row: Row, *, hosts: bool = False) -> str:
    """Returns one line of the table; bandwidths are in GB/s."""
    name = row.library + (f"/{row.mode}" if row.mode else "") + ("" if row.best else " *")
    start = f"{_size(row):>8}  {name:<22} "
    if row.median_us is None:
        return start + (row.note.splitlines()[0] if row.note else "no result")
    columns = [_COLUMNS[name] for name in _SHOWN[hosts]]
    rest = "".join(f" {text(row):>{width}}" for width, text in columns)
    return f"{start}{_time(row.median_us):>9}{rest}"


def _bytes(count: float | None) -> str:
    return "-" if count is None else size(count)


def _size(row: Row) -> str:
    return size(row.size_bytes) if row.model else size_text(row.size_bytes)


def _time(microseconds: float | None) -> str:
    return "-" if microseconds is None else duration(microseconds * 1e-6)


def _optional(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.{3 if value < 0.1 else 2 if value < 1000 else 0}f}"


def open_json(path: Path | None, stack: contextlib.ExitStack) -> IO[str] | None:
    """Returns the file for JSON lines, if one is asked for; ends the program where it fails."""
    if path is None:
        return None
    try:
        return stack.enter_context(path.open("w", encoding="utf-8"))
    except OSError as error:
        sys.exit(f"lightcc.bench: --json: {error}")


def write_json(file: IO[str], kind: str, content: dict[str, Any] | Row) -> None:
    """Writes one JSON line, `kind` ("machine" or "result") first."""
    fields = asdict(content) if isinstance(content, Row) else content
    file.write(json.dumps({"kind": kind} | fields) + "\n")
    file.flush()
