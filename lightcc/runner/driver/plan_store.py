"""What the driver of an elastic job tells its workers through the store, and hears of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightcc._discovery import plan as _plan
from lightcc._discovery.epoch import Epoch
from lightcc.exceptions import HorovodInternalError, ShutDownError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lightcc._binding import _core

_TIMEOUT_S = 10.0
_WATCH_S = 600.0
_MAX_DIGITS = 10


class PlanStore:
    """The store of one elastic job, for whoever publishes its plans.

    Attributes:
        members: Workers of the last plan, by rank; empty before the first.
    """

    def __init__(self, client: _core.StoreClient) -> None:
        """Takes a client of the store."""
        self._client = client
        self._plan = b""
        self.members: tuple[int, ...] = ()

    def publish(self, plan: _plan.Plan) -> bool:
        """Publishes a plan; returns whether nobody else has published one since the last."""
        value = _plan.encode(plan)
        found = self._client.compare_and_set(_plan.PLAN_KEY, self._plan or None, value, _TIMEOUT_S)
        if found != value:
            return False
        self._plan = value
        self.members = plan.members
        return True

    def notify(self, notice: _plan.Notice) -> None:
        """Publishes a notice."""
        self._client.set(_plan.NOTICE_KEY, _plan.encode(notice), _TIMEOUT_S)

    def call_roll(self, call: _plan.RollCall) -> None:
        """Publishes a roll call."""
        self._client.set(_plan.ROLL_KEY, _plan.encode(call), _TIMEOUT_S)

    def call_off(self, epoch: int, reason: str) -> None:
        """Fails the joining of an epoch's world, on all workers that are at it."""
        prefix = Epoch(group=_plan.GROUP, number=epoch).prefix
        self._client.fail(prefix, reason, _TIMEOUT_S)

    def entry_of(self, worker: int) -> dict[str, bytes]:
        """Returns the entry of a worker that has said something of itself."""
        key = _plan.worker_key(worker)
        return {key: self._client.get(key, _TIMEOUT_S)}

    def watch_workers(
        self, on_entries: Callable[[dict[str, bytes]], None], on_failure: Callable[[str], None]
    ) -> None:
        """Hands over entries of workers as they come, until `close()`. For a thread of its own.

        Args:
            on_entries: Gets entries for `statuses`.
            on_failure: Gets the reason where the store has failed; nothing comes after that.
        """
        state = 0
        while True:
            try:
                seen = self._client.watch(_plan.WORKER_PREFIX, state, _WATCH_S)
            except ShutDownError:
                return
            except HorovodInternalError as error:
                on_failure(str(error))
                return
            if seen is not None:
                state, entries = seen
                on_entries(entries)

    def close(self) -> None:
        """Closes the client, which ends `watch_workers`."""
        self._client.close()


def statuses(entries: Mapping[str, bytes]) -> Iterator[tuple[int, _plan.Status | None]]:
    """Yields workers, and what each says of itself; `None`: it is no status."""
    for key, value in entries.items():
        number = key.removeprefix(_plan.WORKER_PREFIX)
        if number.isascii() and number.isdigit() and len(number) < _MAX_DIGITS:
            try:
                yield int(number), _plan.decode(_plan.Status, value)
            except ValueError:
                yield int(number), None
