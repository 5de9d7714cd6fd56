"""An elastic job: carries out what the driver says, whoever starts and stops the workers.

What happens is told to it in one thread, that of the job's loop: hosts, what workers say through
the job's store, and workers that have ended. Starting and stopping is handed in as `Workers`: the
launcher's agents (`launched_job`), or actors of a Ray cluster (`lightcc.ray._elastic_job`).
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Protocol

from lightcc._discovery.plan import Notice, Plan, RollCall
from lightcc.runner.driver import Action, CallOff, Driver, End, Settings, Start, Stop
from lightcc.runner.driver.plan_store import PlanStore, statuses

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightcc._binding import _core
    from lightcc._discovery.plan import Status


class Workers(Protocol):
    """Who starts and stops the workers of a job. All is called in the job's thread."""

    def start(self, start: Start) -> None:
        """Starts a worker; a host that cannot is told with `host_lost()`, later."""

    def stop(self, worker: int) -> None:
        """Stops a worker, which may have ended already."""

    def heard(self, worker: int, status: Status) -> None:
        """Takes what a worker says of itself, before the driver does."""

    def tell(self, action: Action) -> None:
        """Tells the user what is done: plans before they are published, and slow workers."""

    def end(self, end: End) -> None:
        """Ends the job; nothing is asked of it afterwards."""

    def is_ending(self) -> bool:
        """Returns whether the job ends for another reason, so that the driver is not obeyed."""


class ElasticJob:
    """What the driver of one job knows, and what it wants done.

    Attributes:
        plans: The job's store.
        is_ended: Whether the driver has said so, or `give_up()`.
    """

    def __init__(self, settings: Settings, client: _core.StoreClient, workers: Workers) -> None:
        """Takes a client of the job's store, and who has the workers."""
        self.plans = PlanStore(client)
        self.is_ended = False
        self._driver = Driver(settings, random.random, time.monotonic())
        self._workers = workers

    def watch_workers(self, post: Callable[[Callable[[], None]], None]) -> None:
        """Waits for what workers say, in a thread of its own, until the store is closed.

        Args:
            post: Has the job's thread call something.
        """
        self.plans.watch_workers(
            lambda entries: post(lambda: self.entries_seen(entries)),
            lambda text: post(lambda: self.give_up(text)),
        )

    def hosts_seen(self, hosts: dict[str, int]) -> None:
        """Takes the slots of all hosts."""
        self._obey(self._driver.hosts_seen(time.monotonic(), hosts))

    def entries_seen(self, entries: dict[str, bytes]) -> None:
        """Takes entries of workers in the store."""
        for worker, status in statuses(entries):
            if status is None:
                self._workers.stop(worker)  # It has written what is no status.
                continue
            self._workers.heard(worker, status)
            self._obey(self._driver.status_changed(time.monotonic(), worker, status))

    def worker_ended(self, worker: int, code: int, text: str) -> None:
        """Takes the end of a worker."""
        self._obey(self._driver.worker_ended(time.monotonic(), worker, code, text))

    def host_lost(self, host: str, text: str) -> None:
        """Takes the loss of a host, whose workers have ended."""
        self._obey(self._driver.host_lost(time.monotonic(), host, text))

    def tick(self) -> None:
        """Tells the driver that its deadline has come."""
        self._obey(self._driver.tick(time.monotonic()))

    def deadline(self) -> float | None:
        """Returns when `tick()` is wanted, on the monotonic clock."""
        return None if self.is_ended else self._driver.deadline()

    def give_up(self, error: str) -> None:
        """Ends the job, unless it ends already."""
        self._obey([End(error)])

    def _obey(self, actions: list[Action]) -> None:
        for action in actions:
            if self.is_ended or self._workers.is_ending():
                return
            if isinstance(action, Start):
                self._workers.start(action)
            elif isinstance(action, Stop):
                self._workers.stop(action.worker)
            elif isinstance(action, Notice):
                self.plans.notify(action)
            elif isinstance(action, RollCall):
                self.plans.call_roll(action)
            elif isinstance(action, CallOff):
                self.plans.call_off(action.epoch, action.reason)
            elif isinstance(action, End):
                self.is_ended = True
                self._workers.end(action)
            else:
                self._workers.tell(action)
                if isinstance(action, Plan) and not self.plans.publish(action):
                    self.give_up("another launcher publishes plans in this job's store")
