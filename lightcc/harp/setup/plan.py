"""What to do about a machine: which NICs HARP gets, for which GPUs, and what that takes.

A pure function of what `machine` saw and what the user asks for, as far as files below the root and
the queues of NICs are part of the machine; nothing is changed here.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightcc import _addresses
from lightcc.harp.setup.changes import (
    Change,
    HugePages,
    Queues,
    Setting,
    WriteProfile,
)
from lightcc.harp.setup.datapaths import NO_IOMMU, VFIO, is_shared, reasons_against
from lightcc.harp.setup.drivers import Module, TakeNic
from lightcc.harp.setup.machine import PCI
from lightcc.harp.setup.pairing import pair
from lightcc.harp.setup.profile import interfaces_value, profile_text
from lightcc.harp.setup.system import SetupError

if TYPE_CHECKING:
    from pathlib import Path

    from lightcc.harp.setup.machine import Gpu, Machine, Nic
    from lightcc.harp.setup.request import Request
    from lightcc.harp.setup.system import System

HUGE = "/sys/kernel/mm/hugepages"
_NODES = "/sys/devices/system/node"
_TWO_MIB = "hugepages-2048kB/nr_hugepages"
_MEMORY_FOR_OTHERS = 1 << 30
# Limits of HARP's socket buffers, for jobs without the right to exceed them.
_SOCKET_LIMITS = ("/proc/sys/net/core/rmem_max", "/proc/sys/net/core/wmem_max")
_SOCKET_BYTES = 8 << 20
_USUAL_MTU = 1500


@dataclass(frozen=True)
class Plan:
    """What is to be done."""

    nics: tuple[Nic, ...]
    pairs: tuple[tuple[Gpu, Nic], ...]
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    profile: str


def make_plan(system: System, machine: Machine, request: Request, dpdk_library: Path) -> Plan:
    """Decides.

    Args:
        system: Looked at only.
        machine: What `look` saw.
        request: What the user asks for.
        dpdk_library: Where libharp-dpdk.so should be.

    Raises:
        SetupError: It cannot be done, for the reasons in the text.
    """
    if request.datapath == "dpdk" and not dpdk_library.exists():
        msg = (
            f"HARP's DPDK library is not there: {dpdk_library}; build it with `make harp` where"
            " DPDK 22.11 is installed, and name it with --dpdk-library"
        )
        raise SetupError(msg)
    nics, notes = _choose(system, machine, request)
    pairs = pair(machine.gpus, nics)
    if machine.gpus and not request.interfaces:  # More than one for each GPU would idle.
        used = {nic.name for _, nic in pairs}
        notes += [
            f"{nic.name} is left out: each GPU has its NIC" for nic in nics if nic.name not in used
        ]
        nics = [nic for nic in nics if nic.name in used]
    if len(nics) < len(machine.gpus):
        notes.append(f"{len(machine.gpus)} GPUs share {len(nics)} NIC(s): one for each is better")
    changes = [
        *_socket_changes(system, request),
        *_huge_page_changes(system, machine, request, nics, notes),
        *_nic_changes(system, request, nics),
    ]
    variables = _variables(system, machine, request, nics, notes)
    comments = ["The HARP profile, by harp-setup; read by every process that uses HARP.", ""]
    comments += [f"GPU {gpu.pci} ({gpu.device}): {nic.name}" for gpu, nic in pairs] or ["No GPU."]
    comments += ["", *map(str, nics)]
    profile = profile_text(variables, comments)
    changes.append(WriteProfile(request.profile, profile))
    return Plan(tuple(nics), tuple(pairs), tuple(changes), tuple(notes), profile)


def _choose(system: System, machine: Machine, request: Request) -> tuple[list[Nic], list[str]]:
    """Returns the NICs that HARP gets, and notes on those that it does not get."""
    by_name = {nic.name: nic for nic in machine.nics}
    unknown = [name for name in request.interfaces if name not in by_name]
    if unknown:
        msg = f"no interface {', '.join(unknown)}: there are {', '.join(by_name) or 'none'}"
        raise SetupError(msg)
    asked = [nic for nic in machine.nics if nic.name in request.interfaces]
    on_a_bus = [nic for nic in machine.nics if nic.pci]
    others = [nic for nic in machine.nics if not _addresses.is_private_bridge(nic.name)]
    refusals: dict[str, str] = {}
    for candidates in [asked] if asked else [on_a_bus, others]:
        reasons = {nic: reasons_against(system, machine, nic, request) for nic in candidates}
        refusals |= {nic.name: "; ".join(why) for nic, why in reasons.items() if why}
        able = [nic for nic, why in reasons.items() if not why]
        if able and not (asked and refusals):
            notes = [f"{name} is left out: {why}" for name, why in refusals.items()]
            return (asked, []) if asked else _spare_the_hosts_own(able, len(machine.gpus), notes)
    lines = [f"no NIC can have the datapath {request.datapath}"]
    if asked and len(refusals) < len(asked):
        lines = [f"not every NIC of --interfaces can have the datapath {request.datapath}"]
    lines += [f"  {name}: {why}" for name, why in refusals.items()] or ["  there is none"]
    raise SetupError("\n".join(lines))


def _spare_the_hosts_own(
    able: list[Nic], gpus: int, notes: list[str]
) -> tuple[list[Nic], list[str]]:
    """Leaves the default route's NIC to the host where the others suffice."""
    rest = [nic for nic in able if not nic.has_default_route]
    if len(rest) == len(able) or len(rest) < max(1, gpus):
        return able, notes
    spared = [nic.name for nic in able if nic.has_default_route]
    return rest, [*notes, *(f"{name} is left to the host: its default route" for name in spared)]


def _socket_changes(system: System, request: Request) -> list[Change]:
    """Sockets are there with AF_XDP, too; a namespace may see the limits, but not set them."""
    if request.datapath == "dpdk":
        return []
    return [
        Setting(path, str(_SOCKET_BYTES))
        for path in _SOCKET_LIMITS
        if 0 < system.number(path, 0) < _SOCKET_BYTES and system.path(path).stat().st_mode & 0o200
    ]


def _huge_page_changes(
    system: System, machine: Machine, request: Request, nics: list[Nic], notes: list[str]
) -> list[Change]:
    wanted = request.wanted_huge_bytes(len(machine.gpus))
    if not wanted:
        return []
    gib = wanted >> 30
    notes.append(
        f"pages of 1 GiB, which spare the CPU look-ups, can only be had at boot:"
        f" hugepagesz=1G hugepages={gib} on the kernel's command line"
    )
    missing = wanted - huge_bytes(system)
    if missing <= 0:
        return []
    if missing > machine.available_bytes - _MEMORY_FOR_OTHERS:
        msg = (
            f"{gib} GiB of huge pages are wanted, {missing / 2**30:.1f} GiB more than there are,"
            f" but {machine.available_bytes / 2**30:.1f} GiB of memory are available and 1 GiB of"
            " them has to stay: ask for fewer with --huge-pages GIB"
        )
        raise SetupError(msg)
    nodes = sorted({nic.locality.node for nic in nics if nic.locality.node >= 0})
    paths = [f"{_NODES}/node{node}/hugepages/{_TWO_MIB}" for node in nodes]
    if not paths or not all(system.path(path).exists() for path in paths):
        paths = [f"{HUGE}/{_TWO_MIB}"]
    if not system.path(paths[0]).exists():
        msg = f"this kernel has no huge pages of 2 MiB: {paths[0]} is not there"
        raise SetupError(msg)
    pages = -(-missing // (2 << 20))
    shares = [pages // len(paths) + (i < pages % len(paths)) for i in range(len(paths))]
    return [
        HugePages(path, system.number(path, 0) + share)
        for path, share in zip(paths, shares, strict=True)
    ]


def huge_bytes(system: System) -> int:
    """Returns how much memory is in huge pages of any size, used or not."""
    return sum(
        int(path.name.removeprefix("hugepages-").removesuffix("kB"))
        * 1024
        * system.number(f"{HUGE}/{path.name}/nr_hugepages", 0)
        for path in system.path(HUGE).glob("hugepages-*kB")
    )


def _nic_changes(system: System, request: Request, nics: list[Nic]) -> list[Change]:
    changes: list[Change] = []
    if request.datapath == "af_xdp":
        for nic in nics:
            channels = system.channels(nic.name)
            now = channels.receiving if channels else nic.queues
            wanted = request.queues or max(now, request.engines)
            if wanted != now:
                changes.append(Queues(nic.name, wanted))
    if request.datapath == "dpdk":
        taken = [nic for nic in nics if not is_shared(nic)]
        if taken:
            changes.append(Module(VFIO))
        if any(not system.path(f"{PCI}/{nic.pci}/iommu_group").exists() for nic in taken):
            changes.append(Setting(NO_IOMMU, "Y"))
        changes += [
            TakeNic(nic.pci, nic.name, nic.address, nic.mtu_bytes, nic.pci_driver) for nic in taken
        ]
    return changes


def _variables(
    system: System, machine: Machine, request: Request, nics: list[Nic], notes: list[str]
) -> dict[str, str]:
    found = {"HARP_DATAPATH": request.datapath}
    if request.datapath == "dpdk":
        found["HARP_DPDK"] = ";".join(
            f"{nic.pci}@{nic.address}" + (f"@{nic.gateway}" if nic.gateway else "") for nic in nics
        )
        mtu_bytes = min(nic.mtu_bytes for nic in nics)
        if mtu_bytes != _USUAL_MTU:
            found["HARP_DPDK_MTU"] = str(mtu_bytes)
        if request.dpdk_library:
            found["HARP_DPDK_LIBRARY"] = request.dpdk_library
        notes += [
            f"{nic.name} has no gateway: HARP reaches {_network(nic)} by it, and nothing else"
            for nic in nics
            if not nic.gateway
        ]
    else:
        found["HARP_IFNAME"] = interfaces_value([nic.name for nic in nics])
        notes += _shared_networks(nics)
    found["HARP_ENGINES"] = str(request.engines)
    if request.mode != "inline":
        found["HARP_MODE"] = request.mode
        cores = request.cores or _free_cores(system, machine, request, nics, notes)
        if cores:
            found["HARP_CORES"] = ",".join(map(str, cores))
    return found


def _free_cores(
    system: System, machine: Machine, request: Request, nics: list[Nic], notes: list[str]
) -> tuple[int, ...]:
    """Returns cores near the NIC for engine threads, the last ones: interrupts like the first."""
    if len(machine.gpus) > 1 or len(nics) > 1:
        notes.append(
            "no HARP_CORES: the processes of several GPUs would pin their engines to the same"
            " cores; set it for each process"
        )
        return ()
    near = system.read(f"{_NODES}/node{nics[0].locality.node}/cpulist")
    cores = parse_cores(near or system.read("/sys/devices/system/cpu/online"))[1:]
    if len(cores) < request.engines:
        notes.append(f"no HARP_CORES: {request.engines} core(s) cannot be spared")
        return ()
    return tuple(cores[-request.engines :])


def parse_cores(text: str) -> list[int]:
    """Returns the numbers of "0-3,8".

    Raises:
        ValueError: It is no such list.
    """
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _network(nic: Nic) -> str:
    return str(ipaddress.IPv4Interface(nic.address).network)


def _shared_networks(nics: list[Nic]) -> list[str]:
    networks: dict[str, list[str]] = {}
    for nic in nics:
        if nic.is_ipv4:
            networks.setdefault(_network(nic), []).append(nic.name)
    return [
        f"{', '.join(names)} are all in {network}: without a routing rule for each address the"
        f" kernel sends everything by {names[0]}"
        for network, names in networks.items()
        if len(names) > 1
    ]
