"""Gradients that are tf.IndexedSlices: rows of a large tensor, with their positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from lightcc._ops.reductions import Adasum, Average, Sum
from lightcc.tensorflow import _calls
from lightcc.tensorflow._library import ops

if TYPE_CHECKING:
    from lightcc.process_sets import ProcessSet


def allreduce_slices(
    slices: Any,
    op: int,
    names: tuple[str | None, str | None],
    process_set: ProcessSet,
    *,
    ignore_name_scope: bool = False,
) -> Any:
    """Gathers values and indices of all ranks, so that applying them adds them up.

    Args:
        slices: tf.IndexedSlices.
        op: `Average` or `Sum`.
        names: Match the two operations across ranks: of the values, and of the indices.
        process_set: The ranks that take part.
        ignore_name_scope: As of `allreduce()`.

    Raises:
        NotImplementedError: Another `op`.
    """
    if op == Adasum:
        msg = (
            "The Adasum reduction does not currently support sparse tensors. As a workaround "
            "please pass sparse_as_dense=True to DistributedOptimizer"
        )
        raise NotImplementedError(msg)
    if op not in (Sum, Average):
        msg = "Only Sum and Average ops are supported with tf.IndexedSlices"
        raise NotImplementedError(msg)
    values, indices = (
        _calls.allgather(tensor, name, ignore_name_scope=ignore_name_scope, process_set=process_set)
        for tensor, name in zip((slices.values, slices.indices), names, strict=True)
    )
    if op == Average:
        values = values / members(process_set, values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


def members(process_set: ProcessSet, dtype: Any) -> Any:
    """Returns the number of ranks when the operation runs, which a saved graph may do elsewhere."""
    size = ops.lightcc_standing(what="size", process_set_id=_calls.set_id(process_set))
    return tf.cast(size, dtype)
