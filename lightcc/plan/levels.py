"""How members of an all-reduce are arranged: a grid of levels, and what each sends on a level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Level:
    """Rows of members that exchange with each other.

    Attributes:
        width: Members of a row that is not shorter.
        peers: Messages that each member sends; shape [members].
        shares: What each sends where a row cuts its data into shares of its members, as the mean of
            scattering and gathering, by the row's data; shape [members].
        rows: The members of each row; shape [rows, width]. A shorter row repeats its members.
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
        real, sizes, sent = _messages(self.width, self.sizes)
        parts = part_of[self.rows][real]
        row_of = np.repeat(np.arange(len(self.sizes)), self.sizes)
        keys = row_of * (int(part_of.max()) + 1) + parts
        _, which, counts = np.unique(keys, return_inverse=True, return_counts=True)
        messages = (sizes - counts[which.ravel()]).astype(np.float64)
        return _sums(parts, messages if whole else messages * sent)


def make_levels(members: int, widths: Sequence[int]) -> list[Level]:
    """Returns the levels of a grid of `members` with rows of `widths`, from the lowest up."""
    groups = np.arange(members).reshape(1, members)
    levels = []
    for width in widths:
        size = groups.shape[1]
        count = -(-size // width)
        last = (count - 1) * width
        short = size - last
        positions = np.arange(count * width)
        positions[last:] = last + np.arange(width) % short
        blocks = groups[:, positions].reshape(-1, width)
        sizes = np.full((len(groups), count), width)
        sizes[:, -1] = short
        levels.append(_level(blocks, sizes.ravel()))
        positions[last:] = last + _owners(width, short)
        owners = groups[:, positions].reshape(-1, count, width)
        groups = owners.transpose(0, 2, 1).reshape(-1, count)
    return levels


def _level(rows: Indices, sizes: Indices) -> Level:
    width = rows.shape[1]
    real, size_of, sent = _messages(width, sizes)
    order = np.argsort(rows, axis=None, kind="stable")
    return Level(
        width=width,
        peers=_sums(rows[real], size_of - 1.0),
        shares=_sums(rows[real], sent * (size_of - 1)),
        rows=rows,
        sizes=sizes,
        _order=order,
        _starts=np.searchsorted(rows.ravel()[order], np.arange(int(rows.max()) + 1)),
    )


def _owners(width: int, size: int) -> Indices:
    """Returns the owner of each of `width` shares in a row of `size` members; shape [width]."""
    return ((np.arange(width) + 1) * size - 1) // width


def _messages(width: int, sizes: Indices) -> tuple[npt.NDArray[np.bool_], Indices, Floats]:
    """Returns what members of rows send to each other.

    Args:
        width: Shares of a row's data.
        sizes: Members of each row; shape [rows].

    Returns:
        Which positions of the rows have a member, of shape [rows, width]. For each of those the
        members of its row, and a message's mean share of the row's data.
    """
    real = np.arange(width) < sizes[:, None]
    owned = {size: np.bincount(_owners(width, size)) for size in set(sizes.tolist())}
    shares = np.concatenate([owned[size] for size in sizes.tolist()])
    size_of = np.repeat(sizes, sizes)
    others = np.maximum(size_of - 1, 1)
    # It scatters what others own, and gathers what it owns itself to each of them.
    sent = ((width - shares) / others + shares) / (2 * width)
    return real, size_of, sent.astype(np.float64)


def _sums(parts: Indices, values: npt.NDArray[np.floating[Any]]) -> Floats:
    """Returns the sum of the values of each part."""
    return np.bincount(parts, values).astype(np.float64)
