"""Where this rank stands, as tensors: asked when a graph runs, so that it may run elsewhere."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lightcc import _world
from lightcc._ops import waiting
from lightcc.process_sets import ProcessSet, global_process_set
from lightcc.tensorflow import _calls
from lightcc.tensorflow._library import ops
from lightcc.tensorflow.util import _executing_eagerly

__all__ = [
    "barrier",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "size_op",
]


def rank_op(name: str | None = None) -> Any:
    """Returns `rank()` as an int32 scalar.

    Args:
        name: Of the node.
    """
    return ops.lightcc_standing(what="rank", name=name)


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Returns the number of members of a process set as an int32 scalar.

    Args:
        process_set_id: Of the set.
        name: Of the node.
    """
    return ops.lightcc_standing(what="size", process_set_id=process_set_id, name=name)


def local_rank_op(name: str | None = None) -> Any:
    """Returns `local_rank()` as an int32 scalar.

    Args:
        name: Of the node.
    """
    return ops.lightcc_standing(what="local_rank", name=name)


def local_size_op(name: str | None = None) -> Any:
    """Returns `local_size()` as an int32 scalar.

    Args:
        name: Of the node.
    """
    return ops.lightcc_standing(what="local_size", name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Returns whether this rank is a member of a process set as an int32 scalar, 0 or 1.

    Args:
        process_set_id: Of the set.
        name: Of the node.
    """
    return ops.lightcc_standing(what="included", process_set_id=process_set_id, name=name)


def join() -> Any:
    """Says that this rank has no more data, and waits until all ranks have said so.

    See `lightcc.join()`.

    Returns:
        The rank that joined last, an int32 scalar, the same on all ranks.
    """
    if _executing_eagerly():
        return tf.constant(waiting.join(), tf.int32)
    joined = ops.lightcc_join()
    with tf.device("/cpu:0"):
        last = tf.numpy_function(_begin_anew, [joined], tf.int32, stateful=True)
    last.set_shape([])
    return last


def _begin_anew(last: Any) -> Any:
    """Notes that ranks begin to count steps anew, and returns what the join has."""
    _world.begin_counting()
    return last


def barrier(process_set: ProcessSet = global_process_set) -> Any:
    """Waits until all ranks of the process set have called it.

    Args:
        process_set: The ranks that take part.

    Returns:
        `None`; where a graph is made, the operation that waits.
    """
    if _executing_eagerly():
        waiting.barrier(process_set)
        return None
    return ops.lightcc_barrier(process_set_id=_calls.set_id(process_set))
