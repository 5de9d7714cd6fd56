"""Who hears that hosts were added or removed."""

from __future__ import annotations

import threading
from typing import Protocol

from lightcc._discovery import elastic
from lightcc._discovery.plan import HostUpdateResult

__all__ = ["HostUpdateResult", "WorkerNotificationManager", "notification_manager"]


class Listener(Protocol):
    """What a `State` is to the manager."""

    def on_hosts_updated(self, timestamp: int, update_res: HostUpdateResult) -> None:
        """Takes in one notice. Called by a thread of its own."""


class WorkerNotificationManager:
    """Passes on the launcher's notices to the states of this process.

    Notices have serial numbers where Horovod has seconds, so that none is lost. A notice that the
    plan of the current epoch takes into account is not passed on.
    """

    def __init__(self) -> None:
        """Makes a manager without listeners."""
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []

    def init(self) -> None:
        """Listens to the launcher; does nothing in a job that is not elastic."""
        worker = elastic.worker()
        if worker is not None:
            worker.on_notice = self.handle_hosts_updated

    def register_listener(self, listener: Listener) -> None:
        """Passes on notices to `listener` from now on."""
        with self._lock:
            self._listeners.append(listener)

    def remove_listener(self, listener: Listener) -> None:
        """Passes on nothing more to `listener`."""
        with self._lock:
            self._listeners.remove(listener)

    def handle_hosts_updated(self, timestamp: int, update_res: HostUpdateResult) -> None:
        """Passes on one notice."""
        with self._lock:
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener.on_hosts_updated(timestamp, update_res)

    def repeat(self) -> None:
        """Passes on once more a notice that came while the listeners had forgotten their own."""
        worker = elastic.worker()
        if worker is not None:
            worker.repeat_notice()


notification_manager = WorkerNotificationManager()
