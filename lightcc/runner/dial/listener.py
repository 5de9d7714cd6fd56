"""Where workers dial in: a port of the launcher, and who has joined through it.

A thread accepts connections, and one more for each does the handshake, so that strangers who say
nothing hold nobody up. How many are under way is bounded, as with the engine's listeners: the
oldest one makes room for a newcomer. Of strangers that are refused, few are named.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import selectors
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lightcc import _addresses
from lightcc._addresses import host_and_port
from lightcc.runner.dial import handshake

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_HANDSHAKES = 64
_FEW_HANDSHAKES = 2  # Where fewer than a quarter of the descriptors are left.
_SHORT_S = 0.1  # Until the kernel is asked again that was short of something.
_MAX_LINES = 10  # About strangers, at once; and one more each time that so many seconds are over:
_LINE_S = 60.0
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """Listens from its making on; `serve` begins to accept.

    Attributes:
        host: The address that it is bound to.
        port: Its port.
    """

    def __init__(self, host: str, port: int, secret: str) -> None:
        """Binds the port.

        Args:
            host: Name or address of this machine; "" is all its addresses.
            port: 0: the kernel chooses.
            secret: What workers must prove.

        Raises:
            OSError: The address is not this machine's, or the port is taken.
        """
        self._secret = secret
        found = socket.getaddrinfo(
            host or _addresses.every_address(), port, type=socket.SOCK_STREAM
        )[0]
        self._socket = socket.create_server(found[4][:2], family=found[0], backlog=128)
        self._socket.setblocking(False)
        self.host, self.port = self._socket.getsockname()[:2]
        self._lock = threading.Lock()
        self._under_way: dict[socket.socket, None] = {}  # The oldest first.
        self._lines = float(_MAX_LINES)  # That may be said, as of `_said_at`.
        self._said_at = time.monotonic()
        self._unsaid = 0
        self._joined: dict[str, str] = {}  # Where the worker of each name is.
        self._closed = ""
        self._stop_read, self._stop_write = os.pipe()
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """Returns host and port."""
        return host_and_port(self.host, self.port)

    def serve(self, on_join: Callable[[handshake.Joiner], None]) -> None:
        """Begins to accept workers; `on_join` gets each, on a thread of its own."""
        self._thread = threading.Thread(target=self._accept, args=(on_join,), daemon=True)
        self._thread.start()

    def refuse(self, reason: str) -> None:
        """Refuses all who come from now on, for this reason."""
        with self._lock:
            self._closed = reason

    def forget(self, name: str) -> None:
        """Lets another worker of this name join: the one that had it is gone."""
        with self._lock:
            self._joined.pop(name, None)

    def stop(self) -> None:
        """Closes the port."""
        if self._thread is not None:
            os.write(self._stop_write, b"x")
            self._thread.join()
        self._socket.close()
        os.close(self._stop_read)
        os.close(self._stop_write)

    def _accept(self, on_join: Callable[[handshake.Joiner], None]) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._stop_read, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fd == self._stop_read:
                        return
                    try:
                        connection, peer = self._socket.accept()
                    except OSError as error:
                        if error.errno in _SHORTAGES:  # The next one comes when one has gone.
                            self._make_room(0)
                            select.select([self._stop_read], [], [], _SHORT_S)
                        continue  # Else it has gone already.
                    self._begin(connection, peer, on_join)

    def _make_room(self, limit: int) -> None:
        """Ends the oldest handshakes, so that at most `limit` are left."""
        with self._lock:
            for connection in list(self._under_way)[: max(0, len(self._under_way) - limit)]:
                del self._under_way[connection]
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _begin(
        self, connection: socket.socket, peer: object, on_join: Callable[[handshake.Joiner], None]
    ) -> None:
        self._make_room(max_handshakes() - 1)
        with self._lock:
            self._under_way[connection] = None

        def run() -> None:
            try:
                self._shake_hands(connection, peer, on_join)
            except (handshake.DialError, OSError) as error:
                self._tell(f"{peer[0] if isinstance(peer, tuple) else peer}: {error}")
                connection.close()
            finally:
                with self._lock:
                    self._under_way.pop(connection, None)

        threading.Thread(target=run, daemon=True).start()

    def _tell(self, refused: str) -> None:
        """Names a stranger, unless many were named lately."""
        with self._lock:
            now = time.monotonic()
            more = (now - self._said_at) / _LINE_S
            self._lines, self._said_at = min(_MAX_LINES, self._lines + more), now
            if self._lines < 1:
                self._unsaid += 1
                return
            self._lines -= 1
            others, self._unsaid = self._unsaid, 0
        beside = f" (beside {others} others)" if others else ""
        sys.stderr.write(f"lightccrun: refused a connection from {refused}{beside}\n")

    def _shake_hands(
        self, connection: socket.socket, peer: object, on_join: Callable[[handshake.Joiner], None]
    ) -> None:
        joiner = handshake.receive(connection, self._secret)
        with self._lock:
            self._under_way.pop(connection, None)  # It has the secret, and makes room for nobody.
        where = str(peer[0] if isinstance(peer, tuple) else peer)
        with self._lock:
            refused, again = self._closed, False
            if not refused and joiner.name in self._joined:
                other = self._joined[joiner.name]
                refused = f"a worker named {joiner.name} has joined already, from {other}"
                again = True
            if not refused:
                self._joined[joiner.name] = where
        if refused:
            handshake.answer(joiner, refused, again=again)
            raise handshake.DialError(refused, again=again)
        try:
            handshake.answer(joiner)
            handshake.watch_peer(connection)
        except OSError:
            self.forget(joiner.name)
            raise
        on_join(joiner)


def max_handshakes() -> int:
    """Returns how many may be under way: of the process's descriptors some must be left."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if len(list(Path("/proc/self/fd").iterdir())) > limit * 3 / 4:
        return _FEW_HANDSHAKES
    return max(_FEW_HANDSHAKES, min(_MAX_HANDSHAKES, limit // 8))
