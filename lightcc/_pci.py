"""Which network interface is nearest to a PCI device, such as a GPU, by the tree that Linux shows.

A device's real path below /sys/devices has the bridges between its root and it. So two devices that
share a part of their paths share bridges, and what passes between them need not pass the rest.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_SYSFS = Path("/sys")
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
# From near to far, as `nvidia-smi topo -m` has them: PIX or PXB, PHB, NODE, SYS.
_DISTANCES = (
    "behind a common PCI bridge",
    "at the same PCI root",
    "on the same NUMA node",
    "elsewhere on the machine",
)


class Nearest(NamedTuple):
    """The network interfaces that are nearest to a device, if there are any."""

    names: tuple[str, ...]  # Linux's names ("eth0"), then RDMA's ("mlx5_0").
    distance: str  # In words; "" without names.
    numa_node: int | None  # Where the device is.


def nearest_interfaces(address: str, sysfs: Path = _SYSFS) -> Nearest | None:
    """Returns what is nearest to the device at `address`, or None where Linux shows no such device.

    Args:
        address: As the CUDA driver writes it: domain, bus, device and function ("0000:65:00.0").
        sysfs: Where sysfs is mounted.
    """
    device = sysfs / "bus/pci/devices" / address.lower()
    if not device.exists():
        return None
    own = device.resolve()
    node = _numa_node(own)
    found: dict[int, list[str]] = {}
    for name, other in _interfaces(sysfs):
        found.setdefault(_distance(own, node, other), []).append(name)
    if not found:
        return Nearest((), "", node)
    nearest = min(found)
    return Nearest(tuple(sorted(found[nearest])), _DISTANCES[nearest], node)


def _interfaces(sysfs: Path) -> Iterator[tuple[str, Path]]:
    """Yields names and PCI devices of the network interfaces that are PCI devices."""
    for kind in ("net", "infiniband"):
        folder = sysfs / "class" / kind
        for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
            device = _pci_device((entry / "device").resolve())
            if device is not None:
                yield entry.name, device


def _pci_device(path: Path) -> Path | None:
    """Returns the PCI device that a device is, or belongs to: virtio's are below one."""
    for candidate in (path, *path.parents):
        if _ADDRESS.fullmatch(candidate.name):
            return candidate
    return None


def _distance(own: Path, node: int | None, other: Path) -> int:
    common = [a for a, b in zip(own.parts, other.parts, strict=False) if a == b]
    shared = [part for part in common if _ADDRESS.fullmatch(part)]
    if shared:
        return 0
    if any(_ROOT.fullmatch(part) for part in common):
        return 1
    return 2 if node is not None and node == _numa_node(other) else 3


def _numa_node(device: Path) -> int | None:
    """Returns the device's NUMA node; None where Linux does not know."""
    try:
        node = int((device / "numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
