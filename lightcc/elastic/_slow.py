"""Telling the launcher which rank is slow."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lightcc._discovery import elastic
from lightcc._ops import basics

if TYPE_CHECKING:
    from collections.abc import Callable

_INTERVAL_S = 1.0


class SlowReport:
    """What rank 0 tells the launcher when it commits."""

    def __init__(self) -> None:
        """Begins without having looked."""
        self._looked: float | None = None

    def give(self, rank: Callable[[], int]) -> None:
        """Looks now and then, on rank 0, and tells of the slowest rank, if there is one."""
        worker = elastic.worker()
        if worker is None or rank() != 0:
            return
        now = time.monotonic()
        if self._looked is not None and now < self._looked + _INTERVAL_S:
            return
        self._looked = now
        slow = max(basics.stats().slow_ranks, key=lambda it: it.factor, default=None)
        if slow is not None:
            worker.report_slow(slow.rank, slow.factor)
