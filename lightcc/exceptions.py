"""The errors that lightcc raises.

    RuntimeError
    +-- HorovodInternalError        a collective did not complete: restore and retry, or give up
    |   +-- RankMismatchError       ranks disagree about one operation; the world goes on
    |   +-- PeerFailedError         a rank died, hung up or broke the protocol; the world is over
    |   +-- CollectiveTimeoutError  a rank stayed silent for too long; the world is over
    |   +-- ShutDownError           the world was shut down, here or by another rank
    |   +-- EngineError             the operating system refused, or an invariant is broken
    +-- HostsUpdatedInterrupt       elastic: the set of hosts changed; not an error of a collective

What is wrong with one call on this rank alone (a dtype, a root rank, a name in use) is a
`ValueError` or a `TypeError` at the call; what is not to be had is a `NotImplementedError`, and a
name of Horovod's that is not there yet is a `NotThereYetError`. Each
error code of the engine maps to exactly one class (`lightcc._core.error_table()`).
"""

from __future__ import annotations

__all__ = [
    "CollectiveTimeoutError",
    "EngineError",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "PeerFailedError",
    "RankMismatchError",
    "ShutDownError",
]


class HorovodInternalError(RuntimeError):
    """A collective did not complete; elastic training restores its state and retries.

    Attributes:
        rank: The rank at fault, or `None` where there is none or it is not known.
    """

    def __init__(self, message: str = "", rank: int | None = None) -> None:
        """Makes the error; both arguments survive pickling."""
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> tuple[type[HorovodInternalError], tuple[str, int | None]]:
        """Keeps `rank` when the error travels to another process."""
        return type(self), (str(self), self.rank)


class RankMismatchError(HorovodInternalError):
    """Ranks disagree about one operation (dtype, shape, root, reduction); all of them raise it."""


class PeerFailedError(HorovodInternalError):
    """A rank died, hung up or broke the protocol; `rank` says which. The world is over."""


class CollectiveTimeoutError(HorovodInternalError):
    """A rank stayed silent for too long; `rank` says which. The world is over."""


class ShutDownError(HorovodInternalError):
    """The world was shut down, here or by another rank, before the operation was complete."""


class EngineError(HorovodInternalError):
    """The operating system refused (memory, descriptors, sockets), or lightcc has a bug."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818  Horovod's name
    """Elastic training: hosts were added or removed, so the world must be made anew.

    Attributes:
        skip_sync: Whether the state needs no synchronisation (hosts were only removed).
    """

    def __init__(self, skip_sync: bool = False) -> None:
        """Makes the interrupt."""
        super().__init__(skip_sync)
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """Horovod's: an adapter was built for another version of its framework. Never raised here.

    Attributes:
        name: The framework.
        version: The version that the adapter was built for.
        installed_version: The version that is there.
    """

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        """Makes the error."""
        message = f"built for {name} {version}, but {name} {installed_version} is installed"
        super().__init__(message, name=name)
        self.version = version
        self.installed_version = installed_version

    def __reduce__(self) -> tuple[type[HorovodVersionMismatchError], tuple[str, str, str]]:
        """Keeps the attributes when the error travels to another process."""
        return type(self), (str(self.name), self.version, self.installed_version)


class NotThereYetError(AttributeError, NotImplementedError):
    """Horovod has this name, and this version of lightcc does not.

    As an `AttributeError` it leaves `hasattr()` and `getattr()` with a default as they are for any
    other name that is not there.
    """
