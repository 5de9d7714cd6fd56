"""Says on a terminal how far a long measurement is, and what is wrong before it begins.

A counter stands on the last line of standard error, with an estimate from the time of what is done.
It is wiped before a row of a table comes. Where standard error is no terminal, nothing is said.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

from lightcc._figures import PlotError, load_pyplot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_WIPE = "\r\x1b[K"
_MAX_COLUMNS = 100


class OutputError(RuntimeError):
    """A file of results cannot be written; the text says which and why."""


def check_outputs(json: Path | None, plot: Path | None) -> None:
    """Looks, before anything is measured, whether results can be written.

    Raises:
        OutputError: One cannot be, or matplotlib is missing for the plot.
    """
    for option, path in (("--json", json), ("--plot", plot)):
        if path is not None:
            _check_writable(option, path)
    if plot is None:
        return
    try:
        endings = load_pyplot().figure().canvas.get_supported_filetypes()
    except PlotError as error:
        raise OutputError(str(error)) from error
    if plot.suffix.lstrip(".").lower() not in endings:
        msg = f"--plot: '{plot}' must end in one of .{', .'.join(sorted(endings))}"
        raise OutputError(msg)


def _check_writable(option: str, path: Path) -> None:
    existed = path.exists()
    try:
        with path.open("ab"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        msg = f"{option}: cannot write {path}: {error.strerror}"
        raise OutputError(msg) from error


class Progress:
    """A counter of `total` parts of about equal length."""

    def __init__(
        self,
        total: int,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins to count.

        Args:
            total: How many parts there are.
            stream: Where the counter stands; `None`: standard error.
            clock: Returns seconds.
        """
        self._total = total
        self._stream = stream or sys.stderr
        self._clock = clock
        self._began = clock()
        self._done = 0
        self._is_shown = self._stream.isatty()

    def begin(self, what: str) -> None:
        """Says what is done now; all that was begun before counts as done."""
        if self._is_shown:
            text = f"[{min(self._done + 1, self._total)}/{self._total}] {what}{self._left()}"
            self._stream.write(_WIPE + text[:_MAX_COLUMNS])
            self._stream.flush()
        self._done += 1

    def wipe(self) -> None:
        """Clears the line, for what comes after it."""
        if self._is_shown:
            self._stream.write(_WIPE)
            self._stream.flush()

    def _left(self) -> str:
        if self._done == 0:
            return ""
        each_s = (self._clock() - self._began) / self._done
        left_s = max(0, round(each_s * (self._total - self._done)))
        if left_s < 60:
            return f", about {left_s} s left"
        return f", about {left_s // 60}:{left_s % 60:02} min left"
