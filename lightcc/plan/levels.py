"""How members of an all-reduce are arranged: a grid of levels, and what each sends on a level."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Indices = npt.NDArray[np.int64]


class Level:
    """Rows of members that exchange with each other.

    Attributes:
        width: Shares that each row cuts its data into.
        sizes: Members of each row, at most `width`; shape [rows].
        peers: Messages that each member sends; shape [members].
        shares: What each sends where messages have shares, by the row's data; shape [members].
    """

    def __init__(self, rows: Indices, sizes: Indices) -> None:
        """Takes rows of shape [rows, width], of which the first `sizes` positions count."""
        self.width, self.sizes = rows.shape[1], sizes
        self._row, position = np.nonzero(np.arange(self.width) < sizes[:, None])
        self._member = rows[self._row, position]  # Row by row.
        self._size = size = sizes[self._row]
        owned = (position + 1) * self.width // size - position * self.width // size
        # It scatters what others own, and gathers what it owns itself to each of them.
        sent = (self.width - owned) / np.maximum(size - 1, 1) + owned
        self._share = sent / (2 * self.width)  # A message's, in the mean of both.
        self._begins = np.cumsum(sizes) - sizes
        alone = np.arange(int(rows.max()) + 1)
        self.peers = self.outside(alone, whole=True)
        self.shares = self.outside(alone, whole=False)

    def latest(self, times: Floats) -> Floats:
        """Returns for each member the latest of `times` in its rows; both of shape [members]."""
        found = np.zeros_like(times)
        of_rows = np.maximum.reduceat(times[self._member], self._begins)
        np.maximum.at(found, self._member, of_rows[self._row])
        return found

    def outside(self, part_of: Indices, *, whole: bool) -> Floats:
        """Returns what members of each part send to other parts, in shares of a row's data.

        A part is such as a host. A message has the `whole` of a row's data, or a member's share.
        """
        parts = part_of[self._member]
        keys = self._row * (int(part_of.max()) + 1) + parts
        _, which, counts = np.unique(keys, return_inverse=True, return_counts=True)
        messages = self._size - counts[which]
        sent = messages if whole else messages * self._share
        return np.bincount(parts, sent).astype(np.float64)


def make_levels(members: int, widths: Sequence[int]) -> list[Level]:
    """Returns the levels of a grid of `members` with rows of `widths`, from the lowest up."""
    groups = np.arange(members).reshape(1, members)
    levels = []
    for width in widths:
        size = groups.shape[1]
        count = -(-size // width)
        last = (count - 1) * width
        short = size - last
        positions = np.arange(count * width).clip(max=size - 1)
        sizes = np.full((len(groups), count), width)
        sizes[:, -1] = short
        levels.append(Level(groups[:, positions].reshape(-1, width), sizes.ravel()))
        # The owners of each share of the data form a group of the next level.
        positions[last:] = last + ((np.arange(width) + 1) * short - 1) // width
        owners = groups[:, positions].reshape(-1, count, width)
        groups = owners.transpose(0, 2, 1).reshape(-1, count)
    return levels
