"""Machines that do not exist: a tree of sysfs and procfs, and a kernel that reacts to writes."""

from __future__ import annotations

import ipaddress
import socket
import struct
from typing import TYPE_CHECKING

from lightcc.harp.setup.machine import NET, PCI
from lightcc.harp.setup.system import Channels, System

if TYPE_CHECKING:
    from pathlib import Path

DRIVERS = "/sys/bus/pci/drivers"
HUGE = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
BOOT = "/proc/sys/kernel/random/boot_id"


def words(address: str) -> str:
    """An IPv4 address as /proc/net has it."""
    return f"{struct.unpack('=I', socket.inet_aton(address))[0]:08X}"


class FakeMachine(System):
    """Answers as a kernel would; `grants` huge pages of 2 MiB on the whole."""

    def __init__(self, root: Path, *, grants: int = 1 << 30) -> None:
        super().__init__(str(root))
        self.grants = grants
        self.ipv4: dict[str, str] = {}
        self.queues: dict[str, Channels] = {}
        self.routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n"
        self.file("/proc/sys/kernel/osrelease", "6.8.0-45-generic")
        self.file(BOOT, "first-boot")
        self.file("/proc/net/route", self.routes)
        self.file("/proc/self/status", "Name:\tx\nCapBnd:\t000001ffffffffff")
        for limit in ("rmem_max", "wmem_max"):
            self.file(f"/proc/sys/net/core/{limit}", "212992")
        self.file(HUGE, "0")
        self.path(NET).mkdir(parents=True)
        (self.path(NET) / "bonding_masters").touch()
        self.nic("lo", "virtual", address="127.0.0.1/8", kind=772)

    def file(self, path: str, text: str) -> None:
        location = self.path(path)
        location.parent.mkdir(parents=True, exist_ok=True)
        location.write_text(text + "\n", encoding="ascii")

    # -- What the machine has -------------------------------------------------------------------

    def device(self, way: str, ids: str, kind: str, node: int = -1) -> str:
        """A PCI device at the end of `way` ("pci0000:00/0000:00:06.0"); returns its address."""
        pci = way.rpartition("/")[2]
        base = f"/sys/devices/{way}"
        vendor, device = ids.split(":")
        for name, text in {
            "vendor": f"0x{vendor}",
            "device": f"0x{device}",
            "class": kind,
            "numa_node": str(node),
        }.items():
            self.file(f"{base}/{name}", text)
        self.link(f"{PCI}/{pci}", base)
        return pci

    def link(self, path: str, target: str) -> None:
        location = self.path(path)
        location.parent.mkdir(parents=True, exist_ok=True)
        location.unlink(missing_ok=True)
        location.symlink_to(self.path(target))

    def bind(self, pci: str, driver: str) -> None:
        self.path(f"{DRIVERS}/{driver}").mkdir(parents=True, exist_ok=True)
        self.link(f"{PCI}/{pci}/driver", f"{DRIVERS}/{driver}")

    def gpu(self, way: str, node: int = -1) -> None:
        self.device(way, "10de:1db5", "0x030200", node)

    def nic(
        self,
        name: str,
        way: str,
        *,
        address: str = "",
        driver: str = "virtio-pci",
        gateway: str = "",
        is_default: bool = False,
        queues: int = 4,
        mtu: int = 1500,
        node: int = -1,
        kind: int = 1,
    ) -> None:
        """A NIC; `way` is "virtual" for one that is on no bus."""
        base = f"/sys/devices/{way}/net/{name}"
        for file, text in {"mtu": str(mtu), "type": str(kind)}.items():
            self.file(f"{base}/{file}", text)
        self.file(f"{base}/address", "02:00:00:00:00:01")
        for queue in range(queues):
            self.file(f"{base}/queues/rx-{queue}/rps_cpus", "0")
        if way != "virtual":
            pci = self.device(way, "1af4:1000", "0x020000", node)
            self.link(f"{base}/device", f"/sys/devices/{way}")
            self.bind(pci, driver)
            self.queues[name] = Channels(0, 0, 0, 8, 0, 0, 0, queues)
        self.link(f"{NET}/{name}", base)
        if address:
            self.ipv4[name] = address
        if is_default or gateway:
            mask = "00000000" if is_default else words("255.0.0.0")
            target = "00000000" if is_default else words("10.0.0.0")
            flags = "0003" if gateway else "0001"
            self.routes += (
                f"{name}\t{target}\t{words(gateway or '0.0.0.0')}\t{flags}\t0\t0\t0\t{mask}\n"
            )
            self.file("/proc/net/route", self.routes)

    # -- What the kernel does -------------------------------------------------------------------

    def addresses(self) -> dict[str, str]:
        present = {path.name for path in self.path(NET).iterdir()}
        return {n: a.partition("/")[0] for n, a in self.ipv4.items() if n in present}

    def netmask(self, interface: str) -> str:
        return str(ipaddress.IPv4Interface(self.ipv4[interface]).netmask)

    def channels(self, interface: str) -> Channels | None:
        return self.queues.get(interface)

    def set_channels(self, interface: str, channels: Channels) -> None:
        if channels.combined > self.queues[interface].max_combined:
            raise OSError(22, "Invalid argument")
        self.queues[interface] = channels

    def write(self, path: str, text: str) -> None:
        super().write(path, text)
        if path.endswith("/nr_hugepages"):
            self.file(path, str(min(int(text), self.grants)))

    # -- For comparing --------------------------------------------------------------------------

    def everything(self) -> dict[str, str]:
        """All files with what they hold, links with where they point, addresses and queues."""
        found = {f"address of {name}": address for name, address in self.ipv4.items()}
        found |= {f"queues of {name}": str(count) for name, count in self.queues.items()}
        for path in self.root.rglob("*"):
            name = str(path.relative_to(self.root))
            if path.is_symlink():
                found[name] = str(path.readlink())
            elif path.is_file():
                found[name] = path.read_text(encoding="ascii").strip()
            elif path.is_dir():
                found[name] = "folder"
        return found


def gpu_server(root: Path, **options: int) -> FakeMachine:
    """Eight GPUs and nine NICs: each two GPUs and two NICs share a switch, two nodes."""
    machine = FakeMachine(root, **options)
    machine.nic(
        "eth0",
        "pci0000:00/0000:00:05.0",
        address="10.0.0.10/24",
        gateway="10.0.0.1",
        is_default=True,
        node=0,
    )
    # NICs in the other order than GPUs, so that names alone do not pair them.
    for i in range(8):
        switch, node = i // 2, i // 4
        bridge = f"pci0000:{switch + 1:x}0/0000:{switch + 1:x}0:01.0/0000:{switch + 1:x}1:00.0"
        bus = f"{switch + 1:x}{2 + i % 2}"
        machine.gpu(f"{bridge}/0000:{switch + 1:x}1:0{1 + i % 2}.0/0000:{bus}:00.0", node)
        name, pci = f"eth{8 - i}", f"0000:{switch + 1:x}{5 + i % 2}:00.0"
        machine.nic(
            name,
            f"{bridge}/0000:{switch + 1:x}1:0{3 + i % 2}.0/{pci}",
            address=f"10.0.{8 - i}.10/24",
            gateway=f"10.0.{8 - i}.1",
            node=node,
        )
    return machine
