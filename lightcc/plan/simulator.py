"""Plays training steps in virtual time: the control plane's decisions, and messages of all hosts.

Events are played in the order of time. A stage of a chunk is one event for all hosts, at the mean
of their times; each host keeps its own times (`network`). A host that is behind therefore keeps
back those that need its data, and these others in turn. Hosts are simulated one by one, alike or
not, as numpy does it; ranks of a host are alike, and one stands for all.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from lightcc.plan.buckets import Buckets, Ring, Stage, Work, min_sent
from lightcc.plan.network import Network
from lightcc.plan.sequencer import Sequencer, tree_delays

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightcc.plan.costs import Costs
    from lightcc.plan.levels import Floats
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
    bound_s: float  # No step can be shorter on these links (`bound`).
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
    player = _Player(workload, variant, site, costs)
    found = player.play()
    for _ in range(_MAX_STEPS - 1):
        before, found = found, player.play()
        if math.isclose(before.step_s, found.step_s, rel_tol=1e-3):
            break
    return found


def bound(workload: Workload, variant: Variant, site: Site, costs: Costs) -> float:
    """Returns the seconds that no step with this compression can be shorter than.

    What is still to be sent when a gradient becomes ready takes a host its link's time.
    """
    slowness = max((slow.compute for slow in site.slow), default=1.0)
    rate = site.link_bps if variant.line_rate else site.tcp_bps
    s_per_byte = 8 * costs.wire_bytes_per_byte / rate
    s_per_byte *= max((slow.link for slow in site.slow), default=1.0)
    found = workload.step_s * slowness
    left = 0.0
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
    step_s = predict(workload, variant, site, costs).step_s
    faster = 1e6  # Times as fast, with the up-links as they are.
    fast = replace(
        site,
        link_bps=site.link_bps * faster,
        tcp_bps=site.tcp_bps * faster,
        oversubscription=site.oversubscription * faster if site.has_uplinks else 1.0,
    )
    free = replace(
        costs, message_s=0.0, tcp_s_per_byte=0.0, compress_s_per_byte=0.0, host_s_per_byte=0.0
    )
    cases = {
        "links": (fast, costs),
        "up-links": (replace(site, oversubscription=1.0), costs),
        "latency": (site, replace(costs, latency_s=0.0)),
        "processors": (site, free),
        "slow hosts": (replace(site, slow=()), costs),
    }
    return {
        name: step_s - predict(workload, variant, where, what).step_s
        for name, (where, what) in cases.items()
    }


class _Bucket:
    """A bucket that has been announced."""

    def __init__(self, sizes: list[int], ready: Floats) -> None:
        self.sizes = sizes
        self.ready = ready  # When each member has the announcement.
        self.end = ready
        self.waiting: list[list[Stage]] = []  # Chunks.
        self.running = 0


class _Player:
    def __init__(self, workload: Workload, variant: Variant, site: Site, costs: Costs) -> None:
        self._workload, self._variant = workload, variant
        self._site, self._costs = site, costs
        self._buckets = Buckets(site, variant, costs)
        self._sequencer = Sequencer(variant.fusion, variant.compresses)
        slowness = np.ones(site.hosts)
        for slow in site.slow:
            slowness[slow.host] *= slow.compute
        self._slowness = slowness
        self._up, down = tree_delays(site.hosts, costs)
        per_host = 1 if variant.two_level else site.gpus
        self._down = np.repeat(down, per_host)
        self._bound = bound(workload, variant, site, costs)

    def play(self) -> Prediction:
        """Plays a step, which all hosts begin at 0."""
        self._network = Network(self._site, self._variant, self._costs)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = self._num_buckets = 0
        self._free = np.zeros(self._network.members)  # When members can begin the next bucket.
        self._busy_s = 0.0
        self._queue: list[_Bucket] = []
        if self._site.ranks > 1:
            for gradient in self._workload.gradients:
                known = float((gradient.ready_s * self._slowness + self._up).max())
                self._at(known, self._reporting(gradient.num_bytes))
        while self._events:
            now, _, event = heapq.heappop(self._events)
            event(now)
        computed = self._workload.step_s * float(self._slowness.max())
        return Prediction(
            variant=self._variant,
            step_s=max(computed, float(self._free.max())),
            compute_s=self._workload.step_s,
            busy_s=self._busy_s,
            bound_s=self._bound,
            wire_bytes=self._network.wire_bytes,
            buckets=self._num_buckets,
        )

    def _at(self, time: float, event: Callable[[float], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (time, self._count, event))

    def _reporting(self, num_bytes: int) -> Callable[[float], None]:
        def report(now: float) -> None:
            self._sequencer.report(num_bytes)
            self._at(now, self._announce)  # After what else is reported now.

        return report

    def _announce(self, now: float) -> None:
        """Announces what can be announced now, and comes back for what can be later."""
        while (wake := self._sequencer.wake(now)) <= now:
            lone = self._sequencer.is_idle
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
        for _ in range(min(depth, len(bucket.waiting))):
            self._next_chunk(bucket, bucket.ready)

    def _is_inline(self, sizes: Sequence[int]) -> bool:
        small = sizes[0] <= _MAX_INLINE and sizes[0] * self._site.ranks <= _MAX_INLINE_IN_ALL
        return small and len(sizes) == 1 and self._site.hosts > 1

    def _next_chunk(self, bucket: _Bucket, ready: Floats) -> None:
        bucket.running += 1
        stages, bucket.waiting = bucket.waiting[0], bucket.waiting[1:]
        self._at(float(ready.mean()), lambda _: self._run(bucket, stages, 0, ready))

    def _run(self, bucket: _Bucket, stages: list[Stage], index: int, ready: Floats) -> None:
        """Runs a stage of a chunk; then the chunk's next one, or the bucket's next chunk."""
        if index == len(stages):
            bucket.running -= 1
            bucket.end = np.maximum(bucket.end, ready)
            if bucket.waiting:
                self._next_chunk(bucket, ready)
            elif bucket.running == 0:
                self._end(bucket)
            return
        network, stage = self._network, stages[index]

        def go_on(times: Floats) -> None:
            self._at(float(times.mean()), lambda _: self._run(bucket, stages, index + 1, times))

        if isinstance(stage, Work):
            go_on(network.work(stage.seconds, ready))
        elif isinstance(stage, Ring):
            go_on(network.ring(stage.data, ready))
        else:
            level, data, whole = stage.level, stage.data, stage.whole
            arrived = network.send(level, data, ready, whole=whole)
            self._at(
                float(arrived.mean()),
                lambda _: go_on(network.receive(level, data, arrived, whole=whole)),
            )

    def _end(self, bucket: _Bucket) -> None:
        self._busy_s += float(bucket.end.max() - max(bucket.ready.min(), self._free.max()))
        self._free = bucket.end
        self._queue.pop(0)
        if self._queue:
            self._begin()

        def tell(now: float) -> None:
            self._sequencer.done(now)
            self._announce(now)

        self._at(float(bucket.end[0]), tell)
