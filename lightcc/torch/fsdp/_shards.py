"""FSDP2 whose all-gathers of weights and reduce-scatters of gradients are compressed between hosts.

torch hands each FSDP module's collectives to objects that may be exchanged. These run them in
lightcc's world, among the ranks of the module's mesh, which are a process set. torch gives them
flat rows without names, so a row is told to the engine as segments, one for each parameter. Blocks
that share a scale then never reach from one parameter into the next.

Weights are rounded anew from the optimizer's exact shards in each gather, and all ranks get the
same bits. What gradients lose is kept by the engine under the module's name, and added in the next
step. Such a residual belongs to fixed segments: FSDP is told to count parameters without a gradient
as zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import FSDPModule

from lightcc import _world
from lightcc._binding import _core
from lightcc._world import ONE, WAITS
from lightcc.compression import Int8Compressor
from lightcc.process_sets import one_process_set_of
from lightcc.torch import mpi_ops
from lightcc.torch.distributed._reductions import reduction
from lightcc.torch.fsdp._modules import (
    check_alike,
    compressor_of,
    current_world,
    described,
    param_groups,
    way_of,
)

if TYPE_CHECKING:
    from torch import nn

    from lightcc._core import CompressionSpec
    from lightcc.compression import EngineCompressor

try:
    from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
except ImportError:  # An older torch.
    AllGather = ReduceScatter = object  # type: ignore[assignment, misc]


def compress(
    model: nn.Module, *, weights: Any = "int8", gradients: Any = "int4", name: str = "fsdp"
) -> None:
    """Has FSDP2's collectives of a sharded model compressed between hosts.

    Call it once, after `fully_shard()` of all modules, before the first step. Ranks of one host
    pass each other everything exactly.

    Parameters of fewer than 4,096 elements travel exactly, and gradients of nn.Embedding in no
    fewer than 8 bits. Where `reshard_after_forward` is a number, the gathers of the backward pass
    are exact: what they gather was rounded in the forward pass.

    Collective: every rank must call it, with models of the same modules and the same arguments.

    Args:
        model: Of modules that FSDP shards, each over one mesh of one dimension.
        weights: How all-gathers travel: `None` (exactly), "int8", or `Compression.int8`.
        gradients: How reduce-scatters travel: `None` (exactly), "int8", "int4", or one of
            `Compression.int8` and `Compression.int4`. What rounding takes away is added in the
            next step.
        name: Begins the names of the operations. Another one for each model of a program.

    Raises:
        ValueError: This cannot work, and the text says why: another way of compressing was asked
            for, the model has no FSDP modules or modules with several meshes, a mesh has two
            dimensions or ranks that do not ascend, or ranks called it with different arguments.
        TypeError: `weights` or `gradients` is none of the above.
        RuntimeError: This torch has no collectives that can be exchanged.
        HorovodInternalError: A rank failed. On all ranks.
    """
    if not hasattr(FSDPModule, "set_custom_reduce_scatter"):
        msg = f"torch {torch.__version__} lacks FSDPModule.set_custom_reduce_scatter()"
        raise RuntimeError(msg)
    gathers, scatters = compressor_of(weights, "weights"), compressor_of(gradients, "gradients")
    _check_ways(gathers, scatters)
    current_world("compress()")
    groups = param_groups(model)
    meshes = {own: _ranks_of(own, group) for own, (_, group) in groups.items()}
    ways = f"{described(gathers)} weights and {described(scatters)} gradients"
    said = f"{ways} of {len(groups)} modules as {name!r}"
    everyone = check_alike("compress", said, groups, meshes)
    for own, (module, group) in groups.items():
        ranks = one_process_set_of(sorted({tuple(theirs[own]) for theirs in everyone}))
        shards = _Shards(group, f"{name}.{own}", ranks.process_set_id, len(meshes[own]))
        if gathers is not None:
            module.set_custom_all_gather(_CompressedGather(shards, gathers))
        if scatters is not None:
            module.set_reduce_scatter_unused_params(True, recurse=False)
            module.set_custom_reduce_scatter(_CompressedScatter(shards, scatters))


class _Shards:
    """One FSDP module's flat rows."""

    def __init__(self, group: Any, name: str, process_set: int | None, size: int) -> None:
        self.name = name
        self.process_set = process_set
        self.size = size
        self._group = group

    def spec(self, compressor: EngineCompressor, numel: int, only_trained: bool) -> CompressionSpec:
        """Returns how a row of `numel` elements travels."""
        segments: list[tuple[int, int]] = []
        for parameter in self._group.fsdp_params:
            count = parameter.padded_sharded_param_size.numel()
            if count == 0 or (only_trained and not parameter.sharded_param.requires_grad):
                continue
            way = way_of(parameter, compressor)
            bits = {"exact": 0, "int8": 8, "int4": 4}[way]
            if bits == 0 and segments and segments[-1][1] == 0:
                count += segments.pop()[0]
            segments.append((count, bits))
        if sum(count for count, _ in segments) != numel:
            msg = (
                f"{self.name}: a row has {numel} elements, and its parameters have"
                f" {sum(count for count, _ in segments)}: FSDP packs something else than compress()"
                " knows, as tensor subclasses of other dtypes"
            )
            raise RuntimeError(msg)
        return _core.CompressionSpec.quantized(compressor.spec().bits, segments)


class _Compressed:
    """What both collectives have: memory, and the segments of rows by their length."""

    _only_trained = False

    def __init__(self, shards: _Shards, compressor: EngineCompressor) -> None:
        self._shards = shards
        self._compressor = compressor
        self._specs: dict[int, CompressionSpec] = {}

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Returns memory for what torch hands over."""
        return torch.empty(*size, dtype=dtype, device=device)

    def _spec(self, numel: int) -> CompressionSpec:
        if numel not in self._specs:
            self._specs[numel] = self._shards.spec(self._compressor, numel, self._only_trained)
        return self._specs[numel]


class _CompressedGather(_Compressed, AllGather):
    """The all-gather of one FSDP module."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,
        async_op: bool = False,
    ) -> Any:
        """Gathers the shards of all ranks, and returns when that is done."""
        if group.size() != self._shards.size:  # After forward: of rounded weights, kept in part.
            return torch.distributed.all_gather_into_tensor(
                output_tensor, input_tensor, group=group, async_op=async_op
            )
        mpi_ops.synchronize(
            _world.current().allgather(
                input_tensor,
                ONE,
                f"{self._shards.name}.weights",
                self._shards.process_set,
                WAITS,
                output_tensor,
                "",
                self._spec(input_tensor.numel()),
            )
        )
        return None


class _CompressedScatter(_Compressed, ReduceScatter):
    """The reduce-scatter of one FSDP module."""

    _only_trained = True

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,  # noqa: ARG002  the mesh's
        op: Any,
        async_op: bool = False,  # noqa: ARG002  torch passes none
    ) -> Any:
        """Combines the gradients of all ranks, and returns when that is done."""
        how = reduction(op, input_tensor.dtype)
        mpi_ops.synchronize(
            _world.current().reducescatter(
                input_tensor,
                ONE,
                f"{self._shards.name}.gradients",
                how.op,
                how.factor,
                1.0,
                self._shards.process_set,
                WAITS,
                output_tensor,
                "",
                self._spec(output_tensor.numel()),
            )
        )
        return None


def _check_ways(gathers: EngineCompressor | None, scatters: EngineCompressor | None) -> None:
    if gathers is not None and not isinstance(gathers, Int8Compressor):
        msg = (
            f"weights in {gathers.label}: training lost 13% by int4 and cannot go on with top-k;"
            " allowed are None and 'int8'"
        )
        raise ValueError(msg)
    if scatters is not None and not scatters.spec().bits:
        msg = (
            f"gradients by {scatters.label}: a reduce-scatter takes None, 'int8' or 'int4';"
            " replicate() has top-k"
        )
        raise ValueError(msg)


def _ranks_of(name: str, group: Any) -> list[int]:
    """Returns the ranks that a module is sharded over."""
    mesh = group.mesh_info.mesh
    ranks: list[int] = mesh.mesh.flatten().tolist()
    if mesh.ndim != 1 or ranks != sorted(ranks):
        msg = (
            f"'{name}' has a mesh of the dimensions {mesh.mesh_dim_names} and the ranks {ranks};"
            " compress() takes one dimension of ascending ranks; for replicas of shards, see"
            " replicate()"
        )
        raise ValueError(msg)
    return ranks
