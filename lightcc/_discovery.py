"""Finds out which rank this process is, from the environment that its launcher left.

In this order:

1. `LIGHT_RANK`, `LIGHT_SIZE`, `LIGHT_RENDEZVOUS` (`host:port` of the job's store) and the job's
   secret in `LIGHT_SECRET` or in the file that `LIGHT_SECRET_FILE` names: set by `lightccrun`.
2. `HOROVOD_RANK` and `HOROVOD_SIZE`, with the store and the secret of 1. Horovod's own rendezvous
   (`HOROVOD_GLOO_RENDEZVOUS_ADDR`) speaks another protocol and is no store for lightcc.
3. One process.

A value that cannot be used is an error that names the variable, the value and what is allowed: a
job must not fall back to one process because of a misspelt number.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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


def discover(
    comm: Sequence[int] | None = None, environment: Mapping[str, str] | None = None
) -> Membership:
    """Returns where this process stands.

    Args:
        comm: The ranks of the job that form the world, in the order of their new ranks. `None` is
            all.
        environment: Variables by name; defaults to the process's.

    Raises:
        ValueError: A variable or `comm` cannot be used; the text names it and what is allowed.
    """
    env = os.environ if environment is None else environment
    job = _job(env)
    return job if comm is None else _subset(job, comm)


def _job(env: Mapping[str, str]) -> Membership:
    if "LIGHT_RANK" in env or "LIGHT_SIZE" in env:
        names = ("LIGHT_RANK", "LIGHT_SIZE")
    elif "HOROVOD_RANK" in env or "HOROVOD_SIZE" in env:
        names = ("HOROVOD_RANK", "HOROVOD_SIZE")
        if not env.get("LIGHT_RENDEZVOUS"):
            _warn_alone(env)
            return Membership()
    else:
        return Membership()
    size = _integer(env, names[1], 1, None)
    rank = _integer(env, names[0], 0, size - 1)
    if size == 1:
        return Membership()
    return Membership(rank, size, _rendezvous(env), _secret(env))


def _warn_alone(env: Mapping[str, str]) -> None:
    if env.get("HOROVOD_SIZE", "1") != "1":
        warnings.warn(
            f"HOROVOD_SIZE is {env['HOROVOD_SIZE']!r}, but LIGHT_RENDEZVOUS is not set, so this "
            "process trains alone; start it with lightccrun instead of horovodrun.",
            RuntimeWarning,
            stacklevel=5,
        )


def _integer(env: Mapping[str, str], name: str, least: int, most: int | None) -> int:
    allowed = f"an integer >= {least}" if most is None else f"an integer from {least} to {most}"
    text = env.get(name)
    if text is None:
        msg = f"{name} is not set: expected {allowed}, as lightccrun sets it."
        raise ValueError(msg)
    # int() takes "1_0" and other scripts' digits; a launcher writes none of these.
    value = int(text) if text.isascii() and text.strip().isdigit() else -1
    if value < least or (most is not None and value > most):
        msg = f'{name}="{text}": expected {allowed}'
        raise ValueError(msg)
    return value


def _rendezvous(env: Mapping[str, str]) -> str:
    text = env.get("LIGHT_RENDEZVOUS", "")
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        found = f'="{text}"' if text else " is not set"
        msg = (
            f"LIGHT_RENDEZVOUS{found}: expected host:port of the job's store, which a job of "
            "several processes needs and lightccrun serves"
        )
        raise ValueError(msg)
    return text


def _secret(env: Mapping[str, str]) -> str:
    secret = env.get("LIGHT_SECRET", "").strip()
    path = env.get("LIGHT_SECRET_FILE", "")
    if not secret and path:
        try:
            secret = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            msg = f'LIGHT_SECRET_FILE="{path}": expected a file with the secret: {error}'
            raise ValueError(msg) from error
    if not secret:
        msg = (
            "LIGHT_SECRET is not set and LIGHT_SECRET_FILE names no file with a secret: expected "
            "one of them, the same on all ranks, in a job of several processes"
        )
        raise ValueError(msg)
    return secret


def _subset(job: Membership, comm: Sequence[int]) -> Membership:
    ranks = [int(rank) for rank in comm]
    if not ranks or len(set(ranks)) != len(ranks) or not all(0 <= r < job.size for r in ranks):
        msg = f"comm is {ranks}: expected different ranks from 0 to {job.size - 1}"
        raise ValueError(msg)
    if job.rank not in ranks:
        msg = f"comm is {ranks}, which leaves out this process: rank {job.rank} of {job.size}."
        raise ValueError(msg)
    if len(ranks) == 1:
        return Membership()
    digest = hashlib.sha256(",".join(map(str, ranks)).encode()).hexdigest()[:16]
    return replace(job, rank=ranks.index(job.rank), size=len(ranks), group=digest)
