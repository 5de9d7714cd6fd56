"""Counters over HTTP, for Prometheus to fetch: `GET /metrics` reads them anew each time."""

from __future__ import annotations

import socket
import socketserver
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from lightcc._stats.prometheus import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable

_REQUEST_S = 10.0  # For a client to send its request, and to take the answer.
_MAX_PORT = 65535


def parse_address(text: str) -> tuple[str, int]:
    """Returns host and port of `HOST:PORT`, `:PORT` (all addresses) or `[IPV6]:PORT`.

    Raises:
        ValueError: It is something else.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    is_port = port.isascii() and port.isdigit() and int(port) <= _MAX_PORT
    if not colon or not is_port or (":" in host and not text.startswith("[")):
        msg = f"{text!r}: expected HOST:PORT, such as 127.0.0.1:9470 or [::1]:9470"
        raise ValueError(msg)
    return host, int(port)


class MetricsServer(ThreadingHTTPServer):
    """Answers scrapes."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], program: str, read: Callable[[], str]) -> None:
        """Listens.

        Args:
            address: Host and port; port 0 chooses one.
            program: What the root page calls itself.
            read: Returns the counters in Prometheus' text format.

        Raises:
            OSError: The address cannot be had.
        """
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.program = program
        self.read = read
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Binds without asking a name server for our own name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    @property
    def url(self) -> str:
        """Where the counters are."""
        name = f"[{self.server_name}]" if ":" in self.server_name else self.server_name
        return f"http://{name}:{self.server_port}/metrics"


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = _REQUEST_S

    def do_GET(self) -> None:
        path = self.path.split("?", 1)[0]
        if path == "/metrics":
            self._answer(HTTPStatus.OK, CONTENT_TYPE, self.server.read())
        elif path == "/":
            text = f"{self.server.program}: counters are at /metrics\n"
            self._answer(HTTPStatus.OK, "text/plain", text)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "there is /metrics only\n")

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name.
        """Scrapes are not news."""
