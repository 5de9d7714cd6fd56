"""HSDP: shards within a host, and between hosts one all-reduce of gradients, compressed or not.

FSDP2 is told of the shards alone. It reduce-scatters within the host, and hands each module's flat
shard of the gradients to a hook, which averages it over the replicas. The ranks that hold the same
shards are a process set of lightcc's world, so counters and residuals are where all others are.

A module's shard is exchanged in at most three operations: what stays exact, what has 8 bits, and
the rest. A residual belongs to an operation's name. So the stretches in a shard must be the same in
every step: FSDP is told to count parameters without a gradient as zeros. Which parameters a shard
holds, only torch's private `FSDPParamGroup` and `FSDPParam` say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from lightcc import _world
from lightcc._ops.exchanges import broadcast_async_
from lightcc._ops.reductions import Average, Sum
from lightcc.compression import EngineCompressor, Int8Compressor
from lightcc.process_sets import one_process_set_of
from lightcc.torch import mpi_ops
from lightcc.torch._rows import join, parts_of
from lightcc.torch.fsdp._modules import (
    Unfinished,
    check_alike,
    check_torch,
    compressor_of,
    current_world,
    described,
    ends_with_pass,
    param_groups,
    way_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightcc._core import CompressionSpec
    from lightcc.process_sets import ProcessSet


def host_mesh(device_type: str = "cpu") -> DeviceMesh:
    """Returns a mesh whose rows are the hosts of the world.

    Collective: every rank must call it, in the same order with other groups that are made.

    Args:
        device_type: Of the model's parameters: "cpu" or "cuda".

    Returns:
        A mesh of the dimensions "replicate" (hosts) and "shard" (the ranks of a host). On one host
        it is 1 x n.

    Raises:
        ValueError: There is no world, or hosts have different numbers of ranks. On all ranks.
    """
    hosts = current_world("host_mesh()").hosts
    if len({len(ranks) for ranks in hosts}) != 1:
        counts = ", ".join(f"{len(ranks)} (ranks {ranks})" for ranks in hosts)
        msg = f"host_mesh() needs as many ranks on each host, and the hosts have {counts}"
        raise ValueError(msg)
    return DeviceMesh(device_type, torch.tensor(hosts), mesh_dim_names=("replicate", "shard"))


class Replicas:
    """The replicas of a sharded model, as `replicate()` has made them.

    `LocalSteps` takes them as its workers.
    """

    def __init__(self, process_set: ProcessSet, exchanges: list[_Exchange]) -> None:
        """Knows the ranks of the same shards, and the hooks of all FSDP modules."""
        self.process_set = process_set
        self._exchanges = exchanges

    def average_gradients(self, wanted: bool) -> None:
        """Has backward passes average gradients over the replicas, or leave them apart.

        Every rank must call it between the same two backward passes. Where it is never called,
        they average.
        """
        for exchange in self._exchanges:
            exchange.averages = wanted


def replicate(
    model: nn.Module, mesh: DeviceMesh, *, gradients: Any = None, name: str = "fsdp"
) -> Replicas:
    """Makes replicas of a sharded model: alike from now on, with gradients averaged over all.

    Call it once, after `fully_shard(..., mesh=mesh["shard"])` of all modules, and after a
    checkpoint is loaded on one replica only. Parameters and buffers become those of the first
    replica. In each backward pass, the average of each module's gradients over the replicas is
    under way while the pass goes on, and is there when the pass ends.

    Parameters of fewer than 4,096 elements travel exactly, and those of nn.Embedding in no fewer
    than 8 bits. A module whose shard is below LIGHT_TOPK_THRESHOLD is not compressed. Between
    ranks of one host nothing is.

    Collective: every rank must call it, with models of the same modules and the same arguments.

    Args:
        model: Its parameters are shards, and overwritten on all replicas but the first.
        mesh: Of one dimension: the ranks that hold the same shards, as `host_mesh()["replicate"]`.
        gradients: How they travel between hosts: `None` (exactly), "int8", "int4", "topk", or one
            of `Compression` that the engine carries out, as `Compression.topk(0.05)`.
        name: Begins the names of the operations. Another one for each model of a program.

    Returns:
        What `LocalSteps` takes as its workers, for replicas that train on their own.

    Raises:
        ValueError: This cannot work, and the text says why: a mesh of two dimensions was given, or
            the model is sharded over replicas, has no FSDP modules, is on the meta device, or has
            parameters in none; or ranks called it with different arguments.
        TypeError: `gradients` is none of the above.
        RuntimeError: This torch lacks what this needs of FSDP.
        HorovodInternalError: A rank failed. On all ranks.
    """
    compressor = compressor_of(gradients, "gradients")
    check_torch(
        "set_all_reduce_hook", *(["set_reduce_scatter_unused_params"] if compressor else [])
    )
    ranks = _ranks_of(mesh)
    groups = param_groups(model)
    _check_shards(model, groups, ranks)
    said = f"{described(compressor)} gradients of {len(groups)} modules as {name!r}"
    rows = check_alike("replicate", said, groups, tuple(ranks))
    replicas = one_process_set_of(sorted(set(rows)))
    _broadcast(model, replicas, name)
    exchanges: list[_Exchange] = []
    if len(ranks) == 1:
        return Replicas(replicas, exchanges)
    for module_name, (module, group) in groups.items():
        if compressor is not None:
            module.set_reduce_scatter_unused_params(True, recurse=False)
        exchanges.append(
            _Exchange(group, f"{name}.{module_name}", compressor, replicas.process_set_id)
        )
        module.set_all_reduce_hook(exchanges[-1])
    return Replicas(replicas, exchanges)


class _Exchange:
    """The hook of one FSDP module."""

    def __init__(
        self, group: Any, name: str, compressor: EngineCompressor | None, replicas: int | None
    ) -> None:
        self.averages = True
        self._group = group
        self._name = name
        self._replicas = replicas
        self._held: torch.Tensor | None = None  # The sum of micro-batches without an all-reduce.
        self._unfinished = Unfinished()
        self._specs: dict[str, CompressionSpec | None] = {"exact": None}
        if compressor is not None:
            self._specs |= {"int8": Int8Compressor().spec(), compressor.label: compressor.spec()}
        self._ways = [way_of(it, compressor) for it in group.fsdp_params]

    def __call__(self, shard: torch.Tensor) -> None:
        """Averages a flat shard over the replicas, in place: at once, or until the pass ends."""
        self._unfinished.finish()  # A module that ran twice comes twice; FSDP adds to the first.
        if not self.averages:
            return
        if not self._group.all_reduce_grads:
            # FSDP adds the zeros to `.grad`, and what was held comes with the last micro-batch.
            self._held = shard.clone() if self._held is None else self._held.add_(shard)
            shard.zero_()
            return
        if self._held is not None:
            shard.add_(self._held)
            self._held = None
        ends_later = ends_with_pass(self._group, shard)
        self._unfinished.hold(self._start(shard), ends_later)

    def _start(self, shard: torch.Tensor) -> Callable[[], None]:
        """Starts all operations; returns what waits for them."""
        # FSDP has divided by the shards' number, or by a factor that stands for all ranks.
        op = Average if self._group.gradient_divide_factor is None else Sum
        handles, copies = [], []
        for way, parts in self._parts(shard).items():
            whole, pairs = _joined(shard, parts)
            handle = _world.current().allreduce_each(
                [whole],
                [f"{self._name}.{way}"],
                op,
                1.0,
                1.0,
                self._replicas,
                compression=self._specs[way],
            )
            handles.append(handle)
            copies += pairs

        def finish() -> None:
            for handle in handles:
                mpi_ops.synchronize(handle)
            for into, result in copies:
                into.copy_(result)

        return finish

    def _parts(self, shard: torch.Tensor) -> dict[str, list[tuple[int, int]]]:
        """Returns which stretches of a shard travel how, as (begin, end) in elements."""
        if len(self._specs) == 1:
            return {"exact": [(0, shard.numel())]}
        parts: dict[str, list[tuple[int, int]]] = {}
        end = 0
        for parameter, way in zip(self._group.fsdp_params, self._ways, strict=True):
            if parameter.unsharded_param.requires_grad:
                begin, end = end, end + parameter.padded_sharded_param_size.numel()
                parts.setdefault(way, []).append((begin, end))
        if end != shard.numel():
            msg = (
                f"{self._name}: a parameter has no gradient ({shard.numel()} of {end} elements):"
                " compression needs set_reduce_scatter_unused_params(True), as replicate() sets it"
            )
            raise RuntimeError(msg)
        return parts


def _joined(
    shard: torch.Tensor, parts: list[tuple[int, int]]
) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Returns one tensor of all parts, each from a new block on, and pairs to copy back."""
    if len(parts) == 1:
        return shard[slice(*parts[0])], []
    pieces = [shard[a:b] for a, b in parts]
    whole = join(pieces)
    return whole, list(zip(pieces, parts_of(whole, pieces), strict=True))


def _ranks_of(mesh: DeviceMesh) -> list[int]:
    """Returns the ranks of the mesh's row that this rank is in."""
    current_world("replicate()")
    if mesh.ndim != 1:
        msg = f"replicate() takes mesh['replicate']; this mesh is of {mesh.mesh_dim_names}"
        raise ValueError(msg)
    group = mesh.get_group()
    if dist.get_backend(group) != "lightcc":
        msg = (
            f"the mesh is of the backend {dist.get_backend(group)!r}: lightcc averages over a mesh"
            ' of its own; init_process_group("lightcc") comes before host_mesh()'
        )
        raise ValueError(msg)
    return sorted(dist.get_process_group_ranks(group))


def _check_shards(
    model: nn.Module, groups: dict[str, tuple[Any, Any]], replicas: list[int]
) -> None:
    """Raises ValueError where FSDP does not shard all of a model, within replicas alone."""
    for name, (_, group) in groups.items():
        mesh = group.mesh_info.mesh
        if mesh.ndim != 1:
            msg = (
                f"'{name}' was given a mesh of the dimensions {mesh.mesh_dim_names}: FSDP would"
                " all-reduce by itself, exactly, before it calls a hook; give fully_shard()"
                " mesh['shard']"
            )
            raise ValueError(msg)
        shards = set(mesh.mesh.flatten().tolist())
        if shards & set(replicas) != {_world.rank()}:
            msg = (
                f"'{name}' is sharded over the ranks {sorted(shards)}, with replicas on {replicas}:"
                " only this rank may be in both; give fully_shard() mesh['shard']"
            )
            raise ValueError(msg)
    known = {id(it.sharded_param) for _, group in groups.values() for it in group.fsdp_params}
    others = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in known]
    if others:
        msg = f"parameters in no FSDP module would differ between replicas: {', '.join(others)}"
        raise ValueError(msg)
    if any(it.is_meta for it in (*model.parameters(), *model.buffers())):
        msg = "the model is on the meta device: replicate() comes after to_empty() and its values"
        raise ValueError(msg)


def _broadcast(model: nn.Module, replicas: ProcessSet, name: str) -> None:
    """Gives all replicas the first one's shards and buffers."""
    handles = []
    with torch.no_grad():
        for own, tensor in (*model.named_parameters(), *model.named_buffers()):
            local: Any = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            if local.numel():
                root = (replicas.ranks or [0])[0]
                handles.append(broadcast_async_(local, root, f"{name}.{own}", process_set=replicas))
    for handle in handles:
        mpi_ops.synchronize(handle)
