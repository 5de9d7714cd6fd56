"""Which interface is nearest to a GPU, on made-up trees of sysfs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lightcc._pci import Nearest, nearest_interfaces

if TYPE_CHECKING:
    from pathlib import Path

GPU = "0000:65:00.0"
BRIDGE = "pci0000:64/0000:64:00.0/0000:64:08.0"


class Machine:
    """Makes devices below a folder, as Linux shows them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bus/pci/devices").mkdir(parents=True)

    def add(self, path: str, node: int = -1) -> Path:
        device = self.root / "devices" / path
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n", encoding="ascii")
        (self.root / "bus/pci/devices" / device.name).symlink_to(device)
        return device

    def add_interface(self, name: str, path: str, node: int = -1, kind: str = "net") -> None:
        device = self.root / "devices" / path
        if not device.exists():
            self.add(path, node)
        folder = device / kind / name
        folder.mkdir(parents=True)
        (folder / "device").symlink_to(device)
        (self.root / "class" / kind).mkdir(parents=True, exist_ok=True)
        (self.root / "class" / kind / name).symlink_to(folder)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_interfaces_are_told_from_near_to_far(machine: Machine) -> None:
    machine.add(f"{BRIDGE}/{GPU}", node=1)
    assert nearest_interfaces(GPU, machine.root) == Nearest((), "", 1)
    far = "elsewhere on the machine"
    machine.add_interface("eth0", "pci0000:00/0000:00:03.0", node=0)
    assert nearest_interfaces(GPU, machine.root) == Nearest(("eth0",), far, 1)
    machine.add_interface("eth1", "pci0000:80/0000:80:00.0", node=1)
    assert nearest_interfaces(GPU, machine.root) == Nearest(("eth1",), "on the same NUMA node", 1)
    machine.add_interface("eth2", "pci0000:64/0000:64:01.0/0000:66:00.0", node=1)
    assert nearest_interfaces(GPU, machine.root) == Nearest(("eth2",), "at the same PCI root", 1)
    machine.add_interface("eth3", "pci0000:64/0000:64:00.0/0000:64:09.0/0000:67:00.0", node=1)
    machine.add_interface(
        "mlx5_0", "pci0000:64/0000:64:00.0/0000:64:09.0/0000:67:00.0", kind="infiniband"
    )
    near = Nearest(("eth3", "mlx5_0"), "behind a common PCI bridge", 1)
    assert nearest_interfaces(GPU, machine.root) == near
    assert nearest_interfaces(GPU.upper(), machine.root) == near


def test_what_is_below_a_pci_device_counts_as_it(machine: Machine) -> None:
    machine.add(f"pci0000:00/{GPU}")
    machine.add("pci0000:00/0000:00:04.0")
    machine.add_interface("eth0", "pci0000:00/0000:00:04.0/virtio1")
    machine.add_interface("docker0", "virtual/net/docker0")
    found = nearest_interfaces(GPU, machine.root)
    assert found == Nearest(("eth0",), "at the same PCI root", None)


def test_an_unknown_numa_node_is_not_the_same_one(machine: Machine) -> None:
    machine.add(f"{BRIDGE}/{GPU}")
    machine.add_interface("eth0", "pci0000:00/0000:00:03.0")
    found = nearest_interfaces(GPU, machine.root)
    assert found == Nearest(("eth0",), "elsewhere on the machine", None)


def test_a_device_that_linux_does_not_show_has_none(machine: Machine) -> None:
    assert nearest_interfaces(GPU, machine.root) is None
    assert nearest_interfaces(GPU, machine.root / "nowhere") is None
