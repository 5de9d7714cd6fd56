"""FSDP2 whose all-gathers of weights and reduce-scatters of gradients are compressed between hosts.

torch hands each FSDP module's collectives to objects that may be exchanged. These run them in
lightcc's world, among the ranks of the module's mesh, which are a process set. torch gives them
flat rows without names, so a row is told to the engine as segments, one for each parameter. Blocks
that share a scale then never reach from one parameter into the next.

Weights are rounded anew from the optimizer's exact shards in each gather, or travel as differences
from what was gathered last; all ranks get the same bits. What gradients lose is kept by the engine
under the module's name, and added in the next step. Such a residual belongs to fixed segments: FSDP
is told to count parameters without a gradient as zeros.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from lightcc import _world
from lightcc._binding import _core
from lightcc._world import ONE, WAITS
from lightcc.compression import Int4Compressor
from lightcc.process_sets import one_process_set_of
from lightcc.torch.distributed._reductions import reduction
from lightcc.torch.distributed._work import Work
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

    from torch import nn

    from lightcc._core import CompressionSpec
    from lightcc.compression import EngineCompressor

try:
    from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
    from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState
except ImportError:  # An older torch.
    AllGather = ReduceScatter = TrainingState = object  # type: ignore[assignment, misc]


_MAX_UNDER_WAY = 2  # Reduce-scatters: each keeps the whole gradients of a module.


def compress(
    model: nn.Module,
    *,
    weights: Any = "int8",
    gradients: Any = "int4",
    resident: bool = False,
    name: str = "fsdp",
) -> None:
    """Has FSDP2's collectives of a sharded model compressed between hosts.

    Call it once, after `fully_shard()` of all modules, before the first step. Ranks of one host
    pass each other everything exactly.

    Parameters of fewer than 4,096 elements travel exactly, and gradients of nn.Embedding in no
    fewer than 8 bits. Where `reshard_after_forward` is a number, the gathers of the backward pass
    are exact: what they gather was rounded in the forward pass.

    A gather is under way from FSDP's prefetch until the weights are used: always in the backward
    pass, and after `set_modules_to_forward_prefetch()` in the forward pass. The reduce-scatters of
    two modules are under way beside the backward pass, unless FSDP casts, adds or offloads results.

    Collective: every rank must call it, with models of the same modules and the same arguments.

    Args:
        model: Of modules that FSDP shards, each over one mesh of one dimension.
        weights: How all-gathers travel: `None` (exactly), "int8" or "int4", or one of
            `Compression.int8` and `Compression.int4`. "int4" needs `resident`.
        gradients: How reduce-scatters travel: `None` (exactly), "int8", "int4", or one of
            `Compression.int8` and `Compression.int4`. What rounding takes away is added in the
            next step.
        resident: Whether each rank keeps a copy of all gathered weights. The gathers of forward
            passes then bring differences from it, and those of backward passes nothing. Call
            compress() again after weights were loaded or set: the next gather is exact then.
        name: Begins the names of the operations. Another one for each model of a program.

    Raises:
        ValueError: This cannot work, and the text says why: another way of compressing was asked
            for, `resident` goes without `weights`, or with `reshard_after_forward` as a number, the
            model has no FSDP modules or modules with several meshes, a mesh has two
            dimensions or ranks that do not ascend, or ranks called it with different arguments.
        TypeError: `weights` or `gradients` is none of the above.
        RuntimeError: This torch has no collectives that can be exchanged.
        HorovodInternalError: A rank failed. On all ranks.
    """
    check_torch("set_custom_reduce_scatter", "set_reduce_scatter_unused_params")
    gathers, scatters = compressor_of(weights, "weights"), compressor_of(gradients, "gradients")
    _check_ways(gathers, scatters, resident)
    current_world("compress()")
    groups = param_groups(model)
    meshes = {own: _ranks_of(own, group) for own, (_, group) in groups.items()}
    for own, (_, group) in groups.items():
        if resident and group._use_post_forward_mesh:  # noqa: SLF001
            msg = f"'{own}' reshards after forward to other ranks: resident weights stay on all"
            raise ValueError(msg)
    kept = "resident " if resident else ""
    ways = f"{kept}{described(gathers)} weights and {described(scatters)} gradients"
    said = f"{ways} of {len(groups)} modules as {name!r}"
    everyone = check_alike("compress", said, groups, meshes)
    under_way: list[Unfinished] = []
    for own, (module, group) in groups.items():
        ranks = one_process_set_of(sorted({tuple(theirs[own]) for theirs in everyone}))
        shards = _Shards(group, f"{name}.{own}", ranks.process_set_id, len(meshes[own]))
        if gathers is not None:
            gather = (_ResidentGather if resident else _CompressedGather)(shards, gathers)
            module.set_custom_all_gather(gather)
        if scatters is not None:
            module.set_reduce_scatter_unused_params(True, recurse=False)
            module.set_custom_reduce_scatter(_CompressedScatter(shards, scatters, under_way))


class _Shards:
    """One FSDP module's flat rows."""

    def __init__(self, group: Any, name: str, process_set: int | None, size: int) -> None:
        self.name = name
        self.group = group
        self.size = size
        self._process_set = process_set

    def gather(
        self,
        output: torch.Tensor,
        row: torch.Tensor,
        spec: CompressionSpec | None,
        finish: Callable[[Any], None] | None = None,
    ) -> Work:
        """Starts an all-gather, which calls `finish` before anybody hears that it is done."""
        name = f"{self.name}.weights"
        handle = _world.current().allgather(
            row, ONE, name, self._process_set, not WAITS, output, "", spec
        )
        return Work(handle, [output], finish, math.inf, name)

    def reduce_scatter(
        self, output: torch.Tensor, rows: torch.Tensor, op: Any, spec: CompressionSpec
    ) -> Work:
        """Starts a reduce-scatter."""
        how, name = reduction(op, rows.dtype), f"{self.name}.gradients"
        handle = _world.current().reducescatter(
            rows, ONE, name, how.op, how.factor, 1.0, self._process_set, not WAITS, output, "", spec
        )
        return Work(handle, [output], None, math.inf, name)

    def segments(
        self, numel: int, compressor: EngineCompressor, only_trained: bool
    ) -> list[tuple[int, int]]:
        """Returns elements and bits of each stretch of a row of `numel`; 0 bits are exact."""
        segments: list[tuple[int, int]] = []
        for parameter in self.group.fsdp_params:
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
        return segments


class _Compressed:
    """What both collectives have: memory, and the segments of rows by their length."""

    _only_trained = False

    def __init__(self, shards: _Shards, compressor: EngineCompressor) -> None:
        self._shards = shards
        self._compressor = compressor
        self._known: dict[int, tuple[list[tuple[int, int]], CompressionSpec]] = {}

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Returns memory for what torch hands over."""
        return torch.empty(*size, dtype=dtype, device=device)

    def _row(self, numel: int) -> tuple[list[tuple[int, int]], CompressionSpec]:
        """Returns the segments of a row, and what the engine is told of them."""
        if numel not in self._known:
            segments = self._shards.segments(numel, self._compressor, self._only_trained)
            bits = self._compressor.spec().bits
            self._known[numel] = segments, _core.CompressionSpec.quantized(bits, segments)
        return self._known[numel]


class _CompressedGather(_Compressed, AllGather):
    """The all-gather of one FSDP module, under way until FSDP copies the weights out."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,
        async_op: bool = False,
    ) -> Any:
        """Starts to gather the shards of all ranks; returns what FSDP waits for."""
        if group.size() != self._shards.size:  # After forward: of rounded weights, kept in part.
            return torch.distributed.all_gather_into_tensor(
                output_tensor, input_tensor, group=group, async_op=async_op
            )
        _, spec = self._row(input_tensor.numel())
        return self._shards.gather(output_tensor, input_tensor, spec)


class _ResidentGather(_Compressed, AllGather):
    """An all-gather of differences from what was gathered last, which each rank keeps.

    The owner of a shard keeps what the others have of it, as `_others_have`. It sends by how much
    the shard differs, so what rounding took away is in the next difference (SDP4Bit,
    arXiv:2410.15526). The backward pass sends nothing: it uses the weights of the forward pass.
    """

    def __init__(self, shards: _Shards, compressor: EngineCompressor) -> None:
        super().__init__(shards, compressor)
        self._resident: torch.Tensor | None = None
        self._others_have: torch.Tensor | None = None  # `None` until shards have come whole.

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Returns the weights gathered last, into which torch then copies this rank's shard."""
        resident = self._resident
        if resident is None or (resident.shape, resident.dtype) != (torch.Size(size), dtype):
            self._resident = resident = super().allocate(size, dtype=dtype, device=device)
            self._others_have = None
        return resident

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,
        async_op: bool = False,  # noqa: ARG002  a Work is right for both
    ) -> Any:
        """Starts to bring the kept weights up to date; returns what FSDP waits for, if anything."""
        if group.size() != self._shards.size:
            msg = f"{self._shards.name}: resident weights were resharded to {group.size()} ranks"
            raise RuntimeError(msg)
        own, before = input_tensor, self._others_have
        if before is None:
            self._others_have = own.clone()
            return self._shards.gather(output_tensor, own, None)
        if self._shards.group._training_state == TrainingState.PRE_BACKWARD:  # noqa: SLF001
            own.copy_(before)
            return None
        segments, spec = self._row(own.numel())
        # 1 where differences travel, and 0 where values do.
        rounded = torch.cat([own.new_full((count,), float(bits > 0)) for count, bits in segments])
        sent = torch.addcmul(own, before, rounded, value=-1)
        own.copy_(before)
        received = torch.empty_like(output_tensor)

        def finish(_: Any) -> None:
            rows = output_tensor.view(self._shards.size, -1)
            torch.addcmul(received.view_as(rows), rows, rounded, out=rows)
            # What is not finite would stay so. All ranks have the same bits, and forget together.
            is_finite = bool(received.sum(dtype=torch.float32).isfinite())
            self._others_have = before.copy_(own) if is_finite else None

        return self._shards.gather(received, sent, spec, finish)


class _CompressedScatter(_Compressed, ReduceScatter):
    """The reduce-scatter of one FSDP module, under way beside the backward pass where that may be.

    Two of a model are at most, as each keeps the whole gradients of its module.
    """

    _only_trained = True

    def __init__(
        self, shards: _Shards, compressor: EngineCompressor, under_way: list[Unfinished]
    ) -> None:
        super().__init__(shards, compressor)
        self._unfinished = Unfinished()
        self._under_way = under_way  # Those of the model, the oldest first.

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,  # noqa: ARG002  the mesh's
        op: Any,
        async_op: bool = False,  # noqa: ARG002  torch passes none
    ) -> None:
        """Starts to combine the gradients of all ranks, and waits if FSDP looks at them now."""
        self._unfinished.finish()  # A module that ran twice comes twice; FSDP adds to the first.
        while len(self._under_way) >= _MAX_UNDER_WAY:
            self._under_way[0].finish()
        _, spec = self._row(output_tensor.numel())
        work = self._shards.reduce_scatter(output_tensor, input_tensor, op, spec)
        self._under_way.append(self._unfinished)
        has_hook = self._shards.group._all_reduce_hook is not None  # noqa: SLF001
        ends_later = not has_hook and ends_with_pass(self._shards.group, output_tensor)
        self._unfinished.hold(partial(self._end, work, input_tensor), ends_later)

    def _end(self, work: Work, _read: torch.Tensor) -> None:
        self._under_way.remove(self._unfinished)
        work.wait()


def _check_ways(
    gathers: EngineCompressor | None, scatters: EngineCompressor | None, resident: bool
) -> None:
    if gathers is not None and not gathers.spec().bits:
        msg = f"weights by {gathers.label}: allowed are None, 'int8', and 'int4' with resident=True"
        raise ValueError(msg)
    if isinstance(gathers, Int4Compressor) and not resident:
        msg = (
            "weights in int4: training lost 13% by them; with resident=True differences travel,"
            " and each rank keeps a copy of all weights"
        )
        raise ValueError(msg)
    if resident and gathers is None:
        msg = "resident=True is for weights='int8' or 'int4'; exact ones are gathered as FSDP does"
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
