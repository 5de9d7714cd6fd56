"""What discovery finds out: a world to be, and where a process stands in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Standing(NamedTuple):
    """Where this process stands among the ranks, as `LIGHT_RANK` and its like tell it."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


@dataclass(frozen=True)
class Epoch:
    """Where this process stands in a world, before any other rank was heard.

    Attributes:
        rank: Of this process, 0 <= rank < size.
        size: Number of ranks.
        rendezvous: `host:port` of the job's store; empty in a world of one process.
        secret: Shared by the job's ranks; empty in a world of one process.
        group: Tells apart worlds of different ranks that share one store.
        number: Tells apart worlds of one group that follow one another. Like the group it is the
            same on all ranks.
    """

    rank: int = 0
    size: int = 1
    rendezvous: str = ""
    secret: str = ""
    group: str = "all"
    number: int = 0

    @property
    def prefix(self) -> str:
        """How the keys of this world begin in the store."""
        return f"world/{self.group}/{self.number}/"
