"""Where workers dial in: a port of the launcher, and who has joined through it.

A thread accepts connections, and one more for each does the handshake, so that strangers who say
nothing hold nobody up. At most `_MAX_HANDSHAKES` are under way; whoever comes then is turned away,
and a worker tries again.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import threading
from typing import TYPE_CHECKING

from lightcc._addresses import host_and_port
from lightcc.runner.dial import handshake

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_HANDSHAKES = 64
_ANY = "0.0.0.0"  # noqa: S104  workers prove the secret


class Listener:
    """Listens from its making on; `serve` begins to accept.

    Attributes:
        host: The address that it is bound to.
        port: Its port.
    """

    def __init__(self, host: str, port: int, secret: str) -> None:
        """Binds the port.

        Args:
            host: Name or address of this machine; "" is all its IPv4 addresses.
            port: 0: the kernel chooses.
            secret: What workers must prove.

        Raises:
            OSError: The address is not this machine's, or the port is taken.
        """
        self._secret = secret
        found = socket.getaddrinfo(host or _ANY, port, type=socket.SOCK_STREAM)[0]
        self._socket = socket.create_server(found[4][:2], family=found[0], backlog=128)
        self._socket.setblocking(False)
        self.host, self.port = self._socket.getsockname()[:2]
        self._handshakes = threading.Semaphore(_MAX_HANDSHAKES)
        self._lock = threading.Lock()
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
                    with contextlib.suppress(OSError):  # It has gone already.
                        self._begin(*self._socket.accept(), on_join)

    def _begin(
        self, connection: socket.socket, peer: object, on_join: Callable[[handshake.Joiner], None]
    ) -> None:
        if not self._handshakes.acquire(blocking=False):
            connection.close()
            return

        def run() -> None:
            try:
                self._shake_hands(connection, peer, on_join)
            except (handshake.DialError, OSError) as error:
                where = peer[0] if isinstance(peer, tuple) else peer
                sys.stderr.write(f"lightccrun: refused a connection from {where}: {error}\n")
                connection.close()
            finally:
                self._handshakes.release()

        threading.Thread(target=run, daemon=True).start()

    def _shake_hands(
        self, connection: socket.socket, peer: object, on_join: Callable[[handshake.Joiner], None]
    ) -> None:
        joiner = handshake.receive(connection, self._secret)
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
