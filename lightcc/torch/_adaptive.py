"""A word where compression meets an optimizer that it does not suit."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from lightcc import _world
from lightcc.compression import CompressionWarning, TopKCompressor, find_engine_compressor

if TYPE_CHECKING:
    from lightcc._adapter import CompressedGradients
    from lightcc.process_sets import ProcessSet

#: What parameter groups have whose optimizer divides by a running mean of squared gradients, or of
#: their like: Adam, AdamW, LAMB and others; RMSprop; Adagrad; Adadelta; Adafactor.
_SECOND_MOMENT = ("betas", "centered", "initial_accumulator_value", "rho", "beta2_decay")

_TEXT = (
    "{label} compression under {name} costs accuracy: what arrives is {what}, and the optimizer"
    " divides by its square. A character transformer under AdamW ended at 2.57 bits per character"
    " with top-k at 1% instead of 1.97 (docs/convergence.md), and at 1.97 with"
    " compression=hvd.Compression.int4 or LIGHT_QUANTIZE_ALLREDUCE=int4: use these, or"
    " hvd.Compression.adam() for Adam and AdamW. Ignoring lightcc.compression.CompressionWarning"
    " silences this."
)
_WHAT = {"top-k": "rare and large", "1-bit": "a gradient with an error of its own size"}

_warned_era: int | None = None


def is_adaptive(groups: list[dict[str, Any]]) -> bool:
    """Returns whether an optimizer with these parameter groups has a second moment."""
    return any(key in group for group in groups for key in _SECOND_MOMENT)


def warn_of_compression(
    compression: Any,
    name: str,
    groups: list[dict[str, Any]],
    compressed: CompressedGradients,
    process_set: ProcessSet,
) -> None:
    """Says once, on the first rank of the set, that accuracy is at stake, if it is.

    Args:
        compression: As of DistributedOptimizer.
        name: The optimizer's class.
        groups: Its parameter groups.
        compressed: Its gradients, as compression knows them.
        process_set: The ranks whose gradients are combined.
    """
    global _warned_era
    knobs = _world.current().compression_knobs()
    compressor = find_engine_compressor(compression)
    label = TopKCompressor.label
    if compressor is None:
        is_at_stake = knobs["topk"] and not knobs["quantize"]
    else:
        label = compressor.label
        is_whole = isinstance(compressor, TopKCompressor) and compressor.ratio == 1.0
        is_at_stake = label in _WHAT and not is_whole
    if not (is_at_stake and is_adaptive(groups)):
        return
    if process_set.rank() != 0 or _warned_era == _world.era():
        return
    if compressed.compresses_any(p.numel() * p.element_size() for g in groups for p in g["params"]):
        _warned_era = _world.era()
        warnings.warn(
            _TEXT.format(label=label, name=name, what=_WHAT[label]),
            CompressionWarning,
            stacklevel=4,
        )
