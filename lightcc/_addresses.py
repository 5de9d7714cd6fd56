"""This machine's network interfaces, and by which of their addresses other hosts can reach it.

Everything is asked of the kernel; a UDP connect, which sends nothing, tells the route. Bridges of
containers and virtual machines have the same address on every host, so they are never offered to
other hosts.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import re
import socket
import struct
from pathlib import Path
from typing import NamedTuple

_SIOCGIFADDR = 0x8915
_SIOCGIFFLAGS = 0x8913
_IFF_UP = 0x1
_IFF_LOOPBACK = 0x8
_ANY_PORT = 9  # A UDP connect needs a port; nothing is sent.
_FAR_AWAY = "192.0.2.1"  # Reserved for documentation: goes where the default route goes.
_PRIVATE_BRIDGES = re.compile(r"(docker|br-|virbr|lxcbr|lxdbr|cni|podman|veth|kube-ipvs)")


class AddressError(ValueError):
    """No usable address; the text lists the candidates."""


class Interface(NamedTuple):
    """A network interface that is up, with its address, IPv4 if it has one."""

    name: str
    address: str
    loopback: bool = False

    def __str__(self) -> str:
        """Returns for example "eth0 (10.0.0.1)"."""
        return f"{self.name} ({self.address})"


def interfaces() -> list[Interface]:
    """Returns the interfaces that are up and have an address, in the kernel's order."""
    found = []
    for _, name in socket.if_nameindex():
        flags = _flags(name)
        address = _address(name) if flags & _IFF_UP else None
        if address is not None:
            found.append(Interface(name, address, bool(flags & _IFF_LOOPBACK)))
    return found


def interface_address(name: str) -> str:
    """Returns the address of the interface `name`, IPv4 if it has one.

    Raises:
        AddressError: It does not exist, is not up or has no address.
    """
    for interface in interfaces():
        if interface.name == name:
            return interface.address
    msg = f"no interface '{name}' with an address is up; candidates: {candidate_text()}"
    raise AddressError(msg)


def candidates(towards: str | None = None) -> list[Interface]:
    """Returns the interfaces by which other hosts may reach this one, the likeliest first.

    Loopback and the bridges of containers are left out.

    Args:
        towards: A host or address that the others reach, too; its route comes first.
    """
    usable = [
        interface
        for interface in interfaces()
        if not interface.loopback and not is_private_bridge(interface.name)
    ]
    preferred = [routed_address(host) for host in (towards, _FAR_AWAY) if host is not None]

    def preference(interface: Interface) -> int:
        address = interface.address
        return preferred.index(address) if address in preferred else len(preferred)

    return sorted(usable, key=preference)


def is_private_bridge(name: str) -> bool:
    """Returns whether an interface belongs to containers or virtual machines, by its name."""
    return _PRIVATE_BRIDGES.match(name) is not None


def candidate_text() -> str:
    """Returns the interfaces for an error's text."""
    return ", ".join(map(str, interfaces())) or "none is up"


def routed_address(host: str) -> str | None:
    """Returns this machine's address on the route to `host`; `None` if there is none. Blocks."""
    for family, address in resolve(host):
        with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
            probe.connect((address, _ANY_PORT))
            return str(probe.getsockname()[0])
    return None


def resolve(host: str) -> list[tuple[int, str]]:
    """Returns (address family, address) pairs of `host`; none if it is not known. Blocks."""
    try:
        found = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)
    except OSError:
        return []
    return [(int(family), str(address[0])) for family, _, _, _, address in found]


def is_own(family: int, address: str) -> bool:
    """Returns whether an address is one of this machine's."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def loopback() -> str:
    """Returns 127.0.0.1, or ::1 where loopback has no IPv4."""
    has_ipv4 = is_own(socket.AF_INET, "127.0.0.1") or not socket.has_ipv6
    return "127.0.0.1" if has_ipv4 or not is_own(socket.AF_INET6, "::1") else "::1"


def every_address() -> str:
    """Returns what a server binds to that listens on all addresses."""
    return "::" if ":" in loopback() else "0.0.0.0"  # noqa: S104


def to_dial(bound: str) -> str:
    """Returns by which address this machine reaches a server that is bound to `bound`."""
    return {"::": "::1", "0.0.0.0": "127.0.0.1"}.get(bound, bound)  # noqa: S104


def is_loopback(address: str) -> bool:
    """Returns whether an address stays within the machine."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def host_and_port(address: str, port: int | str) -> str:
    """Returns "1.2.3.4:5" or "[::1]:5"."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def split_host_and_port(text: str) -> tuple[str, int]:
    """Undoes `host_and_port`."""
    host, _, port = text.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _request(name: str) -> bytes:
    return struct.pack("256s", name.encode()[:15])


def _flags(name: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        reply = fcntl.ioctl(probe.fileno(), _SIOCGIFFLAGS, _request(name))
        return int(struct.unpack_from("H", reply, 16)[0])
    return 0


def _address(name: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, _request(name))
        return socket.inet_ntoa(reply[20:24])
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            digits, _, _, scope, _, device = line.split()
            if device == name and scope != "20":  # Not link-local.
                return str(ipaddress.IPv6Address(int(digits, 16)))
    return None
