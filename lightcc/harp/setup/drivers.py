"""A NIC that changes hands: from the kernel's driver to vfio-pci, and back."""

# ruff: noqa: D102 - `Change` says what the methods do.

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lightcc.harp.setup.changes import Change
from lightcc.harp.setup.datapaths import VFIO
from lightcc.harp.setup.machine import NET, PCI, driver_of
from lightcc.harp.setup.system import SetupError

if TYPE_CHECKING:
    from lightcc.harp.setup.system import System

_SECONDS_FOR_AN_INTERFACE = 10.0


@dataclass(frozen=True)
class Module(Change):
    """A module of the kernel; it stays loaded, as others may use it by then."""

    kind = "module"
    name: str

    def __str__(self) -> str:
        return f"load the kernel module {self.name}"

    def prepare(self, system: System) -> Module:  # noqa: ARG002
        return self

    def do(self, system: System) -> None:
        if self.difference(system):
            system.load_module(self.name)

    def undo(self, system: System) -> str:  # noqa: ARG002
        return ""

    def undoing(self) -> str:
        return f"leave the kernel module {self.name} loaded"

    def difference(self, system: System) -> str:
        there = system.path(f"/sys/bus/pci/drivers/{self.name}").exists()
        return "" if there else f"the kernel module {self.name} is not loaded"


@dataclass(frozen=True)
class TakeNic(Change):
    """A NIC that goes from the kernel's driver to vfio-pci, and its interface with it."""

    kind = "nic"
    pci: str
    interface: str
    address: str  # "10.0.0.1/24", which it gets back.
    mtu_bytes: int
    driver: str  # Whose it was.
    old_override: str = ""

    def __str__(self) -> str:
        return f"bind {self.pci} to {VFIO}: {self.interface} leaves {self.driver} and the kernel"

    def prepare(self, system: System) -> TakeNic:
        override = system.read(f"{PCI}/{self.pci}/driver_override")
        return replace(self, old_override="" if override == "(null)" else override)

    def do(self, system: System) -> None:
        self._bind(system, VFIO)
        if difference := self.difference(system):
            raise SetupError(difference)

    def undo(self, system: System) -> str:
        now = driver_of(system, f"{PCI}/{self.pci}")
        if now not in (VFIO, self.driver, ""):
            return f"{self.pci} belongs to {now} by now: left alone"
        self._bind(system, self.old_override)
        now = driver_of(system, f"{PCI}/{self.pci}")
        if now != self.driver:
            msg = f"{self.pci} does not go back to {self.driver}: it belongs to {now or 'nobody'}"
            raise SetupError(msg)
        return self._configure(system)

    def undoing(self) -> str:
        return f"bind {self.pci} to {self.driver}: {self.interface} gets {self.address} again"

    def difference(self, system: System) -> str:
        now = driver_of(system, f"{PCI}/{self.pci}")
        return "" if now == VFIO else f"{self.pci} belongs to {now or 'nobody'}, not to {VFIO}"

    def _bind(self, system: System, override: str) -> None:
        device = f"{PCI}/{self.pci}"
        wanted = override or self.driver
        system.write(f"{device}/driver_override", override or "\n")  # A line end clears it.
        now = driver_of(system, device)
        if now and now != wanted:
            system.write(f"{device}/driver/unbind", self.pci)
            now = ""
        if not now:
            system.write("/sys/bus/pci/drivers_probe", self.pci)

    def _configure(self, system: System) -> str:
        """Gives the interface its address again, unless somebody else has been quicker."""
        deadline = time.monotonic() + _SECONDS_FOR_AN_INTERFACE
        while not system.path(f"{NET}/{self.interface}").exists():  # udev may have to name it.
            if time.monotonic() > deadline:
                return f"{self.pci} is back, but not as {self.interface}: give it {self.address}"
            time.sleep(0.05)
        if self.interface not in system.addresses():
            system.configure(self.interface, self.address, self.mtu_bytes)
            return (
                f"{self.interface} has {self.address} again; other routes than its subnet's do not"
            )
        return ""
