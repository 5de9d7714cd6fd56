"""Which compression LIGHT_TOPK_ALLREDUCE means for an optimizer.

What suits an optimizer depends on what it does with gradients (docs/convergence.md):

- SGD adds them up, so what arrives late still counts: top-k, after steps of int4, since most harm
  is done in the beginning;
- Adam and others with a second moment: int4;
- anything else is unknown: as SGD, with a warning.

LIGHT_TOPK_OPTIMIZER=0 means top-k from the first step on, for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lightcc._adapter import (
    LIMIT,
    LIMIT_OF_SQUARES,
    CompressionGuard,
    Int4First,
    choose_under_squares,
    knobs_of_flag,
    say_choice,
)
from lightcc._warnings import warn_caller
from lightcc.compression import CompressionWarning, EngineCompressor, TopKCompressor
from lightcc.torch._adaptive import is_adaptive

if TYPE_CHECKING:
    from lightcc._adapter import CompressedGradients
    from lightcc.process_sets import ProcessSet

_UNKNOWN = (
    "LIGHT_TOPK_ALLREDUCE: {name} is no optimizer that lightcc knows, so its gradients are top-k"
    " compressed. That suits one that adds gradients up, as SGD does; for others set"
    " LIGHT_QUANTIZE_ALLREDUCE=int4."
)


def choose_compression(compression: Any, op: int, groups: list[dict[str, Any]]) -> Any:
    """Returns how gradients travel: `compression` itself, where that says it.

    Args:
        compression: As of DistributedOptimizer.
        op: How gradients are combined.
        groups: The optimizer's parameter groups.
    """
    knobs = knobs_of_flag(compression, op)
    if knobs is None:
        return compression
    ratio, fp16 = knobs["topk_ratio"], knobs["topk_fp16"]
    if not knobs["topk_by_optimizer"]:
        return TopKCompressor(ratio, fp16)
    return choose_under_squares(compression, op) if is_adaptive(groups) else Int4First(ratio, fp16)


def make_guard(
    compressed: CompressedGradients, groups: list[dict[str, Any]], process_set: ProcessSet
) -> CompressionGuard:
    """Returns what looks after gradients that are compressed as `choose_compression()` chose."""
    limit = LIMIT_OF_SQUARES if is_adaptive(groups) else LIMIT
    return CompressionGuard(compressed, process_set, limit)


def say_what_is_done(
    chosen: EngineCompressor, cls: type[Any], groups: list[dict[str, Any]], process_set: ProcessSet
) -> None:
    """Says once, on the first rank of the set, what `choose_compression()` chose, if it matters."""
    parameters: list[torch.Tensor] = [p for group in groups for p in group["params"]]
    sizes = (p.numel() * p.element_size() for p in parameters)
    if not say_choice(chosen, cls.__name__, sizes, process_set):
        return
    is_known = cls in (torch.optim.SGD, torch.optim.ASGD) or is_adaptive(groups)
    if not is_known:
        warn_caller(_UNKNOWN.format(name=cls.__name__), CompressionWarning)
