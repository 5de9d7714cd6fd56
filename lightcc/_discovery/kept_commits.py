"""Commits in memory that the agent of a host holds, so that they outlive the ranks that made them.

The agent makes three files in memory (memfd_create(2)), which every worker that it starts inherits:
an index, and two for commits in turn. A writer voids the entry of the older commit, writes its
file, and enters it again, so one whole commit is there at any moment. A lock keeps a writer that
was stopped, and another one in its place, from writing at the same time. Reading needs no lock:
what is newest is never written, and its checksum is compared.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

#: Descriptors of the index and of its two files, as the agent sets it.
VARIABLE = "LIGHT_COMMIT_FDS"
_DESCRIPTORS = 3
_ENTRY = struct.Struct("<QQI")  # Version, bytes, CRC-32; all 0: there is no commit.
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class _Entry:
    version: int
    size: int
    checksum: int


class KeptCommits:
    """What the agent of this host holds.

    Versions are positive, and a later commit has a higher one.

    Files are opened anew, since descriptors that processes have inherited share one lock.
    """

    def __init__(self, index: int, commits: tuple[int, int]) -> None:
        """Opens them.

        Raises:
            OSError: They cannot be opened.
        """
        self._index = os.open(f"/proc/self/fd/{index}", os.O_RDWR | os.O_CLOEXEC)
        self._paths = [Path(f"/proc/self/fd/{fd}") for fd in commits]

    def newest(self) -> int:
        """Returns the version of the newest commit; 0: there is none."""
        return max(entry.version for entry in self._entries())

    def write(self, version: int, write: Callable[[BinaryIO], object]) -> bool:
        """Keeps a commit in the place of the older one.

        Args:
            version: Of the commit.
            write: Writes it into a file.

        Returns:
            Whether this call has kept it. All workers of a host may call it, and one does the work.

        Raises:
            OSError: There is no memory for it. The commit before is still there.
        """
        with self._locked() as is_mine:
            entries = self._entries()
            if not is_mine or version <= max(entry.version for entry in entries):
                return False
            older = min((0, 1), key=lambda at: entries[at].version)
            self._enter(older, _Entry(0, 0, 0))
            with self._paths[older].open("r+b") as file:
                file.truncate()
                write(file)
                file.seek(0, os.SEEK_END)
                size = file.tell()
                file.flush()
                checksum = _checksum(file)
            self._enter(older, _Entry(version, size, checksum))
            return True

    def read(self, read: Callable[[BinaryIO], object]) -> int:
        """Hands over the newest commit that is whole.

        Args:
            read: Reads it from a file.

        Returns:
            Its version; 0: there is none.
        """
        found = zip(self._entries(), self._paths, strict=True)
        for entry, path in sorted(found, key=lambda it: -it[0].version):
            with path.open("rb") as file:
                is_whole = os.fstat(file.fileno()).st_size == entry.size
                if entry.version and is_whole and _checksum(file) == entry.checksum:
                    file.seek(0)
                    read(file)
                    return entry.version
        return 0

    def _entries(self) -> list[_Entry]:
        data = os.pread(self._index, 2 * _ENTRY.size, 0).ljust(2 * _ENTRY.size, b"\0")
        return [_Entry(*fields) for fields in _ENTRY.iter_unpack(data)]

    def _enter(self, at: int, entry: _Entry) -> None:
        data = _ENTRY.pack(entry.version, entry.size, entry.checksum)
        os.pwrite(self._index, data, at * _ENTRY.size)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[bool]:
        """Yields whether it has the lock, for which it does not wait."""
        try:
            fcntl.flock(self._index, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(self._index, fcntl.LOCK_UN)


def open_kept(env: Mapping[str, str]) -> KeptCommits | None:
    """Returns what the agent holds; `None` where there is no agent that holds commits.

    A program between agent and worker may have closed the descriptors: then there is none either.

    Raises:
        ValueError: The variable is not what the agent has set.
    """
    text = env.get(VARIABLE)
    if text is None:
        return None
    numbers = text.split(",")
    if len(numbers) != _DESCRIPTORS or not all(it.isascii() and it.isdigit() for it in numbers):
        msg = f'{VARIABLE}="{text}": expected three descriptors, as lightccrun sets it'
        raise ValueError(msg)
    index, *commits = map(int, numbers)
    try:
        if not all(_is_in_memory(fd) for fd in (index, *commits)):
            return None
        return KeptCommits(index, (commits[0], commits[1]))
    except OSError:
        return None


def _is_in_memory(fd: int) -> bool:
    name = Path(f"/proc/self/fd/{fd}").readlink()
    return str(name).startswith("/memfd:lightcc-commit") and stat.S_ISREG(os.fstat(fd).st_mode)


def _checksum(file: BinaryIO) -> int:
    file.seek(0)
    found = 0
    while data := file.read(_CHUNK_BYTES):
        found = zlib.crc32(data, found)
    return found
