"""Which compression LIGHT_TOPK_ALLREDUCE means for an optimizer.

What suits an optimizer depends on what it does with gradients (docs/convergence.md):

- SGD adds them up, so what arrives late still counts: top-k, with momentum applied to what is kept
  back where the momentum is plain;
- Adam and others with a second moment: 4 bits, which they cannot tell from gradients;
- anything else is unknown: top-k, with a warning.

LIGHT_TOPK_OPTIMIZER=0 means top-k for all of them. Top-k begins with a warm-up.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from lightcc._adapter import (
    LIMIT,
    LIMIT_OF_SQUARES,
    CompressionGuard,
    choose_under_squares,
    knobs_of_flag,
    say_choice,
)
from lightcc.compression import CompressionWarning, EngineCompressor, TopKCompressor
from lightcc.torch._adaptive import is_adaptive
from lightcc.torch._momentum import has_plain_momentum

if TYPE_CHECKING:
    from lightcc._adapter import CompressedGradients
    from lightcc.process_sets import ProcessSet

#: Of top-k, where nobody says another number.
_WARMUP_STEPS = 1000

_UNKNOWN = (
    "LIGHT_TOPK_ALLREDUCE: {name} is no optimizer that lightcc knows, so its gradients are top-k"
    " compressed. That suits one that adds gradients up, as SGD does; for others set"
    " LIGHT_QUANTIZE_ALLREDUCE=int4."
)


def choose_compression(
    compression: Any, op: int, cls: type[Any], groups: list[dict[str, Any]]
) -> Any:
    """Returns how gradients travel: `compression` itself, where that says it.

    Args:
        compression: As of DistributedOptimizer.
        op: How gradients are combined.
        cls: Class of the given optimizer.
        groups: Its parameter groups.
    """
    knobs = knobs_of_flag(compression, op)
    if knobs is None:
        return compression
    if knobs["topk_by_optimizer"] and is_adaptive(groups):
        return choose_under_squares(compression, op)
    warmup = knobs["topk_warmup_steps"]
    return TopKCompressor(
        knobs["topk_ratio"],
        knobs["topk_fp16"],
        _WARMUP_STEPS if warmup < 0 else warmup,
        bool(knobs["topk_by_optimizer"] and cls is torch.optim.SGD and has_plain_momentum(groups)),
    )


def make_guard(
    compressed: CompressedGradients, groups: list[dict[str, Any]], process_set: ProcessSet
) -> CompressionGuard:
    """Returns what looks after gradients that are compressed as `choose_compression()` chose.

    Momentum correction applies momentum to what is kept back, which is larger by that.
    """
    if is_adaptive(groups):
        return CompressionGuard(compressed, process_set, LIMIT_OF_SQUARES)
    momentum = 0.0 if compressed.spec is None else compressed.spec.momentum
    return CompressionGuard(compressed, process_set, LIMIT / (1.0 - momentum))


def say_what_is_done(
    chosen: EngineCompressor,
    cls: type[Any],
    groups: list[dict[str, Any]],
    process_set: ProcessSet,
) -> None:
    """Says once, on the first rank of the set, what `choose_compression()` chose, if it matters."""
    parameters: list[torch.Tensor] = [p for group in groups for p in group["params"]]
    sizes = (p.numel() * p.element_size() for p in parameters)
    if not say_choice(chosen, cls.__name__, sizes, process_set):
        return
    is_known = cls in (torch.optim.SGD, torch.optim.ASGD) or is_adaptive(groups)
    if isinstance(chosen, TopKCompressor) and not is_known:
        warnings.warn(_UNKNOWN.format(name=cls.__name__), CompressionWarning, stacklevel=4)
