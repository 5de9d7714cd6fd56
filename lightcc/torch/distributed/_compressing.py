"""Compression of what the ranks of a group gather and scatter.

Trainers that shard by themselves, as DeepSpeed's ZeRO, call a group without names. So nothing can
be kept back from one step for the next. int8 does without that.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from lightcc.compression import Int8Compressor, NoneCompressor, find_engine_compressor
from lightcc.torch.distributed._process_group import ProcessGroup


def compress_group(group: Any = None, *, weights: Any = "int8", gradients: Any = "int8") -> None:
    """Has `all_gather_into_tensor` and `reduce_scatter_tensor` of a group compressed between hosts.

    For trainers that shard weights, gradients or optimizer state by these two, such as DeepSpeed's
    ZeRO, Megatron's distributed optimizer, and Lightning's ModelParallelStrategy. For FSDP2,
    `lightcc.torch.fsdp.compress()` knows more: which parameters stay exact, and what to keep back.

    Floating-point tensors of at least 4,096 elements a rank are rounded to 8 bits, each 128 with a
    scale of their own. All else is exact: other collectives, lists of tensors, and functional
    collectives, by which `DTensor.full_tensor()` and full state dicts gather. Every rank of the
    group must call this, with the same arguments, between two operations of the group. Ranks that
    disagree get a RankMismatchError from the next one.

    Args:
        group: A group of the backend `lightcc`; `None`: the default one.
        weights: How gathers travel: "int8", `Compression.int8`, or `None` for exactly.
        gradients: How reduce-scatters travel, likewise. `op` is SUM, AVG or PREMUL_SUM.

    Raises:
        TypeError: The group is of another backend.
        ValueError: Something else than int8 was asked for.
    """
    target = dist.group.WORLD if group is None else group
    if not isinstance(target, ProcessGroup):
        msg = f"compress_group() takes a group of the backend lightcc; found {target!r}"
        raise TypeError(msg)
    target.set_compression(_spec_of(weights, "weights"), _spec_of(gradients, "gradients"))


def _spec_of(asked: Any, what: str) -> Any:
    if asked is None or asked is NoneCompressor:
        return None
    if asked == "int8" or isinstance(find_engine_compressor(asked), Int8Compressor):
        return Int8Compressor().spec()
    msg = (
        f"{what} is {asked!r}; allowed are None and 'int8': a group's operations have no names, so"
        " what 4 bits or top-k leave could not be sent in the next step"
    )
    raise ValueError(msg)
