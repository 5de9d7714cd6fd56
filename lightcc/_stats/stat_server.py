"""Tells other programs of this machine what this rank counts, when they ask.

A rank listens on an abstract Unix socket, so nothing is left behind, whatever ends it. Whoever
connects, and is the same user or root, gets one JSON object and the end of the stream. Whoever
has a name that begins with `ASKS_STACKS` gets where the threads are, in place of the counters.
Between questions the thread sleeps in accept(), and costs nothing.

A child of fork() has no such thread; it closes its copy of the socket.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import struct
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PREFIX = "lightcc-stat-"  # The process and a random number follow in the socket's name.
ASKS_STACKS = "lightcc-asks-stacks-"
VERSION = 1
_PATIENCE_S = 2.0  # For a reader that takes nothing.
_MAX_WORDS = 8  # The most words of the command line that are shown.
_CREDENTIALS = struct.Struct("iII")  # struct ucred: process, user, group.


class StatServer:
    """Answers questions until `stop()`."""

    def __init__(self, facts: dict[str, Any], report: Callable[[], dict[str, Any]]) -> None:
        """Starts to listen.

        Args:
            facts: What never changes: `rank`, `size`, `job` and the like.
            report: Returns the counters; called in a thread of the server.

        Raises:
            OSError: There can be no socket.
            RuntimeError: There can be no thread.
        """
        self._facts = facts | {
            "version": VERSION,
            "pid": os.getpid(),
            "command": sys.argv[:_MAX_WORDS],
            "started_unix_s": time.time(),
        }
        self._report = report
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(f"\0{PREFIX}{os.getpid()}-{secrets.token_hex(4)}")
            self._listener.listen(4)
            self._thread = threading.Thread(target=self._serve, name="lightcc-stat", daemon=True)
            self._thread.start()
        except (OSError, RuntimeError):
            self._listener.close()
            raise

    def stop(self) -> None:
        """Listens no more. Idempotent."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # Wakes accept(), which close() does not.
        self._listener.close()
        self._thread.join(_PATIENCE_S)

    def close_in_child(self) -> None:
        """Closes the copy that a child of fork() has."""
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                reader, name = self._listener.accept()
            except OSError:
                return
            with reader, contextlib.suppress(OSError):
                reader.settimeout(_PATIENCE_S)
                if _is_allowed(reader):
                    asks_stacks = name and name.startswith(f"\0{ASKS_STACKS}".encode())
                    reader.sendall(self._stacks() if asks_stacks else self._answer())

    def _stacks(self) -> bytes:
        return json.dumps(self._facts | {"stacks": stacks_of_others()}).encode()

    def _answer(self) -> bytes:
        try:
            counters = self._report()
        except ValueError as error:  # The world has just ended.
            return json.dumps(self._facts | {"error": str(error)}).encode()
        answer = self._facts | {"monotonic_s": time.monotonic(), "statistics": counters}
        return json.dumps(answer).encode()


def stacks_of_others() -> str:
    """Returns where all threads but this one are, the main one first."""
    frames = sys._current_frames()  # noqa: SLF001  As faulthandler, but in our own words.
    threads = sorted(threading.enumerate(), key=lambda it: it is not threading.main_thread())
    return "\n".join(
        f"{thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident]))}"
        for thread in threads
        if thread.ident in frames and thread is not threading.current_thread()
    )


def _is_allowed(reader: socket.socket) -> bool:
    raw = reader.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user = _CREDENTIALS.unpack(raw)[1]
    return user in (0, os.geteuid())
