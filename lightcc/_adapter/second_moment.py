"""A word where top-k meets an optimizer that divides by squares of what arrives."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from lightcc import _world
from lightcc.compression import CompressionWarning, TopKCompressor, find_engine_compressor
from lightcc.process_sets import set_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightcc.process_sets import ProcessSet

_TEXT = (
    "top-k compression under {name} costs accuracy: what arrives is rare and large, and the"
    " optimizer divides by its square. A character transformer under AdamW ended at 2.57 bits per"
    " character with top-k at 1% instead of 1.97 (docs/convergence.md), and at 1.97 with"
    " compression=hvd.Compression.int4 or LIGHT_QUANTIZE_ALLREDUCE=int4: use one of these."
    " Ignoring lightcc.compression.CompressionWarning silences this."
)

_warned_in_epoch: int | None = None


def warn_under_second_moment(
    compression: Any, name: str, sizes: Iterable[int], process_set: ProcessSet, stacklevel: int = 2
) -> None:
    """Says once, on the first rank of the set, that accuracy is at stake, if it is.

    Args:
        compression: As of DistributedOptimizer.
        name: Class of an optimizer with a second moment.
        sizes: Bytes of its gradients.
        process_set: The ranks whose gradients are combined.
        stacklevel: As of `warnings.warn()`, seen from here.
    """
    global _warned_in_epoch
    world = _world.current()
    knobs = world.compression_knobs()
    compressor = find_engine_compressor(compression)
    if compressor is None:
        is_at_stake = knobs["topk"] and not knobs["quantize"]
    else:
        is_at_stake = isinstance(compressor, TopKCompressor) and compressor.ratio < 1.0
    if not is_at_stake or process_set.rank() != 0 or _warned_in_epoch == _world.counting_epoch():
        return
    owner = set_id(process_set)
    if owner is not None and any(world.compresses(owner, size) for size in sizes):
        _warned_in_epoch = _world.counting_epoch()
        warnings.warn(_TEXT.format(name=name), CompressionWarning, stacklevel=stacklevel)
