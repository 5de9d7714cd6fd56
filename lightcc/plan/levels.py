"""How members of an all-reduce are arranged: a grid of levels, and what each sends on a level."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Indices = npt.NDArray[np.int64]

_FLAT, _PEER = 25, 13  # Microseconds of one exchange, and for each further peer in it.


@cache
def _arranged(members: int) -> tuple[int, tuple[int, ...]]:
    """Returns what the best arrangement of `members` costs in microseconds, and its widths."""
    if members == 1:
        return 0, ()
    flat = _FLAT + _PEER * (members - 1)
    best, width = flat, members
    for p in range(2, members):
        short = members % p
        owned = -(-p // short) if short else 1  # Shares of a member of the shorter row.
        cost = _FLAT + _PEER * (p - 1) + _arranged(-(-members // p))[0] * owned
        if cost <= best:
            best, width = cost, p
    if 16 * best > 15 * flat:
        return flat, (members,)
    return best, (width, *_arranged(-(-members // width))[1])


def grid_widths(members: int) -> list[int]:
    """Returns how many members a row has, from the lowest level up; one number is one exchange."""
    return list(_arranged(members)[1])


@dataclass(frozen=True, eq=False)
class Level:
    """Rows of members that exchange with each other.

    Attributes:
        width: Members of a row that is not shorter.
        peers: Messages that each member sends; shape [members].
        shares: What each sends where a row cuts its data among its members, in shares of the data;
            shape [members].
        rows: The members of each row; shape [rows, width]. A shorter row repeats its members, in
            the positions whose shares they own on the next level.
        sizes: How many of them there are; shape [rows].
    """

    width: int
    peers: Floats
    shares: Floats
    rows: Indices
    sizes: Indices
    _order: Indices  # Positions in `rows`, by member.
    _starts: Indices  # Where each member begins in it; shape [members].

    def latest(self, times: Floats) -> Floats:
        """Returns for each member the latest of `times` in its rows; both of shape [members]."""
        of_rows = times[self.rows].max(axis=1)
        return np.maximum.reduceat(of_rows[self._order // self.width], self._starts)

    def outside(self, part_of: Indices, *, whole: bool) -> Floats:
        """Returns what members of each part send to other parts, in shares of a row's data.

        Args:
            part_of: The part of each member, such as its host; shape [members].
            whole: Whether a message has all of a row's data, or a member's share.
        """
        real = np.arange(self.width) < self.sizes[:, None]
        parts, sizes = part_of[self.rows][real], np.repeat(self.sizes, self.sizes)
        row_of = np.repeat(np.arange(len(self.sizes)), self.sizes)
        keys = row_of * (int(part_of.max()) + 1) + parts
        _, which, counts = np.unique(keys, return_inverse=True, return_counts=True)
        messages = (sizes - counts[which.ravel()]).astype(np.float64)
        return _sums(parts, messages if whole else messages / sizes)


def make_levels(members: int, widths: Sequence[int]) -> list[Level]:
    """Returns the levels of a grid of `members` with rows of `widths`, from the lowest up."""
    groups = np.arange(members).reshape(1, members)
    levels = []
    for width in widths:
        size = groups.shape[1]
        count = -(-size // width)
        short = size % width or width
        positions = np.arange(count * width)
        positions[-width:] = (count - 1) * width + np.arange(width) % short
        blocks = groups[:, positions].reshape(-1, count, width)
        sizes = np.full((len(groups), count), width)
        sizes[:, -1] = short
        levels.append(_level(members, blocks.reshape(-1, width), sizes.ravel()))
        groups = blocks.transpose(0, 2, 1).reshape(-1, count)
    return levels


def _level(members: int, rows: Indices, sizes: Indices) -> Level:
    width = rows.shape[1]
    real = np.arange(width) < sizes[:, None]
    peers = np.repeat(sizes - 1.0, sizes)
    order = np.argsort(rows, axis=None, kind="stable")
    return Level(
        width=width,
        peers=_sums(rows[real], peers),
        shares=_sums(rows[real], peers / np.repeat(sizes, sizes)),
        rows=rows,
        sizes=sizes,
        _order=order,
        _starts=np.searchsorted(rows.ravel()[order], np.arange(members)),
    )


def _sums(parts: Indices, values: Floats) -> Floats:
    """Returns the sum of the values of each part."""
    return np.bincount(parts, values).astype(np.float64)
