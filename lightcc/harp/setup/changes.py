"""What can be changed on a machine, each with its way back.

A change notes what is there before, is remembered in the state file, and is then done. So a change
that is remembered may not have happened: undo takes back what is still as harp-setup left it, and
leaves alone what somebody has changed since.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lightcc.harp.setup.system import SetupError

if TYPE_CHECKING:
    from lightcc.harp.setup.system import System

SETTING, QUEUES, PROFILE = "setting", "queues", "profile"


@dataclass(frozen=True)
class Change:
    """One thing that is changed: a file of procfs or sysfs, an interface's queues, the profile."""

    kind: str  # SETTING, QUEUES or PROFILE.
    target: str  # A path, or the name of an interface.
    value: str
    old: str | None = None  # None: it is not there.

    def __str__(self) -> str:
        """Returns what it does, for people."""
        return {
            SETTING: f"set {self.target} to {self.value}",
            QUEUES: f"give {self.target} {self.value} queue(s)",
            PROFILE: f"write {self.target}",
        }[self.kind]

    def undoing(self) -> str:
        """Returns what `undo` does, for people."""
        if self.kind == PROFILE:
            return f"remove {self.target}" if self.old is None else f"put back {self.target}"
        return str(replace(self, value=self.old or "")) + " again"

    def prepare(self, system: System) -> Change:
        """Returns itself with what there is before."""
        return replace(self, old=self._now(system))

    def do(self, system: System) -> None:
        """Does it.

        Raises:
            SetupError: The kernel has not done it, or only in part.
        """
        self._set(system, self.value)
        if difference := self.difference(system):
            raise SetupError(difference)

    def undo(self, system: System) -> str:
        """Takes it back, or says why it is left alone."""
        now = self._now(system)
        if now == self.value:
            self._set(system, self.old)
        elif self.kind == SETTING and _is_between(now, self.old, self.value):
            self._set(system, self.old)  # A number that the kernel granted in part.
        elif now != self.old:
            return f"{self._how_it_differs(now)}: left alone"
        return ""

    def difference(self, system: System) -> str:
        """Returns how the machine differs from what `do` left, "" where it does not."""
        now = self._now(system)
        return "" if now == self.value else self._how_it_differs(now)

    def _how_it_differs(self, now: str | None) -> str:
        if now is None:
            return f"{self.target} is not there"
        return {
            SETTING: f"{self.target} is {now}, not {self.value}",
            QUEUES: f"{self.target} has {now} queue(s), not {self.value}",
            PROFILE: f"{self.target} was edited since",
        }[self.kind]

    def _now(self, system: System) -> str | None:
        if self.kind == QUEUES:
            channels = system.channels(self.target)
            return str(channels.receiving) if channels else None
        text = system.text(self.target)
        return text.strip() if self.kind == SETTING and text is not None else text

    def _set(self, system: System, value: str | None) -> None:
        if self.kind == PROFILE and value is None:
            system.path(self.target).unlink()
            with contextlib.suppress(OSError):  # Something else is in it.
                system.path(self.target).parent.rmdir()
        elif self.kind == PROFILE:
            system.replace(self.target, value or "")
        elif self.kind == SETTING and value is not None:
            system.write(self.target, value)
        elif channels := system.channels(self.target):
            try:
                system.set_channels(self.target, channels.with_count(int(value or 1)))
            except OSError as error:
                msg = f"{self.target} cannot have {value} queue(s): {error.strerror}"
                raise SetupError(msg) from None


def _is_between(now: str | None, old: str | None, value: str) -> bool:
    numbers = [text for text in (old, now, value) if text is not None and text.isdecimal()]
    return len(numbers) == 3 and int(numbers[0]) < int(numbers[1]) < int(numbers[2])
