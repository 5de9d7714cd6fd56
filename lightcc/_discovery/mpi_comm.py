"""`init(comm=...)` with an MPI communicator of mpi4py: its ranks meet through it.

The communicator's own methods carry an address and a secret, and the ranks of process sets. So
neither mpi4py nor an MPI library is imported here, and MPI's end is left to the caller.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from lightcc._discovery.epoch import Epoch
from lightcc._discovery.meeting import Party, meet, this_machine

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_METHODS = ("Get_rank", "Get_size", "allgather", "bcast", "gather")

# Tells this process from all others; a forked child gets another one.
_token = secrets.token_hex(8)
# What was found out with each list of processes: they serve one store for all their worlds.
_met: dict[str, Epoch] = {}


def _after_fork_in_child() -> None:
    global _token
    _token = secrets.token_hex(8)


os.register_at_fork(after_in_child=_after_fork_in_child)


class MpiComm(Protocol):
    """What is asked of a communicator; mpi4py's has it."""

    def __bool__(self) -> bool:
        """Returns whether it is not MPI.COMM_NULL."""

    def Get_rank(self) -> int:  # noqa: N802  MPI's name
        """Returns this process's rank."""

    def Get_size(self) -> int:  # noqa: N802
        """Returns the number of ranks."""

    def allgather(self, value: Any, /) -> list[Any]:
        """Returns every rank's value, in rank order."""

    def bcast(self, value: Any, /, root: int) -> Any:
        """Returns the root's value on every rank."""

    def gather(self, value: Any, /, root: int) -> list[Any] | None:
        """Returns every rank's value, in rank order, on the root; nothing on the others."""


def is_mpi_comm(value: object) -> TypeGuard[MpiComm]:
    """Returns whether a value is a communicator: mpi4py's, or one that has its methods."""
    return all(callable(getattr(value, method, None)) for method in _METHODS)


def join(mpi_comm: MpiComm, env: Mapping[str, str]) -> Epoch:
    """Returns where this process stands among the ranks of a communicator. Blocks: for all of them.

    Raises:
        ValueError: It is MPI.COMM_NULL, or an interface was named that is not there.
        PeerFailedError: Rank 0 could not serve the store, or is not reached.
    """
    if not mpi_comm:
        msg = "comm is MPI.COMM_NULL: expected a communicator that this process is in"
        raise ValueError(msg)
    rank, size = mpi_comm.Get_rank(), mpi_comm.Get_size()
    members = mpi_comm.allgather(f"{_token} {this_machine()}")
    group = "mpi-" + hashlib.sha256("\n".join(members).encode()).hexdigest()[:16]
    if size == 1:
        return Epoch(group=group)
    if group not in _met:
        one_machine = len({member.partition(" ")[2] for member in members}) == 1
        found = meet(_Channel(mpi_comm), Party(rank, size, one_machine), env)
        _met[group] = replace(found, group=group)
    return _met[group]


def agreed_sets(world: MpiComm, sets: Iterable[Any]) -> list[tuple[list[int], int | None]]:
    """Returns the process sets that all ranks of a world have asked for. Blocks: for all ranks.

    A set that is given by a communicator may have other ranks on each rank, as after a split.

    Args:
        world: The communicator of the world.
        sets: Of this rank: a communicator, or ranks in the world.

    Returns:
        Each set's ranks, and which one of this rank's it is. The same on all ranks but for that.

    Raises:
        ValueError: On all ranks: they disagree about the number of sets, or a rank asks for one set
            twice, or gives MPI.COMM_NULL.
    """
    own = [sorted(_ranks_of(given, world)) if is_mpi_comm(given) else list(given) for given in sets]
    every: list[list[list[int]]] = world.allgather(own)
    counts = [len(lists) for lists in every]
    if len(set(counts)) != 1:
        msg = f"the ranks have {counts} process sets, by rank: expected the same number on all"
        raise ValueError(msg)
    everyone = list(range(world.Get_size()))
    for rank, lists in enumerate(every):
        for i, ranks in enumerate(lists):
            entry = f"entry {i} of the process sets of rank {rank}"
            if not ranks:
                msg = f"{entry} has no ranks, or is MPI.COMM_NULL: expected ranks, or their group"
                raise ValueError(msg)
            if ranks in [everyone, *lists[:i]]:
                msg = f"Attempted to add a duplicate process set: {entry}, with the ranks {ranks}"
                raise ValueError(msg)
    agreed: list[list[int]] = []
    for ranks in itertools.chain.from_iterable(zip(*every, strict=True)):
        if ranks not in agreed:
            agreed.append(ranks)
    return [(ranks, own.index(ranks) if ranks in own else None) for ranks in agreed]


def _ranks_of(mpi_comm: MpiComm, world: MpiComm) -> list[int]:
    """Returns the ranks in the world of a communicator's members; of MPI.COMM_NULL none."""
    ranks: list[int] = mpi_comm.allgather(world.Get_rank()) if mpi_comm else []
    return ranks


class _Channel:
    """Talks through a communicator."""

    def __init__(self, mpi_comm: MpiComm) -> None:
        self._comm = mpi_comm

    def broadcast(self, text: str) -> str:
        found: str = self._comm.bcast(text, root=0)
        return found

    def gather(self, text: str) -> list[str]:
        return self._comm.gather(text, root=0) or []
