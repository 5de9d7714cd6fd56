"""What discovery finds out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Membership:
    """Where this process stands in its job, before any other rank was heard.

    Attributes:
        rank: Of this process, 0 <= rank < size.
        size: Number of ranks.
        rendezvous: `host:port` of the job's store; empty in a job of one process.
        secret: Shared by the job's ranks; empty in a job of one process.
        group: Tells apart worlds that share one store; the same on all ranks of one world.
    """

    rank: int = 0
    size: int = 1
    rendezvous: str = ""
    secret: str = ""
    group: str = "all"
