"""How the ranks of somebody else's launcher come to share a store and a secret.

Rank 0 serves lightcc's store in its own process, under a secret made for the occasion, and tells
both to the others through whatever its launcher offers (`Channel`): torchrun's store, MPI, PMI.

By which address? A launcher does not say which of a host's networks reach the others. So rank 0
offers all of its interfaces, every rank tries them all at once, and the first one that every rank
reached is taken. A named interface (`LIGHT_IFACE`) is the only one offered. Ranks that are known to
share one machine meet on loopback.
"""

from __future__ import annotations

import contextlib
import errno
import json
import secrets
import selectors
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from lightcc import _addresses
from lightcc._binding import _core
from lightcc._discovery import variables
from lightcc._discovery.epoch import Epoch
from lightcc.exceptions import PeerFailedError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PROBE_S = 3.0  # What has not answered by then is not taken to be reachable.
_SETTLED_S = 0.5  # What has not answered so long after the first is not waited for.
GATHER_BYTES = 64  # The longest text that is gathered.
_UNDER_WAY = (0, errno.EINPROGRESS)

_servers: list[_core.StoreServer] = []  # They serve as long as the process lives.


class Channel(Protocol):
    """How a launcher's ranks can talk before they have met. All ranks call the same methods."""

    def broadcast(self, text: str) -> str:
        """Returns rank 0's `text` on every rank."""

    def gather(self, text: str) -> list[str]:
        """Returns every rank's `text`, in rank order, on rank 0; nothing on the others."""


@dataclass(frozen=True)
class Party:
    """Who is to meet.

    Attributes:
        rank: Of this process.
        size: Number of ranks.
        one_machine: Whether the launcher says that all ranks share this machine.
        towards: A host that all ranks reach, if the launcher names one.
    """

    rank: int
    size: int
    one_machine: bool
    towards: str | None = None


def meet(channel: Channel, party: Party, env: Mapping[str, str]) -> Epoch:
    """Returns this rank's place, with the store that rank 0 serves. Blocks: for all ranks.

    Raises:
        ValueError: On rank 0: an interface was named that is not there.
        PeerFailedError: On the other ranks: rank 0 could not serve the store. On all ranks: no
            address of rank 0 was reached by all.
    """
    offer, failure = {}, None
    if party.rank == 0:
        try:
            offer = _serve(party, env)
        except (ValueError, RuntimeError) as error:
            offer, failure = {"error": str(error)}, error
    offer = json.loads(channel.broadcast(json.dumps(offer)))
    if failure is not None:
        raise failure
    if "error" in offer:
        msg = f"rank 0 cannot serve the job's store: {offer['error']}"
        raise PeerFailedError(msg, 0)
    addresses: list[str] = offer["addresses"]
    choice = 0 if party.one_machine else _choose(channel, party, addresses, offer["names"])
    return Epoch(party.rank, party.size, addresses[choice], offer["secret"])


def this_machine() -> str:
    """Returns what tells apart machines, and network namespaces of one."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {Path('/proc/self/ns/net').readlink()}"[-GATHER_BYTES:]


def _serve(party: Party, env: Mapping[str, str]) -> dict[str, object]:
    """Starts the store; returns what the others need to know."""
    name = variables.interface(env)
    if party.one_machine:
        offered = [_addresses.Interface("lo", _addresses.loopback())]
    elif name:
        offered = [_addresses.Interface(name, _addresses.interface_address(name))]
    else:
        # Loopback is tried at last: there may be one machine only, without a network.
        offered = _addresses.candidates(party.towards)
        offered = offered or [_addresses.Interface("lo", _addresses.loopback())]
    if len(offered) == 1:
        bind = offered[0].address
    else:
        bind = "::" if any(":" in nic.address for nic in offered) else "0.0.0.0"  # noqa: S104
    secret = secrets.token_hex(32)
    server = _core.StoreServer(_addresses.host_and_port(bind, 0), secret)
    _servers.append(server)
    port = _addresses.split_host_and_port(server.address)[1]
    return {
        "secret": secret,
        "addresses": [_addresses.host_and_port(nic.address, port) for nic in offered],
        "names": [str(nic) for nic in offered],
    }


def _choose(channel: Channel, party: Party, addresses: list[str], names: list[str]) -> int:
    """Returns the index of the first address that every rank reached."""
    seen = "".join("1" if reached else "0" for reached in reachable(addresses[:GATHER_BYTES]))
    rows = channel.gather(seen)
    verdict = ""
    if party.rank == 0:
        common = [i for i in range(len(seen)) if all(row[i] == "1" for row in rows)]
        verdict = str(common[0]) if common else f"no: {_refusal(rows, names)}"
    verdict = channel.broadcast(verdict)
    if verdict.startswith("no"):
        raise PeerFailedError(verdict.removeprefix("no: "))
    return int(verdict)


def _refusal(rows: list[str], names: list[str]) -> str:
    cut_off = [rank for rank, row in enumerate(rows) if "1" not in row]
    shown = ", ".join(map(str, cut_off[:8])) + (", ..." if len(cut_off) > 8 else "")
    who = f"rank(s) {shown} reach none" if cut_off else "no one is reached by all ranks"
    return (
        f"of rank 0's interfaces {', '.join(names)}, {who}; name one on a network that all hosts "
        "share with LIGHT_IFACE, and see that no firewall is between them"
    )


def reachable(addresses: list[str]) -> list[bool]:
    """Returns which of `addresses` accept a connection, trying all at once. Blocks: 3 s at most."""
    reached = [False] * len(addresses)
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for index, address in enumerate(addresses):
            host, port = _addresses.split_host_and_port(address)
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            probe = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            probe.setblocking(False)
            if probe.connect_ex((host, port)) in _UNDER_WAY:
                selector.register(probe, selectors.EVENT_WRITE, index)
        deadline = time.monotonic() + _PROBE_S
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                selector.unregister(key.fileobj)
                if key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:  # type: ignore[union-attr]
                    reached[key.data] = True
                    deadline = min(deadline, time.monotonic() + _SETTLED_S)
    return reached
