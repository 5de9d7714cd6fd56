"""Stands between one rank and the store, to kill or delay the rank at a chosen point of init().

The store's protocol is strictly request and answer, and everything that a rank does in init() lies
between two of its requests. So the number of a request is a point in the rank's life.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import lightcc as hvd

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_GREETING_BYTES = 40  # The server's, and then those of both (docs/inside/wire-format.md).
_CLIENT_BYTES = 42 + len("lightcc store 4") + 32
_PROOF_BYTES = 32


class StoreProxy(contextlib.ExitStack):
    """Passes on connections; use it in a `with` statement.

    Args:
        on_request: Called with the number of each request before it is passed on; says whether to.
        on_answer: The same for the answers.
    """

    def __init__(
        self,
        upstream: Path,
        on_request: Callable[[int], bool] = lambda _number: True,
        on_answer: Callable[[int], bool] = lambda _number: True,
    ) -> None:
        super().__init__()
        self._upstream = upstream  # A file that will hold the store's address.
        self._on_request, self._on_answer = on_request, on_answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._serve)]
        self._sockets = [self._listener]
        self._threads[0].start()
        self.callback(self._close)

    def _close(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(30)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                host, _, port = self._upstream.read_text().rpartition(":")
                server = socket.create_connection((host, int(port)))
                self._sockets += [client, server]
                for skip, source, sink, ask in (
                    (_CLIENT_BYTES, client, server, self._on_request),
                    (_GREETING_BYTES + _PROOF_BYTES, server, client, self._on_answer),
                ):
                    thread = threading.Thread(target=self._pass_on, args=(skip, source, sink, ask))
                    self._threads.append(thread)
                    thread.start()

    def _pass_on(
        self, skip: int, source: socket.socket, sink: socket.socket, ask: Callable[[int], bool]
    ) -> None:
        """Passes on `skip` bytes as they come, then whole frames, until one is not to be."""
        with contextlib.suppress(OSError):
            while skip > 0 and (data := source.recv(skip)):
                skip -= len(data)
                sink.sendall(data)
            number = 0
            while head := _read(source, 4):
                body = _read(source, struct.unpack("<I", head)[0])
                if not ask(number):
                    break
                sink.sendall(head + body)
                number += 1
        for each in (source, sink):  # As the kernel does when the process is gone.
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _read(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = source.recv(count - len(data))
        if not more:
            return b""
        data += more
    return data


def go_through(proxy: str, upstream: str) -> None:
    """Has this rank's init() talk to the store through the proxy at `proxy`."""
    partial = Path(f"{upstream}.partial")
    partial.write_text(os.environ["LIGHT_RENDEZVOUS"])
    partial.rename(upstream)
    os.environ["LIGHT_RENDEZVOUS"] = proxy


def init_seen() -> tuple[str, int | None, str, float]:
    """Calls init(); returns the error's class, rank and text, and when it came."""
    try:
        hvd.init()
    except Exception as error:  # noqa: BLE001 - the test judges it.
        rank: Any = getattr(error, "rank", None)
        return type(error).__name__, rank, str(error), time.monotonic()
    hvd.shutdown()
    return "joined", None, "", time.monotonic()
