"""Gradients that are tf.IndexedSlices: rows of a large tensor, with their positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from lightcc._ops.reductions import Adasum, Average, Sum
from lightcc.tensorflow import _calls
from lightcc.tensorflow._library import ops

if TYPE_CHECKING:
    from lightcc.process_sets import ProcessSet


def allreduce_slices(slices: Any, op: int, named: dict[str, Any], process_set: ProcessSet) -> Any:
    """Gathers values and indices of all ranks, so that applying them adds them up.

    The group has the name of a dense allreduce, so that ranks with one and the other do not wait.

    Args:
        slices: tf.IndexedSlices.
        op: `Average` or `Sum`.
        named: The arguments that match the operation across ranks.
        process_set: The ranks that take part.

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
    values, indices = ops.lightcc_grouped_allgather(
        [slices.values, slices.indices],
        process_set_id=_calls.set_id(process_set),
        sequence="allreduce" if named["naming"] == "given" else "",
        **named,
    )
    if op == Average:
        values = values / members(process_set, values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


def members(process_set: ProcessSet, dtype: Any) -> Any:
    """Returns the number of ranks when the operation runs, which a saved graph may do elsewhere."""
    size = ops.lightcc_standing(what="size", process_set_id=_calls.set_id(process_set))
    return tf.cast(size, dtype)
