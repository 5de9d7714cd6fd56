"""LIGHT_TOPK_ALLREDUCE=1 where a frontend knows the optimizer: what it means, and a line of it.

Top-k costs accuracy where an optimizer divides by squares of gradients, as Adam does. There the
variable means int4, whose error such an optimizer cannot tell from noise (docs/convergence.md).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from lightcc import _world
from lightcc._ops.reductions import Average, Sum
from lightcc.compression import Int4Compressor, NoneCompressor
from lightcc.process_sets import set_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightcc.compression import EngineCompressor
    from lightcc.process_sets import ProcessSet

_log = logging.getLogger(__name__)

_said_in_epoch: int | None = None


def knobs_of_flag(compression: Any, op: int) -> dict[str, Any] | None:
    """Returns what variables say of top-k; `None`: something else says how gradients travel.

    Args:
        compression: As of DistributedOptimizer.
        op: How gradients are combined.
    """
    knobs = _world.current().compression_knobs()
    is_open = compression is NoneCompressor and op in (Average, Sum)
    return knobs if is_open and knobs["topk"] and not knobs["quantize"] else None


def choose_under_squares(compression: Any, op: int) -> Any:
    """Returns how gradients travel to an optimizer that divides by their squares.

    Args:
        compression: As of DistributedOptimizer.
        op: How gradients are combined.

    Returns:
        `Int4Compressor()` where LIGHT_TOPK_ALLREDUCE means that, and else `compression` itself.
    """
    knobs = knobs_of_flag(compression, op)
    is_chosen = knobs is not None and knobs["topk_by_optimizer"]
    return Int4Compressor() if is_chosen else compression


def say_choice(
    chosen: EngineCompressor, name: str, sizes: Iterable[int], process_set: ProcessSet
) -> bool:
    """Says once, on the first rank of the set, how gradients travel, if some are compressed.

    Args:
        chosen: What takes the place of LIGHT_TOPK_ALLREDUCE.
        name: Class of the optimizer.
        sizes: Bytes of its gradients.
        process_set: The ranks whose gradients are combined.

    Returns:
        Whether it did.
    """
    global _said_in_epoch
    if process_set.rank() != 0 or _said_in_epoch == _world.counting_epoch():
        return False
    world, owner = _world.current(), set_id(process_set)
    if owner is None or not any(world.compresses(owner, num_bytes) for num_bytes in sizes):
        return False
    _said_in_epoch = _world.counting_epoch()
    _log.warning(
        "LIGHT_TOPK_ALLREDUCE: gradients of %s travel by %s (docs/convergence.md says why)",
        name,
        chosen.describe(),
    )
    return True
