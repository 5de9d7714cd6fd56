"""srun: the ranks meet through PMI-2 or PMIx, or at an address that the user named.

`srun --mpi=pmi2` gives every task a connection to Slurm's own key-value store, which `libpmi2.so`
speaks; `srun --mpi=pmix` one to a server of PMIx (`pmix`). With any other `--mpi`, a job script
chooses a port and writes a secret, and rank 0 serves the store there:

    export LIGHT_RENDEZVOUS=$(hostname):29400 LIGHT_SECRET_FILE=$PWD/secret.$SLURM_JOB_ID
    (umask 077; head -c 32 /dev/urandom | base64 > $LIGHT_SECRET_FILE)
    srun python train.py

There is no other way: a secret that anyone could guess would be none.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

from lightcc import _addresses
from lightcc._binding import _core
from lightcc._discovery import variables
from lightcc._discovery.epoch import Epoch
from lightcc._discovery.libraries import open_library
from lightcc._discovery.meeting import Party, meet
from lightcc._discovery.pmix import Pmix

if TYPE_CHECKING:
    from collections.abc import Mapping

_RANK = "SLURM_PROCID"
_SIZE = "SLURM_STEP_NUM_TASKS"  # Only srun sets it, not sbatch for its script.
_NODES = "SLURM_STEP_NUM_NODES"
_LIBRARIES = ("libpmi2.so.0", "libpmi2.so")
_PIECE = 256  # Characters of one value; PMI-2 allows 1024.
_MAX_VALUE_BYTES = 1024

_pmi: _Pmi2 | Pmix | None = None
_owner = 0  # The process that made `_pmi`; a forked child must leave it alone.
_servers: list[_core.StoreServer] = []


def is_launcher(env: Mapping[str, str]) -> bool:
    """Returns whether this process is a task of srun."""
    return _RANK in env and _SIZE in env


def is_batch_of_many(env: Mapping[str, str]) -> bool:
    """Returns whether this process runs beside srun, where there is room for several ranks."""
    if "SLURM_JOB_ID" not in env or _SIZE in env:
        return False
    counts = (env.get("SLURM_NTASKS", "1"), env.get("SLURM_JOB_NUM_NODES", "1"))
    return any(count != "1" for count in counts)


def join(env: Mapping[str, str]) -> Epoch:
    """Returns this rank's place. Blocks: under PMI-2 and PMIx, for all ranks of the job.

    Raises:
        ValueError: A variable has a value that is not allowed, or there is no way to meet.
        EngineError: On rank 0: LIGHT_RENDEZVOUS names no address of its host that is free.
        PeerFailedError: Rank 0 could not serve the store, or is not reached.
    """
    rank, size = variables.rank_and_size(env, _RANK, _SIZE, "srun")
    if size == 1:
        return Epoch()
    if env.get("LIGHT_RENDEZVOUS"):
        return _meet_at_address(env, rank, size)
    if "PMI_FD" not in env and "PMIX_NAMESPACE" not in env:
        msg = (
            f"srun started {size} tasks without a way to meet: start them with srun --mpi=pmi2 or "
            "--mpi=pmix, or set LIGHT_RENDEZVOUS (host:port, a free port of the first task's host) "
            "and LIGHT_SECRET_FILE (a file that all tasks can read, and nobody else)"
        )
        raise ValueError(msg)
    return meet(_connected(env, size), Party(rank, size, env.get(_NODES) == "1"), env)


def leave(*, in_order: bool) -> None:
    """Tells Slurm that this task ends as it should.

    Args:
        in_order: Whether no world of this process ended with an error.
    """
    if _pmi is not None and _owner == os.getpid() and in_order:
        _pmi.finalize()


def _meet_at_address(env: Mapping[str, str], rank: int, size: int) -> Epoch:
    address, secret = variables.rendezvous(env), variables.secret(env)
    if rank == 0:
        host, port = _addresses.split_host_and_port(address)
        found = [a for family, a in _addresses.resolve(host) if _addresses.is_own(family, a)]
        if not found:
            msg = (
                f'LIGHT_RENDEZVOUS="{address}": expected an address of the host of rank 0, '
                f"{os.uname().nodename}, which serves the store; it has "
                f"{_addresses.candidate_text()}"
            )
            raise ValueError(msg)
        _servers.append(_core.StoreServer(_addresses.host_and_port(found[0], port), secret))
    return Epoch(rank, size, address, secret)


def _connected(env: Mapping[str, str], size: int) -> _Pmi2 | Pmix:
    global _pmi, _owner
    if _pmi is None:
        _pmi, _owner = _Pmi2() if "PMI_FD" in env else Pmix(size), os.getpid()
    return _pmi


class _Pmi2:
    """Talks through Slurm's key-value store. Values are hexadecimal: its protocol knows ; and =."""

    def __init__(self) -> None:
        self._library = open_library(
            _LIBRARIES, "pmi2", "set LIGHT_RENDEZVOUS and LIGHT_SECRET_FILE"
        )
        numbers = [ctypes.c_int() for _ in range(4)]  # spawned, size, rank, appnum
        self._call("PMI2_Init", *(ctypes.byref(number) for number in numbers))
        self._size, self._rank = numbers[1].value, numbers[2].value
        self._talks = 0

    def broadcast(self, text: str) -> str:
        self._talks += 1
        pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
        if self._rank == 0:
            self._put("count", str(len(pieces)))
            for i, piece in enumerate(pieces):
                self._put(str(i), piece)
        self._call("PMI2_KVS_Fence")
        return "".join(self._get(str(i)) for i in range(int(self._get("count"))))

    def gather(self, text: str) -> list[str]:
        self._talks += 1
        self._put(str(self._rank), text)
        self._call("PMI2_KVS_Fence")
        return [self._get(str(rank)) for rank in range(self._size)] if self._rank == 0 else []

    def finalize(self) -> None:
        self._call("PMI2_Finalize")

    def _key(self, name: str) -> bytes:
        return f"lightcc/{self._talks}/{name}".encode()

    def _put(self, name: str, text: str) -> None:
        self._call("PMI2_KVS_Put", self._key(name), text.encode().hex().encode())

    def _get(self, name: str) -> str:
        value, length = ctypes.create_string_buffer(_MAX_VALUE_BYTES), ctypes.c_int()
        self._call(
            "PMI2_KVS_Get", *(None, -1, self._key(name)), *(value, len(value), ctypes.byref(length))
        )
        return bytes.fromhex(value.value.decode()).decode()

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            msg = f"{name} failed with code {code}; was another PMI library used in this process?"
            raise ValueError(msg)
