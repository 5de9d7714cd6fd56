"""Which datapath a NIC can have, and why not.

Each answer is a list of reasons, empty where nothing is in the way. They are what can be known
beforehand; the plugin has the last word when it opens the NIC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightcc.harp.setup.machine import PCI, driver_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightcc.harp.setup.machine import Machine, Nic
    from lightcc.harp.setup.request import Request
    from lightcc.harp.setup.system import System

VFIO = "vfio-pci"
NO_IOMMU = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode"
# Linux's drivers of PCI devices for which DPDK has a driver of its own ...
# fmt: off
_DPDK_DRIVERS = frozenset((
    "atlantic", "bnxt_en", "cxgb4", "e1000", "e1000e", "ena", "enic", "gve", "hinic", "hns3",
    "i40e", "iavf", "ice", "igb", "igbvf", "igc", "ixgbe", "ixgbevf", "nfp", "qede",
    "vfio-pci", "virtio-pci", "vmxnet3",
))
# fmt: on
# ... and those whose devices stay with the kernel's driver while DPDK uses them.
_SHARED_DRIVERS = frozenset(("mlx4_core", "mlx5_core"))
_XDP_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13, "CAP_BPF": 39}
_ETHERNET = 1


def is_shared(nic: Nic) -> bool:
    """Returns whether DPDK uses the NIC through the kernel's driver."""
    return is_shared_driver(nic.pci_driver)


def is_shared_driver(driver: str) -> bool:
    """Returns whether DPDK uses NICs through this driver of the kernel's."""
    return driver in _SHARED_DRIVERS


def _udp(_system: System, _machine: Machine, nic: Nic, _request: Request) -> list[str]:
    return [] if nic.address else ["it is down or has no address"]


def _af_xdp(system: System, machine: Machine, nic: Nic, request: Request) -> list[str]:
    reasons = _udp(system, machine, nic, request)
    if nic.kind != _ETHERNET:
        reasons.append("it is no Ethernet interface")
    if machine.kernel < (5, 10):
        reasons.append(f"the kernel is {machine.kernel[0]}.{machine.kernel[1]}, older than 5.10")
    missing = _missing_capabilities(system)
    if missing:
        reasons.append(f"processes here may not have {', '.join(missing)}")
    if nic.uppers:
        reasons.append(f"{', '.join(nic.uppers)} is on top of it")
    channels = system.channels(nic.name)
    maximum = max(nic.queues, channels.maximum if channels else 0)
    wanted = request.queues or request.engines
    if wanted > maximum:
        reasons.append(f"it has at most {maximum} queue(s), not {wanted}")
    if request.queues and channels is None:
        reasons.append("its driver does not let its queues be set")
    return reasons


def _dpdk(system: System, _machine: Machine, nic: Nic, request: Request) -> list[str]:
    if not nic.pci:
        return ["it is no PCI device"]
    reasons = []
    if not nic.is_ipv4:
        reasons.append("it has no IPv4 address that HARP could take over")
    if nic.has_default_route:
        reasons.append("the default route goes over it, and the kernel would lose it")
    if nic.connections:
        few = ", ".join(sorted(set(nic.connections))[:3])
        reasons.append(f"{len(nic.connections)} TCP connection(s), at {few}, would be cut")
    if nic.uppers:
        reasons.append(f"{', '.join(nic.uppers)} is on top of it")
    if is_shared(nic):
        return reasons
    if nic.pci_driver not in _DPDK_DRIVERS:
        driver = nic.pci_driver or "no driver"
        known = ", ".join(sorted(_DPDK_DRIVERS - {VFIO} | _SHARED_DRIVERS))
        reasons.append(f"DPDK has nothing for NICs of {driver}, only of {known}")
    return reasons + _vfio(system, nic, request)


def _vfio(system: System, nic: Nic, request: Request) -> list[str]:
    """Says why the NIC cannot be handed to user space."""
    group = system.path(f"{PCI}/{nic.pci}/iommu_group")
    if not group.exists():
        if request.unsafe_no_iommu:
            return []
        return [
            "there is no IOMMU between it and memory: boot with intel_iommu=on or amd_iommu=on, or"
            " trust every process that uses it and say --unsafe-no-iommu"
        ]
    # What the IOMMU cannot tell apart has to be given away together.
    others = [path.name for path in sorted((group / "devices").glob("*")) if path.name != nic.pci]
    in_use = [
        f"{other} ({driver})"
        for other in others
        if (driver := driver_of(system, f"{PCI}/{other}")) not in ("", VFIO, "pcieport")
    ]
    return [f"its IOMMU group has other devices in use: {', '.join(in_use)}"] if in_use else []


def _missing_capabilities(system: System) -> list[str]:
    """Looks at what root could have here, so that --dry-run tells it to others, too."""
    lines = system.read("/proc/self/status").splitlines()
    bounds = [line.split()[1] for line in lines if line.startswith("CapBnd:")]
    bound = int(bounds[0], 16) if bounds else -1
    return [name for name, bit in _XDP_CAPABILITIES.items() if not bound >> bit & 1]


_REASONS: dict[str, Callable[[System, Machine, Nic, Request], list[str]]] = {
    "udp": _udp,
    "af_xdp": _af_xdp,
    "dpdk": _dpdk,
}
DATAPATHS = tuple(_REASONS)


def reasons_against(system: System, machine: Machine, nic: Nic, request: Request) -> list[str]:
    """Returns why the NIC cannot have the datapath that is asked for."""
    return _REASONS[request.datapath](system, machine, nic, request)
