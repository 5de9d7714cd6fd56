"""What can be changed on a machine, each with its way back.

A change is first prepared, which notes what is there before; then it is remembered in the state
file; then it is done. So a change that is remembered may not have happened, or only in part: undo
looks at what there is, takes back what is still as harp-setup left it, and leaves alone what
somebody has changed since.
"""

# ruff: noqa: D102 - `Change` says what the methods do.

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from lightcc.harp.setup.system import Channels, SetupError

if TYPE_CHECKING:
    from lightcc.harp.setup.system import System


@dataclass(frozen=True)
class Change(ABC):
    """One thing that is changed."""

    kind: ClassVar[str]
    survives_a_boot: ClassVar[bool] = False

    @abstractmethod
    def __str__(self) -> str:
        """Returns what it does, for people."""

    @abstractmethod
    def prepare(self, system: System) -> Change:
        """Returns itself with what there is before."""

    @abstractmethod
    def do(self, system: System) -> None:
        """Does it, and looks whether it is done."""

    @abstractmethod
    def undo(self, system: System) -> str:
        """Takes it back, or says why it is left alone."""

    @abstractmethod
    def undoing(self) -> str:
        """Returns what `undo` does, for people."""

    @abstractmethod
    def difference(self, system: System) -> str:
        """Returns how the machine differs from what `do` left, "" where it does not."""


@dataclass(frozen=True)
class Setting(Change):
    """A value in a file of procfs or sysfs."""

    kind = "setting"
    path: str
    value: str
    old: str = ""

    def __str__(self) -> str:
        return f"set {self.path} to {self.value}"

    def prepare(self, system: System) -> Setting:
        return replace(self, old=system.read(self.path))

    def do(self, system: System) -> None:
        system.write(self.path, self.value)
        if difference := self.difference(system):
            raise SetupError(difference)

    def undo(self, system: System) -> str:
        now = system.read(self.path)
        if now == self.value:
            system.write(self.path, self.old)
        return "" if now in (self.value, self.old) else f"{self.path} is {now} by now: left alone"

    def undoing(self) -> str:
        return f"set {self.path} back to {self.old}"

    def difference(self, system: System) -> str:
        now = system.read(self.path)
        return "" if now == self.value else f"{self.path} is {now or 'not there'}, not {self.value}"


@dataclass(frozen=True)
class HugePages(Change):
    """A number of reserved huge pages, of which the kernel may grant fewer."""

    kind = "huge pages"
    path: str
    pages: int
    old: int = 0

    def __str__(self) -> str:
        return f"reserve {self.pages} huge pages of 2 MiB in {self.path}"

    def prepare(self, system: System) -> HugePages:
        return replace(self, old=system.number(self.path, 0))

    def do(self, system: System) -> None:
        system.write(self.path, str(self.pages))
        granted = system.number(self.path, 0)
        if granted < self.pages:
            msg = (
                f"the kernel gave {granted} of {self.pages} huge pages in {self.path}, as its"
                " memory is in pieces: free some, ask for fewer (--huge-pages GIB), or reserve them"
                " at boot (hugepagesz=2M hugepages=N on the kernel's command line)"
            )
            raise SetupError(msg)

    def undo(self, system: System) -> str:
        now = system.number(self.path, 0)
        if self.old < now <= self.pages:
            system.write(self.path, str(self.old))
            now = system.number(self.path, 0)
            return f"{now} huge pages are still in use" if now > self.old else ""
        return "" if now == self.old else f"{self.path} is {now} by now: left alone"

    def undoing(self) -> str:
        return f"set {self.path} back to {self.old} huge pages of 2 MiB"

    def difference(self, system: System) -> str:
        now = system.number(self.path, 0)
        return "" if now >= self.pages else f"{self.path} is {now}, not {self.pages}"


@dataclass(frozen=True)
class Queues(Change):
    """The number of an interface's queues."""

    kind = "queues"
    interface: str
    count: int
    old: list[int] = field(default_factory=list)  # Earlier Channels; empty if they are not known.

    def __str__(self) -> str:
        return f"give {self.interface} {self.count} queue(s)"

    def prepare(self, system: System) -> Queues:
        return replace(self, old=list(system.channels(self.interface) or ()))

    def do(self, system: System) -> None:
        channels = system.channels(self.interface)
        if channels is None:
            msg = f"{self.interface}: its driver does not let its queues be set"
            raise SetupError(msg)
        try:
            system.set_channels(self.interface, channels.with_count(self.count))
        except OSError as error:
            msg = f"{self.interface} cannot have {self.count} queue(s): {error.strerror}"
            raise SetupError(msg) from None

    def undo(self, system: System) -> str:
        now = system.channels(self.interface)
        if now is None or not self.old:
            return f"{self.interface} is gone: its queues are left alone"
        old = Channels(*self.old)
        if now.receiving == self.count and now != old:
            system.set_channels(self.interface, old)
        elif now.receiving != old.receiving:
            return f"{self.interface} has {now.receiving} queue(s) by now: left alone"
        return ""

    def undoing(self) -> str:
        if not self.old:
            return f"leave the queues of {self.interface} as they are"
        return f"give {self.interface} {Channels(*self.old).receiving} queue(s) again"

    def difference(self, system: System) -> str:
        now = system.channels(self.interface)
        has = now.receiving if now else 0
        text = f"{self.interface} has {has} queue(s), not {self.count}"
        return "" if has == self.count else text


@dataclass(frozen=True)
class WriteProfile(Change):
    """The profile. It comes last: a machine that has one is set up."""

    kind = "profile"
    survives_a_boot = True
    path: str
    text: str
    old: str | None = None  # The text of a profile that was there before.
    had_folder: bool = True

    def __str__(self) -> str:
        return f"write {self.path}"

    def prepare(self, system: System) -> WriteProfile:
        had_folder = system.path(self.path).parent.exists()
        return replace(self, old=system.text(self.path), had_folder=had_folder)

    def do(self, system: System) -> None:
        system.replace(self.path, self.text)

    def undo(self, system: System) -> str:
        now = system.text(self.path)
        note = ""
        if now is not None and now not in (self.text, self.old):
            system.replace(f"{self.path}.edited", now)
            note = f"{self.path} was edited since: kept as {self.path}.edited"
        if self.old is not None:
            system.replace(self.path, self.old)
        elif now is not None:
            system.path(self.path).unlink()
        if not self.had_folder:
            with contextlib.suppress(OSError):  # Something else is in it, or it is gone.
                system.path(self.path).parent.rmdir()
        return note

    def undoing(self) -> str:
        return f"remove {self.path}" if self.old is None else f"put back the earlier {self.path}"

    def difference(self, system: System) -> str:
        now = system.text(self.path)
        if now == self.text:
            return ""
        return f"{self.path} " + ("is not there" if now is None else "was edited since")
