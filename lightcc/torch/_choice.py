"""Which compression LIGHT_TOPK_ALLREDUCE means for an optimizer.

What suits an optimizer depends on what it does with gradients (docs/convergence.md):

- SGD adds them up, so what arrives late still counts: top-k, with momentum applied to what is kept
  back where the momentum is plain;
- Adam and AdamW: `AdamCompressor`, with a warning where there are more than two hosts;
- others with a second moment: 4 bits, which they cannot tell from gradients;
- anything else is unknown: top-k, with a warning.

LIGHT_TOPK_OPTIMIZER=0 means top-k for all of them. Top-k begins with a warm-up.
"""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any

import torch

from lightcc import _world
from lightcc._adapter import LIMIT, LIMIT_OF_SQUARES, CompressionGuard
from lightcc.compression import (
    AdamCompressor,
    CompressionWarning,
    EngineCompressor,
    Int4Compressor,
    NoneCompressor,
    TopKCompressor,
)
from lightcc.reductions import Average, Sum
from lightcc.torch._adam import why_not
from lightcc.torch._adaptive import is_adaptive
from lightcc.torch._momentum import has_plain_momentum

if TYPE_CHECKING:
    from lightcc._adapter import CompressedGradients
    from lightcc.process_sets import ProcessSet

_log = logging.getLogger(__name__)

#: Of top-k, where nobody says another number.
_WARMUP_STEPS = 1000

_UNKNOWN = (
    "LIGHT_TOPK_ALLREDUCE: {name} is no optimizer that lightcc knows, so its gradients are top-k"
    " compressed. That suits one that adds gradients up, as SGD does; for others set"
    " LIGHT_QUANTIZE_ALLREDUCE=int4."
)
#: The choice itself is for any number of hosts, since those of an elastic job change under it.
_HOSTS_MEASURED = 2
_MANY_HOSTS = (
    "LIGHT_TOPK_ALLREDUCE: 1-bit Adam between {hosts} hosts may cost accuracy: a small transformer"
    " on 4 lost 0.7 to 2%, and 0.3 to 1% by LIGHT_QUANTIZE_ALLREDUCE=int4 (docs/convergence.md)."
)
_DONE = "LIGHT_TOPK_ALLREDUCE: gradients of %s travel by %s (docs/convergence.md says why)"

_said_era: int | None = None


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
    knobs = _world.current().compression_knobs()
    is_open = compression is NoneCompressor and op in (Average, Sum)
    if not is_open or not knobs["topk"] or knobs["quantize"]:
        return compression
    warmup = knobs["topk_warmup_steps"]
    if knobs["topk_by_optimizer"]:
        if why_not(cls, groups) is None:
            return AdamCompressor() if warmup < 0 else AdamCompressor(max(1, warmup))
        if is_adaptive(groups):
            return Int4Compressor()
    return TopKCompressor(
        knobs["topk_ratio"],
        knobs["topk_fp16"],
        _WARMUP_STEPS if warmup < 0 else warmup,
        bool(knobs["topk_by_optimizer"] and cls is torch.optim.SGD and has_plain_momentum(groups)),
    )


def make_guard(
    chosen: EngineCompressor,
    compressed: CompressedGradients,
    groups: list[dict[str, Any]],
    process_set: ProcessSet,
) -> CompressionGuard:
    """Returns what looks after gradients that are compressed as `choose_compression()` chose.

    1-bit Adam keeps momentum back, which is added up as SGD's gradients are. Momentum correction
    applies momentum to what is kept back, which is larger by that.
    """
    if is_adaptive(groups) and not isinstance(chosen, AdamCompressor):
        return CompressionGuard(compressed, process_set, LIMIT_OF_SQUARES)
    momentum = 0.0 if compressed.spec is None else compressed.spec.momentum
    return CompressionGuard(compressed, process_set, LIMIT / (1.0 - momentum))


def say_what_is_done(
    chosen: EngineCompressor,
    cls: type[Any],
    compressed: CompressedGradients,
    groups: list[dict[str, Any]],
    process_set: ProcessSet,
) -> None:
    """Says once, on the first rank of the set, what `choose_compression()` chose, if it matters."""
    global _said_era
    if process_set.rank() != 0 or _said_era == _world.era():
        return
    if not compressed.compresses_any(p.numel() * p.element_size() for p in _all(groups)):
        return
    _said_era = _world.era()
    _log.warning(_DONE, cls.__name__, chosen.describe())
    hosts = len(_world.current().hosts)
    if isinstance(chosen, AdamCompressor) and hosts > _HOSTS_MEASURED:
        warnings.warn(_MANY_HOSTS.format(hosts=hosts), CompressionWarning, stacklevel=4)
    is_known = cls in (torch.optim.SGD, torch.optim.ASGD) or is_adaptive(groups)
    if isinstance(chosen, TopKCompressor) and not is_known:
        warnings.warn(_UNKNOWN.format(name=cls.__name__), CompressionWarning, stacklevel=4)


def _all(groups: list[dict[str, Any]]) -> list[torch.Tensor]:
    return [p for group in groups for p in group["params"]]
