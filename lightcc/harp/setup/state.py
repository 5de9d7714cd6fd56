"""What harp-setup has changed on this machine, in a file that --undo reads.

Each change is written down before it is done, so nothing that happened is ever missing from the
file; see `changes`. Most changes end with the next boot, which the file therefore names.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from lightcc.harp.setup.changes import HugePages, Queues, Setting, WriteProfile
from lightcc.harp.setup.drivers import Module, TakeNic
from lightcc.harp.setup.request import Request
from lightcc.harp.setup.system import SetupError, described

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lightcc.harp.setup.changes import Change
    from lightcc.harp.setup.system import System

_VERSION = 1
_KINDS: dict[str, type[Setting | HugePages | Queues | Module | TakeNic | WriteProfile]] = {
    kind.kind: kind for kind in (Setting, HugePages, Queues, Module, TakeNic, WriteProfile)
}


@dataclass
class State:
    """One run of harp-setup, whole or not."""

    request: Request
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
        location = self._system.path(self.path)
        if not location.exists():
            return None
        try:
            return _state_from(json.loads(location.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError) as error:
            msg = f"{self.path} is no state of this harp-setup: {error!r}"
            raise SetupError(msg) from None

    def save(self, state: State) -> None:
        """Writes the file so that it is whole at any time."""
        value = {
            "version": _VERSION,
            "boot": state.boot,
            "finished": state.is_finished,
            "request": asdict(state.request),
            "changes": [{"kind": one.kind, **asdict(one)} for one in state.changes],
        }
        self._system.replace(self.path, json.dumps(value, indent=1) + "\n")

    def remove(self) -> None:
        """Forgets the run."""
        self._system.path(self.path).unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other runs out while the block runs.

        Raises:
            SetupError: Another run is under way.
        """
        folder = self._system.path(self.path).parent
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            msg = "another harp-setup is running"
            raise SetupError(msg) from None
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # Not empty: there is a state.
                folder.rmdir()
            os.close(descriptor)


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
    """Returns the changes that an undo takes back, in its order: the last one first.

    Most changes end with the boot in which they were made.
    """
    is_later = state.boot != boot_id(system)
    return [one for one in reversed(state.changes) if one.survives_a_boot or not is_later]


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
    request = dict(value["request"])
    lists = {name: tuple(request[name]) for name in ("interfaces", "cores")}
    changes = [_change_from(change) for change in value["changes"]]
    return State(Request(**(request | lists)), value["boot"], value["finished"], changes)


def _change_from(value: Any) -> Change:
    kind = _KINDS[value["kind"]]
    known = {key: part for key, part in value.items() if key != "kind"}
    if set(known) != {one.name for one in fields(kind)}:
        msg = f"not the fields of a change of kind '{kind.kind}'"
        raise ValueError(msg)
    return kind(**known)
