"""The rendezvous store that a launcher serves."""

from __future__ import annotations

import importlib
from typing import Protocol

from lightcc import _addresses
from lightcc.runner.environment import make_secret
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


class JobStore:
    """The store of a job whose ranks another program starts on a cluster.

    Attributes:
        address: Where ranks of any node reach it.
        secret: What they prove.
    """

    def __init__(self, own: str) -> None:
        """Starts to serve.

        Args:
            own: The address of this machine that the cluster's nodes reach.

        Raises:
            RuntimeError: The port cannot be opened.
        """
        self.secret = make_secret()
        found = _addresses.resolve(own)
        is_here = bool(found) and _addresses.is_own(*found[0])
        # It may be an address that only the network in front of this machine has.
        bind = own if is_here else "0.0.0.0"  # noqa: S104
        self._server = start_store(bind, self.secret)
        self.address = host_and_port(own, port_of(self._server))

    def stop(self) -> None:
        """Closes the port."""
        self._server.stop()
