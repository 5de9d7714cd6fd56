"""Where the launcher's store listens, and by which address each host reaches it.

It listens on loopback when every rank is local. Otherwise it listens on the address from which the
kernel would route to the other hosts, or on that of the first interface the user named. When
different hosts are reached from different addresses it listens on all of them, and each host is
told its own; connections prove the job's secret in any case.
"""

from __future__ import annotations

import socket
import sys
import time
from dataclasses import dataclass

from lightcc import _addresses
from lightcc._addresses import host_and_port

__all__ = ["NetworkError", "StorePlan", "await_names", "host_and_port", "is_local", "plan_store"]

_RETRY_S = 1.0


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


def await_names(hosts: list[str], timeout_s: float) -> None:
    """Waits until all names resolve, or for `timeout_s`: a pod has its name once it is ready."""
    until = time.monotonic() + timeout_s
    said = False
    while missing := [it for it in hosts if not is_local(it) and not _addresses.resolve(it)]:
        if time.monotonic() + _RETRY_S > until:
            return
        if not said:
            said = True
            sys.stderr.write(
                f"lightccrun: waiting for the name(s) {', '.join(missing)}, for --start-timeout "
                f"{timeout_s:g} s at the most\n"
            )
        time.sleep(_RETRY_S)


def plan_store(hosts: list[str], interfaces: list[str]) -> StorePlan:
    """Chooses the store's addresses for a job on `hosts`.

    Raises:
        NetworkError: A host cannot be resolved or there is no route to it, or a named interface has
            no address.
    """
    remote = [host for host in hosts if not is_local(host)]
    if len(remote) < len(hosts):
        _check_interfaces(interfaces)
    if not remote:
        own = _addresses.loopback()
        return StorePlan(own, dict.fromkeys(hosts, own))
    if interfaces:
        address = _check_interfaces(interfaces[:1])[0]
        return StorePlan(address, dict.fromkeys(hosts, address))
    routed = {host: _routed_address(host) for host in remote}
    advertised = {host: routed.get(host, routed[remote[0]]) for host in hosts}
    addresses = set(advertised.values())
    if len(addresses) == 1:
        return StorePlan(addresses.pop(), advertised)
    any_address = "::" if any(":" in address for address in addresses) else "0.0.0.0"  # noqa: S104
    return StorePlan(any_address, advertised)


def free_port() -> int:
    """Returns a port that nobody listens on here, for somebody who will."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def _check_interfaces(names: list[str]) -> list[str]:
    """Returns the addresses of interfaces of this machine."""
    try:
        return [_addresses.interface_address(name) for name in names]
    except _addresses.AddressError as error:
        msg = f"--network-interfaces: {error}"
        raise NetworkError(msg) from error


def _routed_address(host: str) -> str:
    address = _addresses.routed_address(host)
    if address is not None:
        return address
    instead = f"with --network-interfaces; candidates: {_addresses.candidate_text()}"
    if _addresses.resolve(host):
        msg = f"there is no route to host '{host}'; name the NIC of this machine {instead}"
    else:
        msg = (
            f"host '{host}' cannot be resolved: check its spelling. If only ssh knows the name, "
            f"name the NIC of this machine that the host reaches {instead}"
        )
    raise NetworkError(msg)
