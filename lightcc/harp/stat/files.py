"""Finds the files of counters in a folder. A process that lives keeps its file locked."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lightcc.harp.stat.layout import Record, StatFileError, read_engines, read_layout

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_FOLDER = "/dev/shm"  # noqa: S108 - where HARP publishes; read only.
ALIVE, DEAD = "alive", "dead"


@dataclass(frozen=True)
class Process:
    """A process that publishes, or did."""

    path: Path
    pid: int
    state: str  # ALIVE or DEAD.
    created_unix_ns: int
    engines: tuple[Record, ...]

    def silent_s(self) -> float | None:
        """Returns the seconds since it last wrote; None where that is not known."""
        written = max((engine.written_ns for engine in self.engines), default=0)
        since = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - written
        return since / 1e9 if written and since >= 0 else None


@dataclass(frozen=True)
class Problem:
    """A file that was not read; `text` goes on after its name."""

    path: Path
    text: str


@dataclass(frozen=True)
class Reading:
    """Everything that was found in a folder at one time."""

    processes: tuple[Process, ...]
    problems: tuple[Problem, ...]


class _File:
    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def length(self) -> int:
        return os.fstat(self.descriptor).st_size

    def read(self, offset: int, length: int) -> bytes:
        try:
            return os.pread(self.descriptor, length, offset)
        except (OSError, OverflowError) as error:
            msg = f"cannot be read at {offset}: {error}"
            raise StatFileError(msg) from error


def _life_of(descriptor: int) -> str:
    """Returns whether a process writes the file: it holds a lock of it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return ALIVE
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return DEAD


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Opens a file that anybody may have put there: follows no link, waits for no pipe.

    Raises:
        StatFileError: It is not ours to read, or no file.
        FileNotFoundError: It has gone.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise
    except PermissionError as error:
        msg = f"is not ours to read: it belongs to user {_owner(path)}"
        raise StatFileError(msg) from error
    except OSError as error:
        what = "is a link" if error.errno == errno.ELOOP else f"cannot be opened: {error.strerror}"
        raise StatFileError(what) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            msg = "is no regular file"
            raise StatFileError(msg)
        yield descriptor
    finally:
        os.close(descriptor)


def _owner(path: Path) -> str:
    with contextlib.suppress(OSError):
        return str(path.lstat().st_uid)
    return "unknown"


def default_folder() -> Path:
    """Returns where processes publish: HARP_STAT_DIR, else /dev/shm."""
    return Path(os.environ.get("HARP_STAT_DIR") or DEFAULT_FOLDER)


def paths_in(folder: Path) -> list[Path]:
    """Returns the files whose names are those of files of counters.

    Raises:
        StatFileError: The folder cannot be read.
    """
    try:
        return sorted(one for one in folder.iterdir() if one.match("harp-*.stat"))
    except OSError as error:
        msg = f"cannot be read: {error.strerror}"
        raise StatFileError(msg) from error


def read_process(path: Path) -> Process:
    """Reads one file.

    Raises:
        StatFileError: It cannot be read; see `layout`.
        FileNotFoundError: It has gone.
    """
    with _opened(path) as descriptor:
        file = _File(descriptor)
        layout = read_layout(file)
        state = _life_of(descriptor)
        try:
            engines = read_engines(file, layout, is_written=state != DEAD)
        except StatFileError:
            # It may have ended since.
            state = _life_of(descriptor)
            if state != DEAD:
                raise
            engines = []
        return Process(path, layout.pid, state, layout.created_unix_ns, tuple(engines))


def read_folder(folder: Path, pid: int | None = None) -> Reading:
    """Reads every file in `folder`, or those of one process.

    Raises:
        StatFileError: The folder cannot be read.
    """
    processes, problems = [], []
    for path in paths_in(folder):
        if pid is not None and not path.name.startswith(f"harp-{pid}-"):
            continue
        try:
            processes.append(read_process(path))
        except FileNotFoundError:
            continue  # Its process has ended.
        except StatFileError as error:
            problems.append(Problem(path, str(error)))
    return Reading(tuple(processes), tuple(problems))
