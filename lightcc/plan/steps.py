"""Plays one training step in virtual time: which gradients share a bucket, and when each ends."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightcc.plan.variants import bucket_cost

if TYPE_CHECKING:
    from lightcc.plan.costs import Costs
    from lightcc.plan.variants import Site, Variant
    from lightcc.plan.workload import Workload

# The defaults of LIGHT_FUSION_THRESHOLD and HOROVOD_FUSION_THRESHOLD, in bytes.
_MAX_BUCKET = {"auto_fusion": 64 << 20, "none": 0, "horovod": 128 << 20}
_CYCLE_S = 1e-3  # HOROVOD_CYCLE_TIME.


@dataclass(frozen=True)
class Prediction:
    """A step with communication."""

    variant: Variant
    step_s: float
    compute_s: float
    busy_s: float  # Buckets under way, without overlaps.
    wire_bytes: float  # Sent by a host, with headers.
    buckets: int

    @property
    def exposed_s(self) -> float:
        """What communication adds to the step."""
        return self.step_s - self.compute_s

    @property
    def hidden_s(self) -> float:
        """Communication while the rank computes."""
        return max(self.busy_s - self.exposed_s, 0.0)

    @property
    def efficiency(self) -> float:
        """The step without communication over the step."""
        return self.compute_s / self.step_s


def predict(workload: Workload, variant: Variant, site: Site, costs: Costs) -> Prediction:
    """Returns the step of `workload` on `site`.

    One bucket of a lane follows another. A bucket takes what all ranks have reported when a lane
    gets free, up to the threshold. Buckets of several lanes share the link one after another, but
    wait for messages side by side.
    """
    notice = 2 * site.tree_depth * costs.control_s if site.ranks > 1 else 0.0
    waiting = [(gradient.ready_s + notice, gradient.num_bytes) for gradient in workload.gradients]
    lanes = [0.0] * variant.lanes
    link_free = busy_s = wire_bytes = 0.0
    first = buckets = 0
    while first < len(waiting):
        lane = min(range(len(lanes)), key=lanes.__getitem__)
        start = max(lanes[lane], waiting[first][0])
        if variant.fusion == "horovod":
            start = math.ceil(start / _CYCLE_S) * _CYCLE_S
        last, total = first, 0
        while last < len(waiting) and waiting[last][0] <= start:
            total += waiting[last][1]
            if last > first and total > _MAX_BUCKET[variant.fusion]:
                break
            last += 1
        sizes = [num_bytes for _, num_bytes in waiting[first:last]]
        cost = bucket_cost(sizes, variant, site, costs)
        end = max(start + cost.fixed_s, link_free) + cost.busy_s
        busy_s += end - max(start, link_free)
        lanes[lane] = link_free = end
        wire_bytes += cost.wire_bytes
        buckets += 1
        first = last
    step_s = max(workload.step_s, link_free)
    return Prediction(variant, step_s, workload.step_s, busy_s, wire_bytes, buckets)
