"""Stretches of time: what they cover, counted once where they overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Returns the intervals without overlaps, in order."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def covered(merged: Sequence[Interval], start: float, end: float) -> float:
    """Returns how much of [start, end] the intervals of a union cover."""
    return sum(max(min(end, last) - max(start, first), 0.0) for first, last in merged)


def total(merged: Sequence[Interval]) -> float:
    """Returns how long the intervals of a union are together."""
    return sum(end - start for start, end in merged)
