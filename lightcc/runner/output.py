"""Ranks' output on the launcher's standard output and error: whole lines, each naming its rank.

Bytes in, bytes out: nothing is decoded, so binary output survives. A line is written as soon as
its end (newline or carriage return, for progress bars) has arrived. A carriage return stays one on
a terminal, and is a newline in a file, where bars would run together. A last line without an end is
completed with a newline when the stream ends, so that another rank's line cannot continue it. A
line longer than `MAX_LINE_BYTES` is cut. A traceback waits for its end, so that those of several
ranks do not mix.

Where output cannot be written (a full disk), it is lost from there on; the ranks go on.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING, BinaryIO, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_LINE_BYTES = 1 << 20
TAIL_LINES = 20
MAX_HELD_LINES = 10_000
TRACEBACK_S = 2.0  # How long a traceback may wait for its end.
_TRACEBACK = b"Traceback (most recent call last):"
_TAIL_LINE_BYTES = 500
_LINE_END = re.compile(rb"\r\n|\r|\n")


class LineCutter:
    """Cuts a byte stream into lines that keep their ends."""

    def __init__(self) -> None:
        self._partial = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Takes what arrived and returns the complete lines."""
        self._partial += data
        lines = []
        start = 0
        # Only new bytes can hold an end; but a "\r" kept back may now prove to be half of "\r\n".
        for match in _LINE_END.finditer(self._partial, max(0, len(self._partial) - len(data) - 1)):
            if match.end() == len(self._partial) and match[0] == b"\r":
                break  # Wait: it may be the first half of "\r\n".
            lines.append(bytes(self._partial[start : match.end()]))
            start = match.end()
        del self._partial[:start]
        if len(self._partial) > MAX_LINE_BYTES:
            lines.append(self.finish())
        return lines

    def finish(self) -> bytes:
        """Returns the last line if it has no end, completed with a newline; else nothing."""
        line = bytes(self._partial)
        self._partial.clear()
        return line + b"\n" if line and not line.endswith(b"\n") else line


class Writer(Protocol):
    """What lines go to."""

    def write(self, data: bytes, /) -> object:
        """Writes all of `data`."""

    def flush(self) -> object:
        """Passes on what is buffered."""


class Sink:
    """A file that is given up when it cannot be written: everything after that is dropped.

    A pipe whose reader has left is another matter: `BrokenPipeError` is raised as it comes.
    """

    def __init__(self, file: BinaryIO, name: str, on_loss: Callable[[str], None]) -> None:
        """Prepares the sink.

        Args:
            file: What is written to.
            name: What the user calls it.
            on_loss: Called once, with a sentence, when it is given up.
        """
        self._file = file
        self._name = name
        self._on_loss = on_loss
        self._is_lost = False

    def write(self, data: bytes, /) -> None:
        """Writes and flushes, unless the file was given up."""
        if not self._is_lost:
            with self._giving_up():
                rest = memoryview(data)
                while rest:  # An unbuffered file may take less than it is given.
                    rest = rest[self._file.write(rest) :]
                self._file.flush()

    def flush(self) -> None:
        """Does nothing: write() did."""

    def close(self) -> None:
        """Closes the file."""
        with self._giving_up():
            self._file.close()

    @contextlib.contextmanager
    def _giving_up(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            if not self._is_lost:
                self._is_lost = True
                _discard(self._file)
                self._on_loss(f"cannot write {self._name}: {error.strerror}; output is lost")


def _discard(file: BinaryIO) -> None:
    """Lets what is buffered, and what follows, go nowhere: else the exit of Python fails by it."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, file.fileno())
        os.close(null)


class RankStream:
    """One stream of one rank on its way to the launcher's own stream and, perhaps, to a file."""

    def __init__(
        self,
        out: Writer,
        label: bytes,
        *,
        timestamps: bool,
        copy_to: Sink | None,
        on_traceback: Callable[[RankStream], None] | None = None,
        on_terminal: bool = False,
    ) -> None:
        """Prepares the stream.

        Args:
            out: Where lines go.
            label: What begins each line, for example b"[0]<stdout>: "; empty for nothing.
            timestamps: Whether the time comes before the label.
            copy_to: What gets the bytes unchanged; it is closed at the end.
            on_traceback: Called when a traceback begins, which is held until `release()`; without
                it, tracebacks are lines like others.
            on_terminal: Whether `out` is one. If not, lines with a label end with a newline.
        """
        self.tail: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._out = out
        self._label = label
        self._timestamps = timestamps
        self._keeps_returns = on_terminal or not label
        self._cutter = LineCutter()
        self._copy = copy_to
        self._on_traceback = on_traceback
        self._held: list[bytes] = []  # From a traceback's first line on, with labels.

    @property
    def ends_with_traceback(self) -> bool:
        """Whether the last lines, written or held, are a traceback's."""
        return bool(self._held) or any(_TRACEBACK in line for line in self.tail)

    def release(self) -> None:
        """Writes what is held."""
        if self._held:
            held, self._held = self._held, []
            self._out.write(b"".join(held))
            self._out.flush()

    def feed(self, data: bytes) -> None:
        """Passes on what the rank wrote."""
        if self._copy is not None:
            self._copy.write(data)
        self._write(self._cutter.feed(data))

    def finish(self) -> None:
        """Passes on an unfinished last line; call it when the rank has exited."""
        last = self._cutter.finish()
        self._write([last] if last else [])
        if self._copy is not None:
            self._copy.close()
            self._copy = None

    def _write(self, lines: list[bytes]) -> None:
        if not self._keeps_returns:  # A bar often begins with a return, which is no line.
            lines = [it[:-1] + b"\n" if it.endswith(b"\r") else it for it in lines if it != b"\r"]
        if not lines:
            return
        self.tail.extend(line.rstrip()[:_TAIL_LINE_BYTES] for line in lines if line.strip())
        prefix = self._label
        if self._timestamps:
            prefix = (
                datetime.now().astimezone().isoformat(timespec="milliseconds").encode() + prefix
            )
        labelled = [prefix + line for line in lines]
        if self._on_traceback is not None and not self._held:
            starts = (i for i, line in enumerate(lines) if line.rstrip() == _TRACEBACK)
            first = next(starts, len(lines))
            labelled, self._held = labelled[:first], labelled[first:]
            if self._held:
                self._on_traceback(self)
        elif self._held:
            self._held += labelled
            labelled = []
        if labelled:
            self._out.write(b"".join(labelled))
            self._out.flush()
        if len(self._held) > MAX_HELD_LINES:
            self.release()
