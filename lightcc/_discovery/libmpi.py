"""The few calls of an MPI library that are needed for meeting, without its headers.

There are two families of binary interfaces. In Open MPI (`libmpi.so.40`) a handle is the address
of an exported object; in MPICH and Intel MPI (`libmpi.so.12`) it is a number. Neither has changed
for many years.

Which library? One that the process has loaded already (mpi4py); else that of the Python
environment (the wheels put it into `sys.prefix/lib`, where mpi4py looks, too); else that which
belongs to the launcher, seen from where an ancestor's program lies; else what the loader finds.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

FUNNELED = 1  # MPI_THREAD_FUNNELED
MULTIPLE = 3  # MPI_THREAD_MULTIPLE
_ANCESTORS = 6  # How far up the launcher's own process is looked for.


class MpiError(RuntimeError):
    """MPI cannot be used; the text says why."""


@dataclass(frozen=True)
class Family:
    """One binary interface."""

    name: str
    sonames: tuple[str, ...]
    # Handles: names of exported objects, or numbers.
    comm_world: str | int
    byte: str | int


OPEN_MPI = Family(
    "Open MPI", ("libmpi.so.40", "libmpi.so.80"), "ompi_mpi_comm_world", "ompi_mpi_byte"
)
MPICH = Family("MPICH or Intel MPI", ("libmpi.so.12", "libmpich.so.12"), 0x44000000, 0x4C00010D)


class Mpi:
    """An MPI library, and MPI_COMM_WORLD in it. Thread: the one that made it."""

    def __init__(self, family: Family) -> None:
        """Loads the library; MPI is not initialized by that.

        Raises:
            MpiError: No library of the family was found.
        """
        self.path, self._library = _load(family)
        self._comm = self._handle(family.comm_world)
        self._byte = self._handle(family.byte)
        self._initialized_here = False

    def initialize(self, thread_level: int) -> None:
        """Initializes MPI unless somebody did.

        Raises:
            MpiError: MPI was finalized already, or this is not the main thread.
        """
        if self._flag("MPI_Finalized"):
            msg = "MPI was finalized in this process and cannot be used again; call init() before"
            raise MpiError(msg)
        if self._flag("MPI_Initialized"):
            return
        if threading.current_thread() is not threading.main_thread():
            msg = "under mpirun, the first init() must be called in the main thread"
            raise MpiError(msg)
        provided = ctypes.c_int()
        self._call("MPI_Init_thread", None, None, thread_level, ctypes.byref(provided))
        self._initialized_here = True

    def finalize(self) -> None:
        """Finalizes MPI if it was initialized here. Blocks: for all ranks."""
        if self._initialized_here and not self._flag("MPI_Finalized"):
            self._call("MPI_Finalize")

    def rank(self) -> int:
        """Returns this process's rank in MPI_COMM_WORLD."""
        return self._number("MPI_Comm_rank")

    def size(self) -> int:
        """Returns the number of ranks in MPI_COMM_WORLD."""
        return self._number("MPI_Comm_size")

    def broadcast(self, data: bytes) -> bytes:
        """Returns rank 0's bytes on every rank."""
        length = ctypes.c_int64(len(data))
        self._call("MPI_Bcast", ctypes.byref(length), 8, self._byte, 0, self._comm)
        buffer = ctypes.create_string_buffer(data, max(length.value, len(data)))
        self._call("MPI_Bcast", buffer, length.value, self._byte, 0, self._comm)
        return buffer.raw[: length.value]

    def gather(self, data: bytes) -> list[bytes]:
        """Returns every rank's bytes, of one length on all ranks, on rank 0; else nothing."""
        root = self.rank() == 0
        received = ctypes.create_string_buffer(len(data) * (self.size() if root else 1))
        sent = ctypes.create_string_buffer(data, len(data))
        self._call(
            "MPI_Gather",
            *(sent, len(data), self._byte),
            *(received, len(data), self._byte),
            *(0, self._comm),
        )
        if not root:
            return []
        return [received.raw[at : at + len(data)] for at in range(0, len(received), len(data))]

    def _handle(self, handle: str | int) -> ctypes.c_void_p:
        if isinstance(handle, int):
            return ctypes.c_void_p(handle)
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_byte.in_dll(self._library, handle)))

    def _flag(self, name: str) -> bool:
        flag = ctypes.c_int()
        self._call(name, ctypes.byref(flag))
        return bool(flag.value)

    def _number(self, name: str) -> int:
        number = ctypes.c_int()
        self._call(name, self._comm, ctypes.byref(number))
        return number.value

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            msg = f"{name} failed with code {code} in {self.path}"
            raise MpiError(msg)


def _load(family: Family) -> tuple[str, ctypes.CDLL]:
    tried = []
    # Open MPI's plugins look for its symbols among the global ones.
    for path, mode in _locations(family):
        try:
            return path, ctypes.CDLL(path, mode=mode | ctypes.RTLD_GLOBAL)
        except OSError as error:  # noqa: PERF203  a few attempts, once
            if mode == 0:
                tried.append(str(error))
    msg = (
        f"this process was started by {family.name}'s launcher, but its library was not found "
        f"({'; '.join(tried)}); name its directory in LD_LIBRARY_PATH (mpirun -x LD_LIBRARY_PATH)"
    )
    raise MpiError(msg)


def _locations(family: Family) -> Iterator[tuple[str, int]]:
    for soname in family.sonames:
        yield soname, os.RTLD_NOLOAD
    for directory in (Path(sys.prefix, "lib"), *_launcher_directories()):
        for soname in family.sonames:
            if (directory / soname).exists():
                yield str(directory / soname), 0
    for soname in family.sonames:
        yield soname, 0


def _launcher_directories() -> Iterator[Path]:
    """Returns `lib` beside the `bin` of each ancestor's program: one of them is the launcher."""
    pid = os.getppid()
    for _ in range(_ANCESTORS):
        try:
            program = Path(f"/proc/{pid}/exe").resolve()
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            return
        yield program.parent.parent / "lib"
