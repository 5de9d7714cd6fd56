"""Where the launcher's store listens, and by which address each host reaches it.

It listens on loopback when every rank is local. Otherwise it listens on the address from which the
kernel would route to the other hosts, or on that of the first interface the user named. When
different hosts are reached from different addresses it listens on all of them, and each host is
told its own; connections prove the job's secret in any case.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from lightcc import _addresses
from lightcc._addresses import host_and_port

__all__ = ["NetworkError", "StorePlan", "host_and_port", "is_local", "plan_store"]


class NetworkError(RuntimeError):
    """No usable address; the text says what to do."""


@dataclass(frozen=True)
class StorePlan:
    """Where the store listens and what each host is told (without the port)."""

    bind: str
    advertised: dict[str, str]


def is_local(host: str) -> bool:
    """Whether `host` names this machine. Blocks: in the resolver."""
    if host in {"localhost", socket.gethostname(), socket.getfqdn()}:
        return True
    return any(_addresses.is_own(family, address) for family, address in _addresses.resolve(host))


def plan_store(hosts: list[str], interfaces: list[str]) -> StorePlan:
    """Chooses the store's addresses for a job on `hosts`.

    Raises:
        NetworkError: There is no route to a host, or the named interface has no address.
    """
    remote = [host for host in hosts if not is_local(host)]
    if not remote:
        return StorePlan("127.0.0.1", dict.fromkeys(hosts, "127.0.0.1"))
    if interfaces:
        try:
            address = _addresses.interface_address(interfaces[0])
        except _addresses.AddressError as error:
            msg = f"--network-interfaces: {error}"
            raise NetworkError(msg) from error
        return StorePlan(address, dict.fromkeys(hosts, address))
    routed = {host: _routed_address(host) for host in remote}
    advertised = {host: routed.get(host, routed[remote[0]]) for host in hosts}
    addresses = set(advertised.values())
    if len(addresses) == 1:
        return StorePlan(addresses.pop(), advertised)
    any_address = "::" if any(":" in address for address in addresses) else "0.0.0.0"  # noqa: S104
    return StorePlan(any_address, advertised)


def _routed_address(host: str) -> str:
    address = _addresses.routed_address(host)
    if address is not None:
        return address
    msg = (
        f"cannot tell which of this machine's addresses host '{host}' reaches (its name does not "
        "resolve here, or there is no route); name a NIC of this machine with "
        f"--network-interfaces; candidates: {_addresses.candidate_text()}"
    )
    raise NetworkError(msg)
