"""What a machine has that matters to HARP: NICs and GPUs, from sysfs.

No tool of a vendor is asked: a GPU is a display controller of NVIDIA's on a PCI bus, its place is
where sysfs has it.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightcc.harp.setup.system import System

NET = "/sys/class/net"
PCI = "/sys/bus/pci/devices"
_NVIDIA = "0x10de"
_DISPLAY = "0x03"
_ETHERNET, _LOOPBACK = 1, 772
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROUTE_UP, _ROUTE_GATEWAY = 0x1, 0x2


@dataclass(frozen=True)
class Locality:
    """Where a device is: the devices above it, outermost first, and its NUMA node (-1: unknown)."""

    path: tuple[str, ...] = ()
    node: int = -1

    @property
    def pci(self) -> str:
        """Its PCI address, "" where it is on no PCI bus."""
        found = [part for part in self.path if _PCI_ADDRESS.fullmatch(part)]
        return found[-1] if found else ""


@dataclass(frozen=True)
class Gpu:
    """A GPU of NVIDIA's."""

    pci: str
    device: str  # "10de:1db5"
    locality: Locality


@dataclass(frozen=True)
class Nic:
    """A network interface, and what the kernel says about it."""

    name: str
    kind: int  # ARPHRD_*: 1 is Ethernet.
    locality: Locality
    device: str  # "1af4:1000", "" where it is on no PCI bus.
    driver: str  # The PCI device's, such as virtio-pci.
    queues: int
    mtu_bytes: int
    mac: str
    address: str  # "10.0.0.1/24", IPv6 without a prefix; "" where it is down or has none.
    gateway: str  # IPv4, of its widest route; "" where there is none.
    has_default_route: bool
    uppers: tuple[str, ...]  # Bonds, bridges and VLANs on top of it.

    @property
    def pci(self) -> str:
        """Its PCI address, "" where it is on no PCI bus."""
        return self.locality.pci

    def __str__(self) -> str:
        """Returns its line in the report."""
        words = [self.pci or "no PCI device", self.device, self.driver, f"{self.queues} queue(s)"]
        words += [f"MTU {self.mtu_bytes}", self.mac, self.address or "no address"]
        words += [f"node {self.locality.node}"] if self.locality.node >= 0 else []
        words += ["default route"] if self.has_default_route else []
        return f"{self.name}: " + ", ".join(word for word in words if word)


@dataclass(frozen=True)
class Machine:
    """A machine at one moment."""

    nics: tuple[Nic, ...]  # Without loopback, by PCI address.
    gpus: tuple[Gpu, ...]  # By PCI address, as CUDA numbers them with CUDA_DEVICE_ORDER=PCI_BUS_ID.
    kernel: tuple[int, int]


def look(system: System) -> Machine:
    """Looks at the machine; needs no privilege."""
    routes = list(_routes(system))
    addresses = system.addresses()
    names = [path.name for path in sorted(system.path(NET).glob("*")) if (path / "mtu").exists()]
    nics = [
        _nic(system, name, addresses.get(name, ""), routes)
        for name in names
        if system.number(f"{NET}/{name}/type", _ETHERNET) != _LOOPBACK
    ]
    return Machine(
        nics=tuple(sorted(nics, key=lambda nic: (not nic.pci, nic.pci, nic.name))),
        gpus=tuple(_gpus(system)),
        kernel=_kernel(system),
    )


def locality_of(system: System, link: str) -> Locality:
    """Returns where the device behind a link in sysfs is."""
    where, devices = system.path(link).resolve(), system.path("/sys/devices").resolve()
    parts = where.relative_to(devices).parts if where.is_relative_to(devices) else ()
    while parts and not _PCI_ADDRESS.fullmatch(parts[-1]):
        parts = parts[:-1]
    if not parts:
        return Locality()
    return Locality(parts, system.number(f"{PCI}/{parts[-1]}/numa_node", -1))


def driver_of(system: System, pci: str) -> str:
    """Returns the driver of a PCI device, "" where it has none."""
    link = system.path(f"{PCI}/{pci}/driver")
    return link.resolve().name if pci and link.exists() else ""


def _nic(system: System, name: str, address: str, routes: list[tuple[str, str, bool]]) -> Nic:
    base = f"{NET}/{name}"
    locality = locality_of(system, f"{base}/device")
    mine = [route for route in routes if route[0] == name]
    return Nic(
        name=name,
        kind=system.number(f"{base}/type", _ETHERNET),
        locality=locality,
        device=_ids(system, locality.pci),
        driver=driver_of(system, locality.pci),
        queues=max(1, len(list(system.path(f"{base}/queues").glob("rx-*")))),
        mtu_bytes=system.number(f"{base}/mtu", 1500),
        mac=system.read(f"{base}/address"),
        address=_with_prefix(system, name, address),
        gateway=next((gateway for _, gateway, _ in mine if gateway), ""),
        has_default_route=any(is_default for _, _, is_default in mine),
        uppers=tuple(path.name[6:] for path in sorted(system.path(base).glob("upper_*"))),
    )


def _with_prefix(system: System, name: str, address: str) -> str:
    if not address or ":" in address:
        return address
    return str(ipaddress.IPv4Interface(f"{address}/{system.netmask(name)}"))


def _gpus(system: System) -> Iterator[Gpu]:
    for path in sorted(system.path(PCI).glob("*")):
        device = f"{PCI}/{path.name}"
        if system.read(f"{device}/vendor") == _NVIDIA and system.read(f"{device}/class").startswith(
            _DISPLAY
        ):
            yield Gpu(path.name, _ids(system, path.name), locality_of(system, device))


def _ids(system: System, pci: str) -> str:
    if not pci:
        return ""
    vendor, device = (system.read(f"{PCI}/{pci}/{name}") for name in ("vendor", "device"))
    return f"{vendor.removeprefix('0x')}:{device.removeprefix('0x')}"


def _routes(system: System) -> Iterator[tuple[str, str, bool]]:
    """Yields (interface, IPv4 gateway or "", whether it is a default route), the widest first."""
    found = []
    for line in system.read("/proc/net/route").splitlines()[1:]:
        name, destination, gateway, flags, _, _, _, mask = line.split()[:8]
        if int(flags, 16) & _ROUTE_UP:
            has_gateway = int(flags, 16) & _ROUTE_GATEWAY
            is_default = int(mask, 16) == 0 and int(destination, 16) == 0
            width = int(mask, 16).bit_count()
            found.append((width, name, _ipv4(gateway) if has_gateway else "", is_default))
    yield from (route[1:] for route in sorted(found, key=lambda route: route[0]))
    for line in system.read("/proc/net/ipv6_route").splitlines():
        words = line.split()
        if words[0] == "0" * 32 and words[1] == "00" and words[9] != "lo":
            yield words[9], "", True


def _ipv4(digits: str) -> str:
    return socket.inet_ntoa(struct.pack("=I", int(digits, 16)))


def _kernel(system: System) -> tuple[int, int]:
    numbers = re.match(r"(\d+)\.(\d+)", system.read("/proc/sys/kernel/osrelease"))
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
