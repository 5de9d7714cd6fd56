"""A barrier of the ranks of one machine; loaded by `worker` from beside it."""

from __future__ import annotations

import mmap
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_BARRIER_S = 300.0
_LINE = 64  # Bytes; one cache line per rank.


class SpinBarrier:
    """A counter per rank in a file that all ranks map; nobody sleeps in it."""

    def __init__(self, path: Path, rank: int, size: int) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size * _LINE)
        self._counters = memoryview(self._map).cast("q")
        self._rank, self._size, self._round = rank, size, 0

    def wait(self) -> None:
        """Returns when every rank has come."""
        self._round += 1
        step = _LINE // 8
        counters, here = self._counters, self._round
        counters[self._rank * step] = here
        deadline = time.monotonic() + _BARRIER_S
        for peer in range(self._size):
            while counters[peer * step] < here:
                os.sched_yield()
                if time.monotonic() > deadline:
                    msg = f"rank {peer} did not come to the barrier"
                    raise RuntimeError(msg)
