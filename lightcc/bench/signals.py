"""Signals that end the benchmark: first it removes what it made, namespaces and ranks.

Python ends on SIGTERM and SIGHUP at once, and a second Ctrl-C interrupts the cleaning up after the
first one. Here the first of these signals is an exception, so that every `with` block is left in
good order; those that follow are ignored, also by the commands that clean up. Then the process ends
by the signal, as whoever sent it expects. SIGKILL leaves namespaces behind
(`ip netns list` shows them as lightcc-bench-PID-...).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(BaseException):
    """A signal asked the benchmark to end; no error, so nobody handles it as one."""

    def __init__(self, number: int) -> None:
        """Notes the signal's number."""
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextlib.contextmanager
def ending_in_good_order() -> Iterator[None]:
    """Raises `Ended` in its body when a signal asks to end, and ends the process by it afterwards.

    Thread: the main one. It is meant for all that a process does: handlers stay.
    """

    def end(number: int, _: FrameType | None) -> None:
        for ending in _ENDING:
            signal.signal(ending, signal.SIG_IGN)
        raise Ended(number)

    for ending in _ENDING:
        # What is ignored, as under nohup, stays so.
        if signal.getsignal(ending) != signal.SIG_IGN:
            signal.signal(ending, end)
    try:
        yield
    except Ended as ended:
        sys.stdout.flush()
        sys.stderr.write(f"lightcc.bench: ended by {ended}\n")
        sys.stderr.flush()
        signal.signal(ended.number, signal.SIG_DFL)
        os.kill(os.getpid(), ended.number)
