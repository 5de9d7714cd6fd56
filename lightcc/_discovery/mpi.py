"""mpirun of Open MPI, MPICH and Intel MPI: the ranks meet through the MPI library itself.

MPI carries one address and one secret. It is initialized in the main thread by the first `init()`,
kept over `shutdown()` and `init()`, and finalized when the process exits in good order:
MPI_Finalize waits for all ranks, which after an error would be for ever.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from lightcc._discovery import libmpi, variables
from lightcc._discovery.epoch import Epoch
from lightcc._discovery.meeting import GATHER_BYTES, Party, meet

if TYPE_CHECKING:
    from collections.abc import Mapping

# What a launcher sets: rank and size of the job, and how many ranks are on this machine.
_OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
_HYDRA = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS")

_mpi: libmpi.Mpi | None = None
_owner = 0  # The process that made `_mpi`; a forked child must leave it alone.


def is_launcher(env: Mapping[str, str]) -> bool:
    """Returns whether this process was started by an mpirun."""
    return _variables(env) is not None


def join(env: Mapping[str, str]) -> Epoch:
    """Returns this rank's place. Blocks: for all ranks of the job.

    Raises:
        ValueError: A variable has a value that is not allowed, or MPI cannot be used.
        PeerFailedError: Rank 0 could not serve the store, or is not reached.
    """
    names = _variables(env) or _OPEN_MPI
    rank, size = variables.rank_and_size(env, names[0], names[1], "mpirun")
    if size == 1:
        return Epoch()
    try:
        channel = _MpiChannel(_initialized(names, env))
    except libmpi.MpiError as error:
        raise ValueError(str(error)) from error
    if channel.size != size:
        msg = (
            f"{names[1]} is {size}, but MPI_COMM_WORLD of {channel.path} has {channel.size} "
            "rank(s): that library does not belong to the mpirun that started this process"
        )
        raise ValueError(msg)
    return meet(channel, Party(rank, size, env.get(names[2]) == str(size)), env)


def leave(*, in_order: bool) -> None:
    """Finalizes MPI at the exit of the process if it was initialized here.

    Args:
        in_order: Whether no world of this process ended with an error.
    """
    if _mpi is None or _owner != os.getpid():
        return
    # After an exception that nobody caught, the other ranks will not come to MPI_Finalize.
    if in_order and not hasattr(sys, "last_value"):
        _mpi.finalize()


def _variables(env: Mapping[str, str]) -> tuple[str, str, str] | None:
    for names in (_OPEN_MPI, _HYDRA):
        if all(name in env for name in names):
            return names
    return None


def _initialized(names: tuple[str, str, str], env: Mapping[str, str]) -> libmpi.Mpi:
    global _mpi, _owner
    if _mpi is None:
        _owner = os.getpid()
        _mpi = libmpi.Mpi(libmpi.OPEN_MPI if names == _OPEN_MPI else libmpi.MPICH)
    threads_off = env.get("HOROVOD_MPI_THREADS_DISABLE", "0") not in {"", "0", "false", "False"}
    _mpi.initialize(libmpi.FUNNELED if threads_off else libmpi.MULTIPLE)
    return _mpi


class _MpiChannel:
    """Talks through MPI_COMM_WORLD."""

    def __init__(self, mpi: libmpi.Mpi) -> None:
        self._mpi = mpi
        self.size = mpi.size()
        self.path = mpi.path

    def broadcast(self, text: str) -> str:
        return self._mpi.broadcast(text.encode()).decode()

    def gather(self, text: str) -> list[str]:
        rows = self._mpi.gather(text.encode().ljust(GATHER_BYTES))
        return [row.decode().rstrip() for row in rows]
