"""Which datapath a NIC can have, and why not.

Each answer is a list of reasons, empty where nothing is in the way. They are what can be known
beforehand; the plugin has the last word when it opens the NIC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightcc.harp.setup.machine import Machine, Nic
    from lightcc.harp.setup.system import System

# Linux's drivers whose devices stay with them while DPDK uses these.
_SHARED_DRIVERS = ("mlx4_core", "mlx5_core")
VFIO = "vfio-pci"
_XDP_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13, "CAP_BPF": 39}
_ETHERNET = 1


def is_for_dpdk(driver: str) -> bool:
    """Returns whether DPDK can use a PCI device that belongs to this driver."""
    return driver == VFIO or driver in _SHARED_DRIVERS


def _udp(_system: System, _machine: Machine, nic: Nic, _engines: int) -> list[str]:
    return [] if nic.address else ["it is down or has no address"]


def _af_xdp(system: System, machine: Machine, nic: Nic, engines: int) -> list[str]:
    reasons = _udp(system, machine, nic, engines)
    if nic.kind != _ETHERNET:
        reasons.append("it is no Ethernet interface")
    if machine.kernel < (5, 10):
        reasons.append(f"the kernel is {machine.kernel[0]}.{machine.kernel[1]}, older than 5.10")
    if missing := _missing_capabilities(system):
        reasons.append(f"processes here may not have {', '.join(missing)}")
    reasons += _uppers(nic)
    channels = system.channels(nic.name)
    maximum = max(nic.queues, channels.maximum if channels else 0)
    if engines > maximum:
        reasons.append(f"it has at most {maximum} queue(s), not {engines}")
    return reasons


def _dpdk(_system: System, _machine: Machine, nic: Nic, _engines: int) -> list[str]:
    if not nic.pci:
        return ["it is no PCI device"]
    reasons = []
    if "/" not in nic.address:
        reasons.append("it has no IPv4 address that HARP could take over")
    if nic.has_default_route:
        reasons.append("the default route goes over it, and the kernel would lose it")
    return reasons + _uppers(nic)


def _uppers(nic: Nic) -> list[str]:
    return [f"{', '.join(nic.uppers)} is on top of it"] if nic.uppers else []


def _missing_capabilities(system: System) -> list[str]:
    """Looks at what root could have here, so that --dry-run tells it to others, too."""
    lines = system.read("/proc/self/status").splitlines()
    bounds = [line.split()[1] for line in lines if line.startswith("CapBnd:")]
    bound = int(bounds[0], 16) if bounds else -1
    return [name for name, bit in _XDP_CAPABILITIES.items() if not bound >> bit & 1]


_REASONS: dict[str, Callable[[System, Machine, Nic, int], list[str]]] = {
    "udp": _udp,
    "af_xdp": _af_xdp,
    "dpdk": _dpdk,
}
DATAPATHS = tuple(_REASONS)


def reasons_against(
    system: System, machine: Machine, nic: Nic, datapath: str, engines: int
) -> list[str]:
    """Returns why the NIC cannot have a datapath with so many engines."""
    return _REASONS[datapath](system, machine, nic, engines)
