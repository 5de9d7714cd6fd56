"""Rank 0's sequencer: which gradients share a bucket, and when it is announced; and its tree.

The rules are those of csrc/lightcc/control/sequencer_buckets.cpp and docs/guides/fusion.md, with
one lane.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightcc.plan.costs import Costs
    from lightcc.plan.levels import Floats

#: By strategy; the defaults of LIGHT_FUSION_THRESHOLD and HOROVOD_FUSION_THRESHOLD, in bytes.
MAX_BUCKET = {"auto_fusion": 64 << 20, "none": 0, "horovod": 128 << 20}
_CYCLE_S = 1e-3  # HOROVOD_CYCLE_TIME.
_MIN_LEAD_S, _LEAD_SHARE = 500e-6, 1 / 4
_REMEMBERED = 0.995
_CHILDREN = 8


class CostLine:
    """What a bucket takes by its bytes: weighted least squares over those that ran."""

    def __init__(self) -> None:
        self._sums = np.zeros(5)

    def add(self, num_bytes: float, seconds: float) -> None:
        """Takes in a bucket."""
        y = max(seconds, 1e-7)
        sample = np.array([1, num_bytes, y, num_bytes**2, num_bytes * y]) / y**2
        self._sums = _REMEMBERED * self._sums + sample

    def seconds(self, num_bytes: float) -> float:
        """Returns what a bucket of so many bytes will take; 0 without samples."""
        w, x, y, xx, xy = map(float, self._sums)
        determinant = w * xx - x * x
        if w == 0:
            return 0.0
        if determinant <= 1e-9 * w * xx or w * xy < x * y:
            return y / w
        fixed = (y * xx - x * xy) / determinant
        if fixed < 0:
            return xy / xx * num_bytes
        return fixed + (w * xy - x * y) / determinant * num_bytes


class Sequencer:
    """Decides over what all hosts have reported. It is played with the gradients of one step."""

    def __init__(self, fusion: str, compresses: Callable[[int], bool]) -> None:
        self._fusion = fusion
        self._limit = MAX_BUCKET[fusion]
        self._compresses = compresses
        self._line = CostLine()
        self.ready: list[int] = []  # Gradients that all hosts have.
        self.running: list[tuple[int, float]] = []  # Bytes, and since when; at most two.

    def done(self, now: float) -> None:
        """The running bucket is over."""
        num_bytes, since = self.running.pop(0)
        self._line.add(num_bytes, now - since)
        if self.running:
            self.running[0] = (self.running[0][0], now)

    def wake(self, now: float) -> float:
        """Returns when the next bucket can be announced at the earliest; inf: not before news."""
        if not self.ready or len(self.running) == 2:
            return math.inf
        if self._fusion == "horovod":
            return math.ceil(now / _CYCLE_S - 1e-9) * _CYCLE_S
        has_room = self._fusion == "auto_fusion" and sum(self.ready) < self._limit
        if self.running and has_room:
            num_bytes, since = self.running[0]
            expected = self._line.seconds(num_bytes)
            return max(now, since + expected - max(_MIN_LEAD_S, expected * _LEAD_SHARE))
        return now

    def announce(self, now: float) -> list[int]:
        """Returns the sizes of the next bucket's gradients."""
        first, *others = self.ready
        kind = self._compresses(first)
        bucket, rest, total = [first], [], first
        for size in others:
            joins = self._fusion != "none" and self._compresses(size) == kind
            if joins and total <= self._limit and size <= self._limit - total:
                bucket.append(size)
                total += size
            else:
                rest.append(size)
        self.ready = rest
        self.running.append((total, now))
        return bucket


def tree_delays(hosts: int, costs: Costs) -> tuple[Floats, Floats]:
    """Returns the seconds of a report from each host to rank 0, and of an announcement to each.

    The hosts form a tree of eight children each. A host takes its children's reports one after
    another, and passes an announcement on to one after another.
    """
    up, down = np.zeros(hosts), np.zeros(hosts)
    begin, end = 0, 1
    while end < hosts:
        children = np.arange(end, min(_CHILDREN * end + 1, hosts))
        parents = (children - 1) // _CHILDREN
        siblings = np.bincount(parents - begin)[parents - begin]
        hop = costs.latency_s + costs.message_s
        up[children] = up[parents] + hop + costs.message_s * siblings
        turn = (children - 1) % _CHILDREN + 1
        down[children] = down[parents] + hop + costs.message_s * turn
        begin, end = end, _CHILDREN * end + 1
    return up, down
