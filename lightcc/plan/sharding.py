"""Which ways of sharding a model fit the ranks' memory, what they send, and what a step takes.

DDP is played (`simulator`), and so is HSDP, whose gradients travel as those of DDP. The collectives
of FSDP2 wait for each other and for the computation, so their times add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightcc.bench.layer_table import GRADIENT_BYTES
from lightcc.plan.buckets import min_sent
from lightcc.plan.simulator import predict
from lightcc.plan.site import CODE_BYTES, Variant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightcc.plan.costs import Costs
    from lightcc.plan.site import Site
    from lightcc.plan.workload import Workload

_STATE_BYTES = 16  # A parameter's weight and gradient, and two moments of AdamW.
_ALL = "hvd.DistributedOptimizer(optimizer, compression=hvd.Compression.{})"
_REPLICAS = 'fsdp.replicate(model, mesh["replicate"], gradients={})'
_SHARDS = 'fsdp.compress(model, weights="{}", gradients="{}")'
_RESIDENT = f"{_SHARDS[:-1]}, resident=True)"

# Weights, gradients, and where gathered weights stay, so that the backward pass gathers no more.
_SHARDED = (
    ("", "", ""),
    ("int8", "int8", ""),
    ("int8", "int4", ""),
    ("int8", "int4", "kept"),
    ("int4", "int4", "resident"),
)


@dataclass(frozen=True)
class Way:
    """A way of training a model on a site."""

    name: str
    memory_bytes: float  # What a rank holds, without activations.
    sent_bytes: float  # By a host in a step, without headers.
    step_s: float
    line: str  # What has it so, in Python.


def ways(workload: Workload, site: Site, costs: Costs, *, module: int) -> Iterator[Way]:
    """Yields DDP, HSDP and FSDP2, each dense and compressed.

    Args:
        workload: A step of the whole model on one rank, without communication.
        site: The hosts; HSDP shards within each.
        costs: What bytes take.
        module: Parameters of the largest module that FSDP2 gathers.
    """
    count, hosts, gpus = workload.num_bytes // GRADIENT_BYTES, site.hosts, site.gpus
    # A module is whole, with its gradient, before the gradient is reduced.
    gathered = 2 * GRADIENT_BYTES * module
    in_host_s = costs.host_s_per_byte * workload.num_bytes if gpus > 1 else 0.0
    for kind in ("", "int8", "int4"):
        variant = Variant(kind, compression=kind)
        found = predict(workload, variant, site, costs)
        sent = sum(min_sent(it.num_bytes, variant, site) for it in workload.gradients)
        kept = GRADIENT_BYTES * count / gpus if kind and hosts > 1 else 0.0  # Residuals.
        title = f", {kind}" if kind else ""
        memory = _STATE_BYTES * count + kept
        yield Way(f"DDP{title}", memory, sent, found.step_s, _ALL.format(kind or "none"))
        if gpus > 1:
            memory = _STATE_BYTES * count / gpus + kept + gathered
            line = _REPLICAS.format(f'"{kind}"' if kind else None)
            yield Way(f"HSDP{title}", memory, sent, found.step_s + in_host_s, line)
    for weights, gradients, where in _SHARDED:
        across = (hosts - 1) / hosts * count
        gathers = 1 if where else 2  # Those that cross, forward and backward.
        code = CODE_BYTES.get(weights, GRADIENT_BYTES), CODE_BYTES.get(gradients, GRADIENT_BYTES)
        sent = across * (gathers * code[0] + code[1])
        residuals = 2 * GRADIENT_BYTES * across / gpus if gradients else 0.0
        memory = _STATE_BYTES * count / site.ranks + gathered + residuals
        memory += {"": 0, "kept": 1 / gpus, "resident": 1}[where] * GRADIENT_BYTES * count
        share = costs.shared_rate if hosts > 2 else 1.0
        link_s = 8 * costs.wire_bytes_per_byte * sent / (site.tcp_bps * share)
        codes = ((gathers if weights else 0) + bool(gradients)) * GRADIENT_BYTES * count / gpus
        step_s = workload.step_s * max((slow.compute for slow in site.slow), default=1.0)
        step_s += max(link_s, costs.tcp_s_per_byte * sent / gpus) + 1.5 * in_host_s
        step_s += codes * costs.compress_s_per_byte
        name = ", ".join(
            it for it in ("FSDP2", f"{weights}/{gradients}", where) if it not in ("", "/")
        )
        line = (_RESIDENT if where == "resident" else _SHARDS).format(weights, gradients)
        if where == "kept":
            line = f"reshard_after_forward={gpus}; {line}"
        yield Way(name, memory, sent, step_s, line if weights else "fully_shard()")
