"""What ranks must have in common: saved, restored and synchronised together."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

from lightcc._discovery.plan import HostUpdateResult
from lightcc.exceptions import HostsUpdatedInterrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class State:
    """The base of all states. Subclasses say what `save`, `restore`, `sync` and `reset` do."""

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        """Makes the state.

        Args:
            bcast_object: Returns rank 0's object on every rank, as `broadcast_object` does.
            get_rank: Returns this process's rank.
        """
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[int, HostUpdateResult]] = queue.Queue()
        self._last_updated_timestamp = 0
        self._reset_callbacks: list[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Has functions called after each change of the world, for example to scale a rate."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called by `run` when the next world stands, before the state is synchronised."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: int, update_res: HostUpdateResult) -> None:
        """Takes in a notice, of which `check_host_updates` will know. Any thread may call it."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves the state, then does what `check_host_updates()` does.

        Collective: every rank must call it at the same point.

        Raises:
            HostsUpdatedInterrupt: Hosts were added or removed; on all ranks.
            HorovodInternalError: A rank failed; on all ranks.
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises where the world should be made anew because of the hosts.

        Collective: every rank must call it at the same point. What rank 0 knows counts.

        Raises:
            HostsUpdatedInterrupt: Hosts were added or removed; on all ranks.
            HorovodInternalError: A rank failed; on all ranks.
        """
        before = last = self._last_updated_timestamp
        update = HostUpdateResult.no_update
        while not self._host_messages.empty():
            timestamp, result = self._host_messages.get()
            if timestamp > last:
                last = timestamp
                update |= result
        before, last, update = self._bcast_object((before, last, update))
        self._last_updated_timestamp = last
        if last > before:
            raise HostsUpdatedInterrupt(update == HostUpdateResult.removed)

    def save(self) -> None:
        """Saves the state in this process's memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to what was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Takes over rank 0's state. Collective: every rank must call it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Prepares for another world; nothing, unless a subclass has something to do."""


class ObjectState(State):
    """Python objects as attributes, which travel pickled."""

    def __init__(
        self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any
    ) -> None:
        """Makes the state.

        Args:
            bcast_object: As of `State`.
            get_rank: As of `State`.
            kwargs: Each becomes an attribute. What is saved is a reference, not a copy.
        """
        self._saved_state = kwargs
        self._set_attributes()
        super().__init__(bcast_object=bcast_object, get_rank=get_rank)

    def save(self) -> None:
        """Keeps what the attributes are now."""
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        """Sets the attributes to what was saved last."""
        self._set_attributes()

    def sync(self) -> None:
        """Sets the attributes to what rank 0 has saved. Collective, if there is one at all."""
        if self._saved_state:
            self._saved_state = self._bcast_object(self._saved_state)
            self._set_attributes()

    if TYPE_CHECKING:  # Attributes have the names that the caller chooses.

        def __getattr__(self, name: str) -> Any: ...

    def _set_attributes(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)
