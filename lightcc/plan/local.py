"""Hosts that train on their own (`LocalSteps`): what a step takes and sends, and what it costs.

A step after the dense phase is one of the host alone, and a part of an outer step, which is an
all-reduce of all parameters that nothing hides. Losses are measured ones of another model
(`lightcc._low_communication`), in about as many outer steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lightcc._low_communication import EVERY, FIFTH, INT4_LOSS, loss_of
from lightcc.plan.buckets import min_sent
from lightcc.plan.simulator import predict
from lightcc.plan.site import INDEX_BYTES, Variant
from lightcc.plan.workload import Gradient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightcc.plan.costs import Costs
    from lightcc.plan.site import Site
    from lightcc.plan.workload import Workload

_SPARSE_RATIO, _ENTRY_BYTES = 0.05, 1.75  # With 2-bit values.
_INT4 = Variant("int4", compression="int4", min_bytes=0)
#: Its lists are those of top-k, which has entries of more bytes.
_SPARSE = replace(_INT4, compression="topk", ratio=_SPARSE_RATIO * _ENTRY_BYTES / (INDEX_BYTES + 4))
_DENSE = "compression=hvd.Compression.int4"
_AFTER = "hvd.LocalSteps(optimizer, named, dense_steps={}, dense_" + _DENSE + ")"
_FROM_START = (
    'hvd.LocalSteps(optimizer, named, compression=hvd.Compression.topk(0.05, values="2bit"))'
)


@dataclass(frozen=True)
class LocalWay:
    """A way of training for so many steps."""

    name: str
    dense_s: float  # A step of all ranks together; 0: there is none.
    local_s: float  # A step of the hosts on their own, in the mean; 0: there is none.
    sent_bytes: float  # By a host in the mean over the training's steps, without headers.
    training_s: float
    loss: float  # Percent.
    line: str  # What has it so, in Python.


def local_ways(workload: Workload, site: Site, costs: Costs, steps: int) -> Iterator[LocalWay]:
    """Yields int4 in every step, then local steps after a fifth of the training and from its start.

    Args:
        workload: A step on one rank, without communication.
        site: At least two hosts.
        costs: What bytes take.
        steps: The training's.
    """
    dense = predict(workload, replace(_INT4, min_bytes=Variant("").min_bytes), site, costs).step_s
    sent = sum(min_sent(it.num_bytes, _INT4, site) for it in workload.gradients)
    line = f"hvd.DistributedOptimizer(optimizer, named, {_DENSE})"
    yield LocalWay("int4 in every step", dense, 0.0, sent, steps * dense, INT4_LOSS, line)
    alone = predict(workload, Variant(""), replace(site, hosts=1, slow=()), costs).step_s
    alone *= max((slow.compute for slow in site.slow), default=1.0)
    whole = replace(workload, gradients=(Gradient(0.0, workload.num_bytes),)).lasting(1e-6)
    for name, variant, share in (
        ("local steps after a fifth", _INT4, 1 / FIFTH),
        ("sparse local steps", _SPARSE, 0.0),
    ):
        local = alone + predict(whole, variant, site, costs).step_s / EVERY
        outer = min_sent(workload.num_bytes, variant, site) / EVERY
        found = loss_of(steps / EVERY, topk=variant is _SPARSE, dense_first=share > 0)
        yield LocalWay(
            name,
            dense if share else 0.0,
            local,
            share * sent + (1 - share) * outer,
            steps * (share * dense + (1 - share) * local),
            found.percent,
            _AFTER.format(int(share * steps)) if share else _FROM_START,
        )
