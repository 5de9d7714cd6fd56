"""What harp-setup has changed on this machine, in a file that --undo reads.

Each change is written down before it is done, so nothing that happened is ever missing from the
file; see `changes`. All but the profile ends with the next boot, so the file names this one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from lightcc.harp.setup.changes import PROFILE, Change
from lightcc.harp.setup.system import SetupError, described

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightcc.harp.setup.system import System

_VERSION = 2


@dataclass
class State:
    """One run of harp-setup, whole or not."""

    request: dict[str, Any]  # The flags that decide what is done.
    boot: str
    is_finished: bool = False
    changes: list[Change] = field(default_factory=list)


class StateFile:
    """Where a state is kept."""

    def __init__(self, system: System, path: str) -> None:
        """Reads nothing yet."""
        self._system = system
        self.path = path

    def load(self) -> State | None:
        """Returns what the file holds, or None where there is none.

        Raises:
            SetupError: It is not a state of harp-setup's.
        """
        text = self._system.text(self.path)
        if text is None:
            return None
        try:
            return _state_from(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            msg = f"{self.path} is no state of this harp-setup: {error!r}"
            raise SetupError(msg) from None

    def save(self, state: State) -> None:
        """Writes the file so that it is whole at any time."""
        value = {"version": _VERSION, **asdict(state)}
        self._system.replace(self.path, json.dumps(value, indent=1) + "\n")

    def remove(self) -> None:
        """Forgets the run, and removes the file's folder where it is empty then."""
        location = self._system.path(self.path)
        location.unlink(missing_ok=True)
        if location.parent.exists() and not any(location.parent.iterdir()):
            location.parent.rmdir()


def boot_id(system: System) -> str:
    """Returns what tells one boot of the machine from another."""
    return system.read("/proc/sys/kernel/random/boot_id")


def apply(
    system: System,
    file: StateFile,
    state: State,
    changes: list[Change],
    tell: Callable[[str], None],
) -> None:
    """Does changes, and tells each before it is done. What was begun is undone if one fails.

    Raises:
        SetupError: One could not be made; the text says why, and what is left of it.
    """
    try:
        for change in changes:
            tell(str(change))
            prepared = change.prepare(system)
            state.changes.append(prepared)
            file.save(state)
            prepared.do(system)
        state.is_finished = True
        file.save(state)
    except (SetupError, OSError, KeyboardInterrupt) as error:
        reason = reason_of(error)
        notes = undo(system, file, state)
        outcome = "use --undo to try again" if state.changes else "what was begun is undone"
        msg = "; ".join([reason, *notes, outcome])
        raise SetupError(msg) from error


def to_undo(system: System, state: State) -> list[Change]:
    """Returns the changes that an undo takes back, in its order: the last one first."""
    is_later = state.boot != boot_id(system)
    return [one for one in reversed(state.changes) if one.kind == PROFILE or not is_later]


def undo(
    system: System, file: StateFile, state: State, tell: Callable[[str], None] | None = None
) -> list[str]:
    """Takes changes back, the last one first, and returns notes on what is not as it was.

    Each is told before it is taken back. Changes that cannot be taken back stay in the state, and
    the file with them.
    """
    left: list[Change] = []
    notes = []
    for change in to_undo(system, state):
        if tell is not None:
            tell(change.undoing())
        try:
            notes.append(change.undo(system))
        except (SetupError, OSError) as error:
            left.insert(0, change)
            notes.append(f"not undone: {change}: {reason_of(error)}")
    state.changes = left
    if left:
        state.is_finished = False
        file.save(state)
    else:
        file.remove()
    return [note for note in notes if note]


def reason_of(error: BaseException) -> str:
    """Returns an error for people."""
    if isinstance(error, OSError):
        return described(error)
    return "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)


def _state_from(value: Any) -> State:
    if value["version"] != _VERSION:
        msg = f"version {value['version']}, not {_VERSION}"
        raise ValueError(msg)
    changes = [Change(**change) for change in value["changes"]]
    return State(value["request"], value["boot"], value["is_finished"], changes)
