"""Counters over HTTP, for Prometheus to fetch: `GET /metrics` reads the folder each time."""

from __future__ import annotations

import socket
import socketserver
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from lightcc.harp.stat.export import CONTENT_TYPE, as_prometheus
from lightcc.harp.stat.files import read_folder
from lightcc.harp.stat.layout import StatFileError

if TYPE_CHECKING:
    from pathlib import Path

_REQUEST_S = 10.0  # For a client to send its request, and to take the answer.
_MOST_PORT = 65535


def parse_address(text: str) -> tuple[str, int]:
    """Returns host and port of `HOST:PORT`, `:PORT` (all addresses) or `[IPV6]:PORT`.

    Raises:
        ValueError: It is something else.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    is_port = port.isascii() and port.isdigit() and int(port) <= _MOST_PORT
    if not colon or not is_port or (":" in host and not text.startswith("[")):
        msg = f"{text!r}: expected HOST:PORT, such as 127.0.0.1:9470 or [::1]:9470"
        raise ValueError(msg)
    return host, int(port)


class Server(ThreadingHTTPServer):
    """Answers scrapes of one folder."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], folder: Path, pid: int | None) -> None:
        """Listens.

        Raises:
            OSError: The address cannot be had.
        """
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.folder = folder
        self.pid = pid
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Binds without asking a name server for our own name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = _REQUEST_S

    def do_GET(self) -> None:
        path = self.path.split("?", 1)[0]
        if path == "/metrics":
            try:
                text = as_prometheus(read_folder(self.server.folder, self.server.pid))
            except StatFileError as error:
                text = f"{self.server.folder} {error}\n"
                self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", text)
            else:
                self._answer(HTTPStatus.OK, CONTENT_TYPE, text)
        elif path == "/":
            self._answer(HTTPStatus.OK, "text/plain", "harp-stat: counters are at /metrics\n")
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
