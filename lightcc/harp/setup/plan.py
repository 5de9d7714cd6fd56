"""What to do about a machine: which NICs HARP gets, for which GPUs, and what that takes.

A pure function of what `machine` saw and what the user asks for, as far as files below the root and
the queues of NICs are part of the machine; nothing is changed here.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lightcc import _addresses, harp
from lightcc.harp.setup.changes import PROFILE, QUEUES, SETTING, Change
from lightcc.harp.setup.datapaths import VFIO, is_for_dpdk, reasons_against
from lightcc.harp.setup.pairing import pair
from lightcc.harp.setup.system import SetupError

if TYPE_CHECKING:
    from lightcc.harp.setup.machine import Gpu, Machine, Nic
    from lightcc.harp.setup.system import System

_HUGE = "/sys/kernel/mm/hugepages"
_TWO_MIB = f"{_HUGE}/hugepages-2048kB/nr_hugepages"
# Limits of HARP's socket buffers, for jobs without the right to exceed them.
_SOCKET_LIMITS = ("/proc/sys/net/core/rmem_max", "/proc/sys/net/core/wmem_max")
_SOCKET_BYTES = 8 << 20
_USUAL_MTU = 1500


@dataclass(frozen=True)
class Request:
    """The flags of one run that decide what is done."""

    datapath: str = "udp"
    interfaces: list[str] = field(default_factory=list)  # Empty: chosen.
    engines: int = 1
    huge_pages_gib: int | None = None  # None: 5 for each GPU, and 10.
    settings: dict[str, str] = field(default_factory=dict)  # For the profile, as they are.
    profile: str = "/etc/harp/profile.conf"


@dataclass(frozen=True)
class Plan:
    """What is to be done."""

    nics: tuple[Nic, ...]
    pairs: tuple[tuple[Gpu, Nic], ...]
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    profile: str


def make_plan(system: System, machine: Machine, request: Request) -> Plan:
    """Decides.

    Args:
        system: Looked at only.
        machine: What `look` saw.
        request: What the user asks for.

    Raises:
        SetupError: It cannot be done, for the reasons in the text.
    """
    library = dpdk_library(request.settings)
    if request.datapath == "dpdk" and not library.exists():
        msg = (
            f"HARP's DPDK library is not there: {library}; build it with `make harp` where DPDK"
            " 22.11 is installed, and name it with --set HARP_DPDK_LIBRARY=FILE"
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
    if request.datapath == "dpdk":
        changes = _huge_page_changes(system, machine, request, notes)
    else:
        changes = [*_socket_changes(system), *_queue_changes(system, request, nics)]
    comments = ["The HARP profile, by harp-setup; read by every process that uses HARP.", ""]
    comments += [f"GPU {gpu.pci} ({gpu.device}): {nic.name}" for gpu, nic in pairs] or ["No GPU."]
    variables = _variables(request, nics, notes)
    lines = [f"# {comment}".rstrip() for comment in comments]
    lines += [f"{name}={value}" for name, value in variables.items()]
    profile = "\n".join(lines) + "\n"
    changes.append(Change(PROFILE, request.profile, profile))
    return Plan(tuple(nics), tuple(pairs), tuple(changes), tuple(notes), profile)


def dpdk_library(variables: dict[str, str]) -> Path:
    """Returns where the plugin looks for its DPDK part, under these variables."""
    beside = Path(harp.__file__).resolve().parent / "plugin/libharp-dpdk.so"
    return Path(variables.get("HARP_DPDK_LIBRARY") or beside)


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
        reasons = {
            nic: reasons_against(system, machine, nic, request.datapath, request.engines)
            for nic in candidates
        }
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


def _socket_changes(system: System) -> list[Change]:
    """Sockets are there with AF_XDP, too; a namespace may see the limits, but not set them."""
    return [
        Change(SETTING, path, str(_SOCKET_BYTES))
        for path in _SOCKET_LIMITS
        if 0 < system.number(path, 0) < _SOCKET_BYTES and system.path(path).stat().st_mode & 0o200
    ]


def _queue_changes(system: System, request: Request, nics: list[Nic]) -> list[Change]:
    if request.datapath != "af_xdp":
        return []
    channels = {nic.name: system.channels(nic.name) for nic in nics}
    now = {nic.name: has.receiving if (has := channels[nic.name]) else nic.queues for nic in nics}
    few = [nic.name for nic in nics if now[nic.name] < request.engines]
    return [Change(QUEUES, name, str(request.engines)) for name in few]


def _huge_page_changes(
    system: System, machine: Machine, request: Request, notes: list[str]
) -> list[Change]:
    gib = request.huge_pages_gib
    if gib is None:
        gib = 5 * len(machine.gpus) + 10
    notes.append(
        f"pages of 1 GiB, which spare the CPU look-ups, can only be had at boot:"
        f" hugepagesz=1G hugepages={gib} on the kernel's command line"
    )
    missing = (gib << 30) - huge_bytes(system)
    if missing <= 0:
        return []
    if not system.path(_TWO_MIB).exists():
        msg = f"this kernel has no huge pages of 2 MiB: {_TWO_MIB} is not there"
        raise SetupError(msg)
    pages = system.number(_TWO_MIB, 0) + -(-missing // (2 << 20))
    return [Change(SETTING, _TWO_MIB, str(pages))]


def huge_bytes(system: System) -> int:
    """Returns how much memory is in huge pages of any size, used or not."""
    return sum(
        int(path.name.removeprefix("hugepages-").removesuffix("kB"))
        * 1024
        * system.number(f"{_HUGE}/{path.name}/nr_hugepages", 0)
        for path in system.path(_HUGE).glob("hugepages-*kB")
    )


def _variables(request: Request, nics: list[Nic], notes: list[str]) -> dict[str, str]:
    found = {"HARP_DATAPATH": request.datapath}
    if request.datapath == "dpdk":
        found["HARP_DPDK"] = ";".join(
            f"{nic.pci}@{nic.address}" + (f"@{nic.gateway}" if nic.gateway else "") for nic in nics
        )
        mtu_bytes = min(nic.mtu_bytes for nic in nics)
        if mtu_bytes != _USUAL_MTU:
            found["HARP_DPDK_MTU"] = str(mtu_bytes)
        notes += [
            f"{nic.name} has no gateway: HARP reaches {_network(nic)} by it, and nothing else"
            for nic in nics
            if not nic.gateway
        ]
        notes += [bind_line(nic.pci) for nic in nics if not is_for_dpdk(nic.driver)]
    else:
        found["HARP_IFNAME"] = "=" + ",".join(nic.name for nic in nics)
        notes += _shared_networks(nics)
    return found | {"HARP_ENGINES": str(request.engines)} | request.settings


def bind_line(pci: str) -> str:
    """Returns what hands a NIC to DPDK, for people."""
    return f"hand it to DPDK before jobs start: dpdk-devbind.py --bind={VFIO} {pci}"


def _network(nic: Nic) -> str:
    return str(ipaddress.IPv4Interface(nic.address).network)


def _shared_networks(nics: list[Nic]) -> list[str]:
    networks: dict[str, list[str]] = {}
    for nic in nics:
        if "/" in nic.address:
            networks.setdefault(_network(nic), []).append(nic.name)
    return [
        f"{', '.join(names)} are all in {network}: without a routing rule for each address the"
        f" kernel sends everything by {names[0]}"
        for network, names in networks.items()
        if len(names) > 1
    ]
