"""The rendezvous store that a launcher serves."""

from __future__ import annotations

import importlib
from typing import Protocol

from lightcc.runner.network import host_and_port


class StoreServer(Protocol):
    """The engine's rendezvous store (`lightcc._core.StoreServer`)."""

    address: str

    def stop(self) -> None:
        """Closes every connection and the port."""


def start_store(bind: str, secret: str, port: int = 0) -> StoreServer:
    """Starts the store on address `bind`; with port 0, at one of the kernel's choice.

    Raises:
        ImportError: lightcc was not built.
        RuntimeError: The address cannot be bound.
    """
    core = importlib.import_module("lightcc._core")
    server: StoreServer = core.StoreServer(host_and_port(bind, port), secret)
    return server


def port_of(store: StoreServer) -> str:
    """Returns the port of a store's address."""
    return store.address.rpartition(":")[2]
