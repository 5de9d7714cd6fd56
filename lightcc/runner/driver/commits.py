"""What the driver of an elastic job knows of the commits that agents keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightcc._discovery.plan import Status
    from lightcc.runner.driver.worker import Worker


#: So many times in a row a job begins from one commit, and not once more.
MAX_BEGINNINGS = 3


class Commits:
    """Whether a training of which no rank is left may begin from a commit, and from which.

    Attributes:
        are_kept: Whether the training asks for it.
    """

    def __init__(self) -> None:
        """Knows of no commit."""
        self.are_kept = False
        self._reported: dict[str, int] = {}  # What hosts keep, since nobody has the state any more.
        self._begun_from = 0
        self._beginnings = 0
        self._is_taken = False  # Whether anybody has had the state since the last beginning.
        self._lost_since: float | None = None  # The state, as nobody has it any more.

    def take_in(self, status: Status, host: str) -> None:
        """Learns from what a worker of a host says of itself."""
        self.are_kept = self.are_kept or status.keeps
        self._is_taken = self._is_taken or status.has_state
        self._reported[host] = max(status.kept, self._reported.get(host, 0))
        if status.has_state:
            self._lost_since = None
            self._reported.clear()

    def order_of(self, worker: Worker) -> tuple[int, bool, int]:
        """Returns what sorts workers by their states, and by what their agents keep."""
        status = worker.status
        if status is None:
            return (0, True, 0)
        own = status.version if status.has_state else 0
        newest = max(own, status.kept) if self.are_kept else 0
        return (-newest, not status.has_state, -status.epoch)

    def first_of(self, workers: Sequence[Worker]) -> int:
        """Returns from which kept commit the first one begins; 0: it has as new a state itself."""
        status = workers[0].status if workers else None
        if status is None or not self.are_kept:
            return 0
        own = status.version if status.has_state else 0
        return status.kept if status.kept > own else 0

    def not_newer(self, commit: int) -> set[str]:
        """Returns hosts that are known to keep nothing newer."""
        return {host for host, kept in self._reported.items() if kept <= commit}

    def first_slots(self, slots: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Returns the first slot of each host that is not known to keep nothing."""
        known = self.not_newer(0)
        first = {host: slot for host, slot in reversed(slots) if host not in known}
        return [it for it in slots if it in first.items()]

    def may_be_newer(self, now: float, patience_s: float, returning: Sequence[float]) -> bool:
        """Returns whether one is worth waiting for that is newer than all that are known.

        Args:
            now: The time.
            patience_s: How long it is, from the first call since somebody had the state.
            returning: When hosts will be used again that may keep one.
        """
        if self._lost_since is None:
            self._lost_since = now
        return any(t < self._lost_since + patience_s for t in returning)

    def begin_from(self, version: int) -> bool:
        """Takes in that all begin from a commit; returns whether that is not in vain.

        A training that fails in the same step each time would begin again for ever. What nobody has
        taken over, as a rank died at joining, does not count.
        """
        if version > self._begun_from:
            self._beginnings = 0
        elif self._is_taken:
            self._beginnings += 1
        self._begun_from, self._is_taken = version, False
        return self._beginnings < MAX_BEGINNINGS
