"""Plays training steps in virtual time: the control plane's decisions, and messages of all hosts.

Events are played in the order of time. A stage of a chunk is one event for all hosts, at the mean
of their times; each host keeps its own times (`network`). A host that is behind therefore keeps
back those that need its data, and these others in turn. Hosts are simulated one by one, alike or
not, as numpy does it; ranks of a host are alike, and one stands for all.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from lightcc.plan.buckets import Buckets, min_sent
from lightcc.plan.network import Network
from lightcc.plan.sequencer import Sequencer, tree_delays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lightcc.plan.costs import Costs
    from lightcc.plan.levels import Floats
    from lightcc.plan.network import Stage
    from lightcc.plan.site import Site, Variant
    from lightcc.plan.workload import Workload

_MAX_STEPS = 3  # The sequencer has learnt what buckets take by then.
_MAX_INLINE, _MAX_INLINE_IN_ALL = 4 << 10, 64 << 10


@dataclass(frozen=True)
class Prediction:
    """A step with communication."""

    variant: Variant
    step_s: float
    compute_s: float
    busy_s: float  # Buckets under way.
    bound_s: float  # No step can be shorter on these links (`_bound`).
    wire_bytes: float  # Sent by the host that sends most, with headers.
    buckets: int

    @property
    def exposed_s(self) -> float:
        """What communication and slow hosts add to the step."""
        return self.step_s - self.compute_s

    @property
    def hidden_s(self) -> float:
        """Communication while the ranks compute."""
        return max(self.busy_s - self.exposed_s, 0.0)

    @property
    def efficiency(self) -> float:
        """The step without communication, on a host that is not slow, over the step."""
        return self.compute_s / self.step_s


def predict(workload: Workload, variant: Variant, site: Site, costs: Costs) -> Prediction:
    """Returns the step of `workload` on `site`, after as many as the sequencer learns from."""
    sequencer = Sequencer(variant.fusion, variant.compresses)
    found = _Step(workload, variant, site, costs, sequencer).play()
    for _ in range(_MAX_STEPS - 1):
        before, found = found, _Step(workload, variant, site, costs, sequencer).play()
        if math.isclose(before.step_s, found.step_s, rel_tol=1e-3):
            break
    return found


def _bound(workload: Workload, variant: Variant, site: Site, costs: Costs) -> float:
    """Returns the seconds that no step with this compression can be shorter than.

    What is still to be sent when a gradient becomes ready takes a host its link's time.
    """
    slowness = float(site.slowness("compute").max())
    rate = site.link_bps if variant.line_rate else site.tcp_bps
    s_per_byte = 8 * costs.wire_bytes_per_byte / rate * float(site.slowness("link").max())
    found, left = workload.step_s * slowness, 0.0
    for gradient in reversed(workload.gradients):
        left += min_sent(gradient.num_bytes, variant, site)
        found = max(found, gradient.ready_s * slowness + left * s_per_byte)
    return found


def where_time_goes(
    workload: Workload, variant: Variant, site: Site, costs: Costs
) -> dict[str, float]:
    """Returns by how many seconds the step were shorter if one thing took no time.

    They do not add up: what hides behind something else is in neither.
    """
    faster = 1e6  # Times as fast, with the up-links as they are.
    fast = replace(site, link_bps=site.link_bps * faster, tcp_bps=site.tcp_bps * faster)
    if site.has_uplinks:
        fast = replace(fast, oversubscription=site.oversubscription * faster)
    of_processors = ("message_s", "tcp_s_per_byte", "compress_s_per_byte", "host_s_per_byte")
    cases = {
        "links": (fast, costs),
        "up-links": (replace(site, oversubscription=1.0), costs),
        "latency": (site, replace(costs, latency_s=0.0)),
        "processors": (site, replace(costs, **dict.fromkeys(of_processors, 0.0))),
        "slow hosts": (replace(site, slow=()), costs),
    }
    step_s = predict(workload, variant, site, costs).step_s
    return {name: step_s - predict(workload, variant, *it).step_s for name, it in cases.items()}


class _Bucket:
    """A bucket that has been announced."""

    def __init__(self, sizes: list[int], ready: Floats) -> None:
        self.sizes = sizes
        self.ready = self.end = ready  # When each member has the announcement, and the result.
        self.waiting: list[list[Stage]] = []  # Chunks.
        self.lanes = 0  # Chunks under way.


class _Step:
    """A step that is played; all hosts begin it at 0."""

    def __init__(
        self, workload: Workload, variant: Variant, site: Site, costs: Costs, sequencer: Sequencer
    ) -> None:
        self._workload, self._variant, self._site, self._costs = workload, variant, site, costs
        self._sequencer, self._buckets = sequencer, Buckets(site, variant, costs)
        self._network = Network(site, variant, costs)
        self._free = np.zeros(self._network.members)  # When members can begin the next bucket.
        self._busy_s, self._num_buckets = 0.0, 0
        self._queue: list[_Bucket] = []
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()
        self._up, down = tree_delays(site.hosts, costs)
        self._down = np.repeat(down, self._network.members // site.hosts)

    def play(self) -> Prediction:
        slowness = self._site.slowness("compute")
        for gradient in self._workload.gradients if self._site.ranks > 1 else ():
            known = float((gradient.ready_s * slowness + self._up).max())
            self._at(known, functools.partial(self._report, gradient.num_bytes))
        while self._events:
            now, _, event = heapq.heappop(self._events)
            event(now)
        computed = self._workload.step_s * float(slowness.max())
        return Prediction(
            variant=self._variant,
            step_s=max(computed, float(self._free.max())),
            compute_s=self._workload.step_s,
            busy_s=self._busy_s,
            bound_s=_bound(self._workload, self._variant, self._site, self._costs),
            wire_bytes=self._network.wire_bytes,
            buckets=self._num_buckets,
        )

    def _at(self, time: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), event))

    def _report(self, num_bytes: int, now: float) -> None:
        self._sequencer.ready.append(num_bytes)
        self._at(now, self._announce)  # After what else is reported now.

    def _announce(self, now: float) -> None:
        """Announces what can be announced now, and comes back for what can be later."""
        while (wake := self._sequencer.wake(now)) <= now:
            lone = not self._sequencer.running
            sizes = self._sequencer.announce(now)
            self._num_buckets += 1
            self._queue.append(_Bucket(sizes, now + self._down))
            if len(self._queue) == 1:
                self._begin(lone=lone)
        if wake < math.inf:
            self._at(wake, self._announce)

    def _begin(self, *, lone: bool = False) -> None:
        bucket = self._queue[0]
        bucket.ready = bucket.end = np.maximum(bucket.ready, self._free)
        if lone and self._is_inline(bucket.sizes):  # Its result has come with the announcement.
            self._end(bucket)
            return
        bucket.waiting, depth = self._buckets.chunks(bucket.sizes)
        bucket.lanes = min(depth, len(bucket.waiting))
        for _ in range(bucket.lanes):
            self._go_on(self._lane(bucket))

    def _is_inline(self, sizes: Sequence[int]) -> bool:
        small = sizes[0] <= _MAX_INLINE and sizes[0] * self._site.ranks <= _MAX_INLINE_IN_ALL
        return small and len(sizes) == 1 and self._site.hosts > 1

    def _lane(self, bucket: _Bucket) -> Iterator[Floats]:
        """Plays chunks one after another; yields the times after which it goes on."""
        ready = bucket.ready
        while bucket.waiting:
            stages = bucket.waiting.pop(0)
            yield ready
            for stage in stages:
                for ready in self._network.play(stage, ready):  # noqa: B020
                    yield ready
            bucket.end = np.maximum(bucket.end, ready)
        bucket.lanes -= 1
        if bucket.lanes == 0:
            self._end(bucket)

    def _go_on(self, lane: Iterator[Floats], _: float = 0.0) -> None:
        if (times := next(lane, None)) is not None:
            self._at(float(times.mean()), functools.partial(self._go_on, lane))

    def _end(self, bucket: _Bucket) -> None:
        self._busy_s += float(bucket.end.max() - max(bucket.ready.min(), self._free.max()))
        self._free = bucket.end
        self._queue.pop(0)
        if self._queue:
            self._begin()
        self._at(float(bucket.end[0]), self._tell)

    def _tell(self, now: float) -> None:
        """Rank 0 has done a bucket."""
        self._sequencer.done(now)
        self._announce(now)
