"""Hosts of a test: network namespaces joined by virtual cables, and ranks that run in them."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from iproute import ip

from lightcc import _core
from lightcc.bench.cluster import enter_namespace, in_namespace as run_in_namespace
from lightcc.runner.environment import make_secret

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Cables:
    """Two namespaces, joined by `cables` virtual cables: 10.77.<i>.1 and .2 on eth<i> of each."""

    def __init__(self, stack: contextlib.ExitStack, cables: int) -> None:
        self.names = [f"lightcc-{os.getpid()}-{side}" for side in "ab"]
        self.secret = make_secret()
        for name in self.names:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
            ip("-n", name, "link", "set", "lo", "up")
        a, b = self.names
        for i in range(cables):
            eth = f"eth{i}"
            ip("-n", a, "link", "add", eth, "type", "veth", "peer", "name", eth, "netns", b)
            for host, name in enumerate(self.names, 1):
                ip("-n", name, "address", "add", f"10.77.{i}.{host}/24", "dev", eth)
                ip("-n", name, "link", "set", eth, "up")
        store = self._start_store()
        stack.callback(store.stop)
        self.rendezvous = store.address

    def _start_store(self) -> _core.StoreServer:
        """Serves the store in the first namespace, whose address the second one can reach."""
        return run_in_namespace(
            self.names[0], lambda: _core.StoreServer("10.77.0.1:0", self.secret)
        )

    def environment(self, ranks: int, per_rank: list[dict[str, str]]) -> list[dict[str, str]]:
        """Variables of `ranks` ranks, the first half of them in the first namespace."""
        return [
            {
                "TEST_NAMESPACE": self.names[2 * rank // ranks],
                "LIGHT_RENDEZVOUS": self.rendezvous,
                "LIGHT_SECRET": self.secret,
            }
            | per_rank[rank]
            for rank in range(ranks)
        ]

    def cut(self, host: int, cable: int = 0) -> None:
        """Pulls the cable out of a host; the other end keeps its own link."""
        ip("-n", self.names[host], "link", "set", f"eth{cable}", "down")

    def mend(self, host: int, cable: int = 0) -> None:
        """Puts a cable back that was pulled out."""
        ip("-n", self.names[host], "link", "set", f"eth{cable}", "up")


@contextlib.contextmanager
def two_hosts(cables: int = 1) -> Iterator[Cables]:
    with contextlib.ExitStack() as stack:
        yield Cables(stack, cables)


def in_namespace(program: Callable[..., Any], *arguments: object) -> Any:
    """Runs `program` in the namespace of this rank; threads that it starts are there, too."""
    enter_namespace(os.environ["TEST_NAMESPACE"])
    return program(*arguments)
