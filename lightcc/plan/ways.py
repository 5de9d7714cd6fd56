"""Ways of training a model on a site: the memory of each, what it sends, and what a step takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lightcc._low_communication import EVERY, FIFTH, INT4_LOSS, loss_of
from lightcc.bench.layer_table import GRADIENT_BYTES
from lightcc.plan.buckets import min_sent
from lightcc.plan.simulator import predict
from lightcc.plan.site import CODE_SHARES, ENTRY_BYTES, Variant
from lightcc.plan.workload import Gradient

if TYPE_CHECKING:
    from lightcc.plan.costs import Costs
    from lightcc.plan.site import Site
    from lightcc.plan.workload import Workload

# -- Ways of sharding -----------------------------------------------------------------------------

_STATE = 4  # A parameter's weight and gradient, and two moments of AdamW.
_ALL = "hvd.DistributedOptimizer(optimizer, compression=hvd.Compression.{})"
_REPLICAS = 'fsdp.replicate(model, mesh["replicate"], gradients={})'

# Weights, gradients, and where gathered weights stay, so that the backward pass gathers no more.
_FSDP2 = (
    ("", "", ""),
    ("int8", "int8", ""),
    ("int8", "int4", ""),
    ("int8", "int4", "kept"),
    ("int4", "int4", "resident"),
)


@dataclass(frozen=True)
class Way:
    """A way of sharding a model, or of having it whole."""

    name: str
    memory_bytes: float  # What a rank holds, without activations.
    sent_bytes: float  # By a host in a step, without headers.
    step_s: float
    line: str  # What has it so, in Python.


def ways(workload: Workload, site: Site, costs: Costs, *, module: int) -> list[Way]:
    """Returns DDP and HSDP, which shards within a host, and FSDP2, each dense and compressed.

    The workload is a step of the whole model. `module` is the largest one's parameters.
    """
    whole, gpus = workload.num_bytes, site.gpus
    # A module is whole, with its gradient, before the gradient is reduced.
    module_bytes = 2 * GRADIENT_BYTES * module
    in_host_s = costs.host_s_per_byte * whole if gpus > 1 else 0.0
    found = []
    for kind in ("", "int8", "int4"):
        ddp = _ddp(workload, site, costs, kind)
        found.append(ddp)
        if gpus > 1:  # Its gradients travel as those of DDP, between hosts.
            hsdp = replace(
                ddp,
                name=f"HSDP{ddp.name[3:]}",
                memory_bytes=ddp.memory_bytes - _STATE * (whole - whole / gpus) + module_bytes,
                step_s=ddp.step_s + in_host_s,
                line=_REPLICAS.format(f'"{kind}"' if kind else None),
            )
            found.append(hsdp)
    for codes in _FSDP2:
        way = _fsdp2(workload, site, costs, *codes)
        memory, step_s = way.memory_bytes + module_bytes, way.step_s + 1.5 * in_host_s
        found.append(replace(way, memory_bytes=memory, step_s=step_s))
    return found


def _ddp(workload: Workload, site: Site, costs: Costs, kind: str) -> Way:
    variant = Variant(kind, compression=kind)
    residuals = workload.num_bytes / site.gpus if kind and site.hosts > 1 else 0.0
    return Way(
        name=f"DDP, {kind}" if kind else "DDP",
        memory_bytes=_STATE * workload.num_bytes + residuals,
        sent_bytes=sum(min_sent(it.num_bytes, variant, site) for it in workload.gradients),
        step_s=predict(workload, variant, site, costs).step_s,
        line=_ALL.format(kind or "none"),
    )


def _fsdp2(
    workload: Workload, site: Site, costs: Costs, weights: str, gradients: str, stays: str
) -> Way:
    """Returns FSDP2 without what happens within a host.

    Collectives wait for each other and for the computation, so their times add up.
    """
    whole, gpus = workload.num_bytes, site.gpus
    gathers = 1 if stays else 2  # Those between hosts.
    across = (site.hosts - 1) / site.hosts * whole
    sent = across * (gathers * CODE_SHARES[weights] + CODE_SHARES[gradients])
    residuals = 2 * across / gpus if gradients else 0.0
    kept = {"": 0.0, "kept": whole / gpus, "resident": whole}[stays]
    rate = site.tcp_bps * (costs.shared_rate if site.hosts > 2 else 1.0)
    link_s = 8 * costs.wire_bytes_per_byte * sent / rate
    coded = (gathers * bool(weights) + bool(gradients)) * whole / gpus
    name, line = "FSDP2", "fully_shard()"
    if weights:
        name = ", ".join(filter(None, (name, f"{weights}/{gradients}", stays)))
        more = ", resident=True" if stays == "resident" else ""
        line = f'fsdp.compress(model, weights="{weights}", gradients="{gradients}"{more})'
    return Way(
        name=name,
        memory_bytes=_STATE * whole / site.ranks + residuals + kept,
        sent_bytes=sent,
        step_s=workload.step_s * float(site.slowness("compute").max())
        + max(link_s, costs.tcp_s_per_byte * sent / gpus)
        + coded * costs.compress_s_per_byte,
        line=f"reshard_after_forward={gpus}; {line}" if stays == "kept" else line,
    )


# -- Local steps ----------------------------------------------------------------------------------

_INT4 = Variant("int4", compression="int4", min_bytes=0)
_SPARSE_RATIO, _SPARSE_ENTRY_BYTES = 0.05, 1.75  # With 2-bit values.
#: Its lists are those of top-k, which has entries of more bytes.
_SPARSE = replace(
    _INT4, compression="topk", ratio=_SPARSE_RATIO * _SPARSE_ENTRY_BYTES / ENTRY_BYTES
)
_DENSE_LINE = "compression=hvd.Compression.int4)"


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


def local_ways(workload: Workload, site: Site, costs: Costs, steps: int) -> list[LocalWay]:
    """Returns int4 in all steps of a training, and local steps after a fifth and from its start.

    A step after the dense phase is one of the host alone, and a part of an outer step, which is an
    all-reduce of all parameters that nothing hides. Losses are measured ones of another model
    (`lightcc._low_communication`), in about as many outer steps. There are two hosts or more.
    """
    dense = predict(workload, Variant("int4", compression="int4"), site, costs).step_s
    sent = min_sent(workload.num_bytes, _INT4, site)
    line = f"hvd.DistributedOptimizer(optimizer, named, {_DENSE_LINE}"
    found = [LocalWay("int4 in every step", dense, 0.0, sent, steps * dense, INT4_LOSS, line)]
    alone = predict(workload, Variant(""), replace(site, hosts=1, slow=()), costs).step_s
    alone *= float(site.slowness("compute").max())
    whole = replace(workload, gradients=(Gradient(0.0, workload.num_bytes),)).lasting(1e-6)
    after = f"dense_steps={steps // FIFTH}, dense_{_DENSE_LINE}"
    from_start = 'compression=hvd.Compression.topk(0.05, values="2bit"))'
    for name, variant, share, line in (
        ("local steps after a fifth", _INT4, 1 / FIFTH, after),
        ("sparse local steps", _SPARSE, 0.0, from_start),
    ):
        local = alone + predict(whole, variant, site, costs).step_s / EVERY
        outer = min_sent(workload.num_bytes, variant, site) / EVERY
        way = LocalWay(
            name=name,
            dense_s=dense if share else 0.0,
            local_s=local,
            sent_bytes=share * sent + (1 - share) * outer,
            training_s=steps * (share * dense + (1 - share) * local),
            loss=loss_of(steps / EVERY, topk=variant is _SPARSE, dense_first=share > 0).percent,
            line=f"hvd.LocalSteps(optimizer, named, {line}",
        )
        found.append(way)
    return found
