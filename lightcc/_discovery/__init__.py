"""Finds out which rank this process is, from what its launcher left.

In this order; one file each:

0. `LIGHT_WORKER`: an elastic job, whose epochs its launcher plans (`elastic`).
1. `LIGHT_RANK`, `LIGHT_SIZE`, `LIGHT_RENDEZVOUS` (`host:port` of the job's store) and the job's
   secret in `LIGHT_SECRET` or in the file that `LIGHT_SECRET_FILE` names: set by `lightccrun`.
2. `HOROVOD_RANK` and `HOROVOD_SIZE`, with the store and the secret of 1. Horovod's own rendezvous
   (`HOROVOD_GLOO_RENDEZVOUS_ADDR`) speaks another protocol and is no store for lightcc.
3. torchrun: `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT` (`torchrun`).
4. mpirun of Open MPI, MPICH or Intel MPI (`mpi`).
5. srun (`slurm`).
6. One process.

`init(comm=...)` with a communicator of mpi4py asks none of these (`mpi_comm`).

In 3 to 5, rank 0 serves the store and the ranks hear of it through their launcher (`meeting`), once
in the life of a process. All ranks of the job take part, those that `comm` leaves out, too.

A value that cannot be used is an error that names the variable, the value and what is allowed: a
job must not fall back to one process because of a misspelt number.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightcc._discovery import elastic, mpi, mpi_comm, slurm, torchrun, variables
from lightcc._discovery.epoch import Epoch
from lightcc._warnings import warn_caller

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lightcc._discovery.epoch import Standing
    from lightcc._discovery.mpi_comm import MpiComm

__all__ = ["Epoch", "check_not_child", "discover", "find_training", "join", "leave", "mark"]

_LAUNCHERS = (torchrun, mpi, slurm)
# What tells a process of any launcher where it stands.
_POSITION = (
    *("LIGHT_WORKER", "LIGHT_RANK", "LIGHT_RENDEZVOUS", "HOROVOD_RANK", "RANK", "MASTER_PORT"),
    *("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"),
)
# Has the process that stands there, and its place, while it is a rank.
_RANK = "LIGHTCC_RANK_OF"

# What was found out by meeting the others, which happens once.
_met: Epoch | None = None


# How many epochs of each group of ranks this process took part in: all its ranks count alike.
_epochs: dict[str, int] = {}


def join(
    join_world: Callable[[Epoch], object], comm: Sequence[int] | MpiComm | None = None
) -> None:
    """Joins the next epoch of `comm`. Blocks: for all its ranks.

    In an elastic job its number and its members come from the launcher. Elsewhere all ranks count
    the epochs that they took part in.

    Args:
        join_world: Joins the world of an epoch.
        comm: As of `discover()`.

    Raises:
        ValueError: As `discover()`; or `comm` was given in an elastic job.
        HorovodInternalError: As `discover()` and `join_world`.
        SystemExit: The launcher of an elastic job has removed this process from it, or the job's
            training has finished before it took part.
    """
    worker = elastic.worker()
    if worker is None:
        epoch = discover(comm)
        number = _epochs[epoch.group] = _epochs.get(epoch.group, -1) + 1
        join_world(replace(epoch, number=number))
        return
    if comm is not None:
        msg = f"comm is {comm!r}: not possible in an elastic job, whose ranks change"
        raise ValueError(msg)
    worker.join(join_world)


def mark(*, is_rank: bool) -> None:
    """Has children of this process know whether it is a rank, in whose place they would stand."""
    if is_rank:
        os.environ[_RANK] = f"{os.getpid()} {_position(os.environ)}"
    else:
        os.environ.pop(_RANK, None)


def check_not_child() -> None:
    """Raises ValueError where the environment is that of a rank which has started this process."""
    parent, _, position = os.environ.get(_RANK, "").partition(" ")
    if position != _position(os.environ) or parent in ("", str(os.getpid())):
        return
    if Path(f"/proc/{parent}").exists():
        names = [name for name in _POSITION if name in os.environ]
        msg = (
            f"this process has the environment of process {parent}, which is a rank and has started"
            f" it; start it without the variables of its launcher ({', '.join(names)}): then it "
            "is a job of its own"
        )
        raise ValueError(msg)


def _position(env: Mapping[str, str]) -> str:
    return " ".join(f"{name}={env[name]}" for name in _POSITION if name in env)


def find_training() -> Standing | None:
    """Returns where this process will probably stand among ranks of an elastic job that train.

    The first call of a process that comes to them later does; all else returns `None`.
    """
    worker = elastic.worker()
    return worker.find_training(os.environ) if worker is not None else None


def discover(
    comm: Sequence[int] | MpiComm | None = None, environment: Mapping[str, str] | None = None
) -> Epoch:
    """Returns where this process stands. Blocks: under somebody else's launcher, for all ranks.

    Args:
        comm: The ranks of the job that form the world, in the order of their new ranks. `None` is
            all. Or a communicator of mpi4py.
        environment: Variables by name; defaults to the process's.

    Raises:
        ValueError: A variable or `comm` cannot be used; the text names it and what is allowed.
        PeerFailedError: The ranks of somebody else's launcher did not meet.
    """
    env = os.environ if environment is None else environment
    if mpi_comm.is_mpi_comm(comm):
        return mpi_comm.join(comm, env)
    job = _job(env)
    return job if comm is None else _subset(job, comm)


def leave(*, in_order: bool) -> None:
    """Says good-bye to the launcher when the process exits.

    Args:
        in_order: Whether no world of this process ended with an error.
    """
    mpi.leave(in_order=in_order)
    slurm.leave(in_order=in_order)


def _job(env: Mapping[str, str]) -> Epoch:
    global _met
    if "LIGHT_RANK" in env or "LIGHT_SIZE" in env:
        return _epoch_of(env, "LIGHT_RANK", "LIGHT_SIZE")
    if "HOROVOD_RANK" in env or "HOROVOD_SIZE" in env:
        if not env.get("LIGHT_RENDEZVOUS"):
            _warn_alone(env)
            return Epoch()
        return _epoch_of(env, "HOROVOD_RANK", "HOROVOD_SIZE")
    for launcher in _LAUNCHERS:
        if launcher.is_launcher(env):
            _met = _met or launcher.join(env)
            return _met
    if slurm.is_batch_of_many(env):
        warn_caller(
            "this process runs in an allocation of Slurm for several tasks or nodes, but srun did "
            "not start it, so it trains alone; start it with srun --mpi=pmi2 or --mpi=pmix",
            RuntimeWarning,
        )
    return Epoch()


def _epoch_of(env: Mapping[str, str], rank_name: str, size_name: str) -> Epoch:
    rank, size = variables.rank_and_size(env, rank_name, size_name, "lightccrun")
    if size == 1:
        return Epoch()
    return Epoch(rank, size, variables.rendezvous(env), variables.secret(env))


def _warn_alone(env: Mapping[str, str]) -> None:
    if env.get("HOROVOD_SIZE", "1") != "1":
        warn_caller(
            f"HOROVOD_SIZE is {env['HOROVOD_SIZE']!r}, but LIGHT_RENDEZVOUS is not set, so this "
            "process trains alone; start it with lightccrun instead of horovodrun.",
            RuntimeWarning,
        )


def _subset(job: Epoch, comm: Any) -> Epoch:
    try:
        ranks = [int(rank) for rank in comm]
    except (TypeError, ValueError):
        msg = f"comm is {comm!r}: expected ranks, such as [0, 2], or a communicator of mpi4py"
        raise TypeError(msg) from None
    if not ranks or len(set(ranks)) != len(ranks) or not all(0 <= r < job.size for r in ranks):
        msg = f"comm is {ranks}: expected different ranks from 0 to {job.size - 1}"
        raise ValueError(msg)
    if job.rank not in ranks:
        msg = f"comm is {ranks}, which leaves out this process: rank {job.rank} of {job.size}."
        raise ValueError(msg)
    if len(ranks) == 1:
        return Epoch()
    digest = hashlib.sha256(",".join(map(str, ranks)).encode()).hexdigest()[:16]
    return replace(job, rank=ranks.index(job.rank), size=len(ranks), group=digest)
