"""What both ways of sharding ask of FSDP's modules, which only torch's private classes tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from lightcc import _world
from lightcc._ops.functions import allgather_object
from lightcc.compression import (
    EngineCompressor,
    Int4Compressor,
    Int8Compressor,
    NoneCompressor,
    TopKCompressor,
    find_engine_compressor,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_EXACT_BELOW = 4096  # Elements of a whole parameter.
_BY_NAME: dict[str, Callable[[], EngineCompressor]] = {
    "int8": Int8Compressor,
    "int4": Int4Compressor,
    "topk": TopKCompressor,
}
_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")  # torch.compile, activation checkpointing.


def compressor_of(asked: Any, what: str) -> EngineCompressor | None:
    """Returns the compressor that a caller asked for, if any; TypeError where it is none."""
    if asked is None or asked is NoneCompressor:
        return None
    if isinstance(asked, str) and asked in _BY_NAME:
        return _BY_NAME[asked]()
    compressor: EngineCompressor | None = find_engine_compressor(asked)
    if compressor is None:
        msg = (
            f"{what} is {asked!r}; allowed are None, 'int8', 'int4', 'topk', and"
            " Compression.int8, int4 and topk(...); for 16 bits, give fully_shard()"
            " a MixedPrecisionPolicy"
        )
        raise TypeError(msg)
    compressor.spec()  # Raises where it is for optimizers alone.
    return compressor


def current_world(what: str) -> Any:
    """Returns the world, whose ranks are those of torch's default group."""
    if not (_world.exists() and dist.is_initialized()):
        msg = f'{what} comes after torch.distributed.init_process_group("lightcc")'
        raise ValueError(msg)
    world = _world.current()
    if (dist.get_rank(), dist.get_world_size()) != (world.rank, world.size):
        msg = f"torch.distributed has other ranks than lightcc, where this is rank {world.rank}"
        raise ValueError(msg)
    return world


def check_torch(*methods: str) -> None:
    """Raises RuntimeError where this torch's FSDP modules lack one of these methods."""
    for method in methods:
        if not hasattr(FSDPModule, method):
            msg = f"torch {torch.__version__} lacks FSDPModule.{method}()"
            raise RuntimeError(msg)


def check_alike(operation: str, said: str, modules: Iterable[str], own: Any) -> list[Any]:
    """Returns the `own` of each rank; ValueError where ranks do not say the same of equal modules.

    Collective: every rank must call it.
    """
    mine = (said, sorted(modules))
    everyone = allgather_object((*mine, own), name=f"fsdp.{operation}")
    for rank, theirs in enumerate(everyone):
        if theirs[:2] != mine:
            msg = f"rank {_world.rank()} has {said}, and rank {rank} has {theirs[0]}"
            raise ValueError(msg)
    return [theirs[2] for theirs in everyone]


def param_groups(model: nn.Module) -> dict[str, tuple[Any, Any]]:
    """Returns module and FSDP's parameter group of each FSDP module that has parameters, by name.

    Raises:
        ValueError: There is none.
    """
    groups: dict[str, tuple[Any, Any]] = {}
    seen = set()
    for name, module in model.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        for group in module._get_fsdp_state()._fsdp_param_groups:  # noqa: SLF001
            if id(group) not in seen:  # Modules may share one.
                seen.add(id(group))
                parts = [it for it in name.split(".") if it and it not in _WRAPPERS]
                groups[".".join(parts) or "root"] = (module, group)
    if not groups:
        msg = "the model has no FSDP modules: call fully_shard() of all modules before"
        raise ValueError(msg)
    return groups


def described(compressor: EngineCompressor | None) -> str:
    """Returns what a compressor does, as messages say it."""
    return "exact" if compressor is None else compressor.describe()


def way_of(parameter: Any, compressor: EngineCompressor | None) -> str:
    """Returns how a parameter of an FSDP module travels: "exact", or the label of a compressor."""
    if compressor is None or parameter.sharded_param.numel() < _EXACT_BELOW:
        return "exact"
    info = parameter._module_info  # noqa: SLF001
    owners = (info.module, *info.shared_modules)
    is_embedding = any(isinstance(it, (nn.Embedding, nn.EmbeddingBag)) for it in owners)
    return "int8" if is_embedding else compressor.label


def ends_with_pass(group: Any, shard: Any) -> bool:
    """Returns whether a gradient may come as late as the backward pass that now goes on ends.

    FSDP makes `.grad` of the memory of `shard`, and nobody looks at it before.
    """
    if torch._C._current_graph_task_id() == -1:  # noqa: SLF001  as FSDP finds out itself
        return False
    if shard.dtype not in (torch.float32, torch.bfloat16) or shard.dtype != group._orig_dtype:  # noqa: SLF001
        return False  # FSDP divides, or casts, after this.
    return not group.force_sum_reduction_for_comms and all(
        not it.offload_to_cpu
        and it.sharded_param.grad is None
        and not getattr(it.sharded_param, "_post_accumulate_grad_hooks", None)
        for it in group.fsdp_params
    )


class Unfinished:
    """What a module has begun in a backward pass, if anything."""

    def __init__(self) -> None:
        """Begins with nothing."""
        self._finish: Callable[[], None] | None = None

    def hold(self, finish: Callable[[], None], ends_later: bool) -> None:
        """Has `finish` called: when the backward pass ends, or `finish()` is called; else now."""
        self._finish = finish
        if ends_later:
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)  # noqa: SLF001
        else:
            self.finish()

    def finish(self) -> None:
        """Finishes it, unless that was done."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
