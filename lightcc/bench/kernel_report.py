"""Rows of `bench kernels`: shares of what copies reach, bars, and the table.

A ceiling is the bandwidth of the faster of two copies of as many elements in the same run: by
lightcc's kernel and by the driver, bytes read and written. A share is a kernel's bandwidth over
that, where its bytes are those that it must read and write. Bars are figures to compare with: a row
that misses one is no failure.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightcc._figures import duration

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The shares that are to be reached.
BARS = {"select pass": 0.70, "pack": 0.80, "unpack": 0.80}
_COPIES = ("copy by kernel", "copy by driver")


@dataclass(frozen=True)
class Row:
    """One measurement on one size."""

    size: str  # "64M", or a model; "" where there is none.
    name: str
    elements: int
    bytes: int  # That one must read and write.
    rounds: int
    errors: int  # Bytes of results that are not the CPU's.
    note: str
    median_us: float | None = None
    min_us: float | None = None
    gbs: float | None = None
    share: float | None = None  # Bandwidth over the ceiling's.
    bar: float | None = None

    @property
    def is_met(self) -> bool:
        """Whether there is a bar, and the row reaches it."""
        return self.bar is not None and self.share is not None and self.share >= self.bar


def failed_row(size: str, name: str, why: str) -> Row:
    """Returns the row of what could not be measured."""
    return Row(size, name, elements=0, bytes=0, rounds=0, errors=0, note=why)


def ceiling_of(measured: Iterable[dict[str, Any]]) -> float:
    """Returns the bytes per second of the faster one of the copies."""
    rates: list[float] = [
        row["bytes"] / statistics.median(row["seconds"])
        for row in measured
        if row["name"] in _COPIES
    ]
    return max(rates)


def make_row(size: str, measured: dict[str, Any], ceiling: float | None) -> Row:
    """Computes a row of what `_core.measure_gpu()` returned; `ceiling` is of the same size."""
    median = statistics.median(measured["seconds"])
    figures: dict[str, float | None] = {}
    if measured["bytes"]:
        rate = measured["bytes"] / median
        figures["gbs"] = rate / 1e9
        if ceiling is not None:
            figures["share"] = rate / ceiling
            figures["bar"] = BARS.get(measured["name"])
    notes = [
        text
        for holds, text in (
            (measured["fits_cache"], "stays in the cache"),
            (measured["has_gaps"], "the host was too slow"),
        )
        if holds
    ]
    return Row(
        size=size,
        name=measured["name"],
        elements=measured["elements"],
        bytes=measured["bytes"],
        rounds=len(measured["seconds"]),
        errors=measured["errors"],
        note=", ".join(notes),
        median_us=median * 1e6,
        min_us=min(measured["seconds"]) * 1e6,
        **figures,
    )


def table_header() -> str:
    """Returns the line above the table."""
    start = f"#{'size':>8}  {'measurement':<18} {'median':>8} {'min':>8}"
    return f"{start} {'GB/s':>7} {'of copy':>7} {'bar':>10} {'errors':>6}"


def table_line(row: Row) -> str:
    """Returns one line of the table; bandwidths count bytes read and written."""
    start = f"{row.size or '-':>9}  {row.name:<18} "
    if row.median_us is None or row.min_us is None:
        return start + row.note
    times = f"{duration(row.median_us * 1e-6):>8} {duration(row.min_us * 1e-6):>8}"
    gbs = "-" if row.gbs is None else f"{row.gbs:.4g}"
    share = "-" if row.share is None else f"{row.share:.0%}"
    bar = "-" if row.bar is None else f"{row.bar:.0%} {'met' if row.is_met else 'missed'}"
    line = f"{start}{times} {gbs:>7} {share:>7} {bar:>10} {row.errors:>6}"
    return f"{line}  {row.note}" if row.note else line


def summary(rows: list[Row]) -> str:
    """Returns the last lines: wrong bytes, and how many bars are met."""
    barred = [row for row in rows if row.bar is not None]
    met = sum(row.is_met for row in barred)
    return f"# wrong bytes: {sum(row.errors for row in rows)}\n# bars met: {met} of {len(barred)}\n"
