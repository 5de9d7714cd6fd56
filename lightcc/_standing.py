"""Where a process stands among the ranks of a job."""

from __future__ import annotations

from typing import NamedTuple


class Standing(NamedTuple):
    """Where this process stands among the ranks, as `LIGHT_RANK` and its like tell it."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
