"""Addresses as the launcher needs them: is a host this machine, and where do others reach us?

The rendezvous store listens on loopback when every rank is local. Otherwise it listens on the
address from which the kernel would route to the other hosts (asked with a UDP connect, which sends
nothing), or on that of the first interface the user named. When different hosts are reached from
different addresses it listens on all of them, and each host is told its own; connections prove the
job's secret in any case.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

_SIOCGIFADDR = 0x8915
_ANY_PORT = 9  # Of the UDP connect; nothing is sent.


class NetworkError(RuntimeError):
    """No usable address; the text says what to do."""


@dataclass(frozen=True)
class StorePlan:
    """Where the store listens and what each host is told (without the port)."""

    bind: str
    advertised: dict[str, str]


def host_and_port(address: str, port: int | str) -> str:
    """Returns "1.2.3.4:5" or "[::1]:5"."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def is_local(host: str) -> bool:
    """Whether `host` names this machine. Blocks: in the resolver."""
    if host in {"localhost", socket.gethostname(), socket.getfqdn()}:
        return True
    return any(_is_own_address(family, address) for family, address in _resolve(host))


def plan_store(hosts: list[str], interfaces: list[str]) -> StorePlan:
    """Chooses the store's addresses for a job on `hosts`.

    Raises:
        NetworkError: There is no route to a host, or the named interface has no address.
    """
    remote = [host for host in hosts if not is_local(host)]
    if not remote:
        return StorePlan("127.0.0.1", dict.fromkeys(hosts, "127.0.0.1"))
    if interfaces:
        address = interface_address(interfaces[0])
        return StorePlan(address, dict.fromkeys(hosts, address))
    routed = {host: _routed_address(host) for host in remote}
    advertised = {host: routed.get(host, routed[remote[0]]) for host in hosts}
    addresses = set(advertised.values())
    if len(addresses) == 1:
        return StorePlan(addresses.pop(), advertised)
    any_address = "::" if any(":" in address for address in addresses) else "0.0.0.0"  # noqa: S104
    return StorePlan(any_address, advertised)


def interface_address(name: str) -> str:
    """Returns the address of a network interface, IPv4 if it has one.

    Raises:
        NetworkError: No such interface, or it has no address; the text lists the candidates.
    """
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        return socket.inet_ntoa(reply[20:24])
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            digits, _, _, scope, _, device = line.split()
            if device == name and scope != "20":  # Not link-local.
                return str(ipaddress.IPv6Address(int(digits, 16)))
    candidates = ", ".join(interface for _, interface in socket.if_nameindex())
    msg = f"--network-interfaces: '{name}' has no address; this machine has {candidates}"
    raise NetworkError(msg)


def _resolve(host: str) -> list[tuple[int, str]]:
    try:
        found = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)
    except OSError:
        return []
    return [(int(family), str(address[0])) for family, _, _, _, address in found]


def _is_own_address(family: int, address: str) -> bool:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _routed_address(host: str) -> str:
    for family, address in _resolve(host):
        with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
            probe.connect((address, _ANY_PORT))
            return str(probe.getsockname()[0])
    msg = (
        f"cannot tell which of this machine's addresses host '{host}' reaches "
        "(its name does not resolve here, or there is no route); name a NIC of this machine: "
        "--network-interfaces eth0"
    )
    raise NetworkError(msg)
