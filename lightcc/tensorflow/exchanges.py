"""allgather, broadcast and alltoall of TensorFlow's tensors, with gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from lightcc.process_sets import ProcessSet, global_process_set
from lightcc.tensorflow import _calls
from lightcc.tensorflow.util import _executing_eagerly, variable_name

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["allgather", "alltoall", "broadcast", "broadcast_", "grouped_allgather"]


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Concatenates the tensors of all ranks along the first dimension, with their gradient.

    The gradient is averaged over the ranks, and each rank gets the part that belongs to its rows.

    Collective: every rank of the process set must call it with the same name, dtype and shape but
    for the first dimension, which may differ.

    Args:
        tensor: Shape (rows, ...), at least 1-dimensional; rows may be 0.
        name: As of `allreduce()`.
        ignore_name_scope: Whether the scopes around the node are no part of its name.
        process_set: The ranks that take part.

    Returns:
        A tensor of shape (sum of rows, ...), the same on every rank.

    Raises:
        tf.errors.OpError: As of `allreduce()`.
    """
    return _calls.allgather(
        tensor, name, ignore_name_scope=ignore_name_scope, process_set=process_set
    )


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Concatenates several tensors of all ranks, all or none, with their gradients.

    Collective: every rank of the process set must call it with as many tensors, in the same order.

    Args:
        tensors: Each as of `allgather()`.
        name: As of `allreduce()`.
        ignore_name_scope: Whether the scopes around the node are no part of its name.
        process_set: The ranks that take part.

    Returns:
        A list of results in the order of `tensors`.

    Raises:
        tf.errors.OpError: As of `allreduce()`.
    """
    return _calls.grouped_allgather(
        tensors, name, ignore_name_scope=ignore_name_scope, process_set=process_set
    )


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root's tensor on every rank, with its gradient.

    The root's gradient is the average of all ranks' gradients; the others' is zero.

    Collective: every rank of the process set must call it with the same name, dtype, shape and
    `root_rank`.

    Args:
        tensor: Any shape. Of other ranks than the root, only dtype and shape count.
        root_rank: World rank of the root.
        name: As of `allreduce()`.
        ignore_name_scope: Whether the scopes around the node are no part of its name.
        process_set: The ranks that take part.

    Returns:
        A tensor with the root's contents.

    Raises:
        tf.errors.OpError: As of `allreduce()`.
    """
    return _calls.broadcast(
        tensor, root_rank, name, ignore_name_scope=ignore_name_scope, process_set=process_set
    )


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Gives variables of every rank the root's values.

    Collective: every rank of the process set must call it with variables of the same dtypes and
    shapes, in the same order.

    Args:
        variables: Any, of one kind: resource variables, which are usual, or reference variables.
        root_rank: World rank of the root.
        name: Begins the names that match variables across ranks.
        process_set: The ranks that take part.

    Returns:
        The values of the variables, once they are assigned.

    Raises:
        ValueError: There are variables of both kinds.
        tf.errors.OpError: As of `allreduce()`.
    """
    kinds = {hasattr(variable, "handle") for variable in variables}
    if len(kinds) > 1:
        msg = (
            "All variables passed to broadcast_() should be of the same kind, resource or reference"
        )
        raise ValueError(msg)
    if not variables:
        return []
    prefix = name or "HorovodBroadcastInplace"
    if not _executing_eagerly():
        prefix = tf.compat.v1.get_default_graph().unique_name(prefix)
    names = [f"{prefix}.{i}.{variable_name(v)}" for i, v in enumerate(variables)]
    received = _calls.broadcast_each(variables, root_rank, names, process_set)
    assigned = [v.assign(value) for v, value in zip(variables, received, strict=True)]
    if _executing_eagerly():
        return received
    with tf.control_dependencies([value for value in assigned if value is not None]):
        return [tf.convert_to_tensor(v) if True in kinds else tf.identity(v) for v in variables]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends a part of the first dimension to every rank, and concatenates what the ranks sent.

    The gradient's rows go back to the ranks that the rows came from.

    Collective: every rank of the process set must call it with the same name, dtype and shape but
    for the first dimension, which may differ.

    Args:
        tensor: Shape (rows, ...), at least 1-dimensional.
        splits: Shape (members,), int32: how many rows go to each member, in order. `None` sends the
            same number to each.
        name: As of `allreduce()`.
        ignore_name_scope: Whether the scopes around the node are no part of its name.
        process_set: The ranks that take part.

    Returns:
        A tensor of what was received, in the order of ranks; with `splits`, also how many rows came
        from each member: int32, shape (members,).

    Raises:
        tf.errors.OpError: As of `allreduce()`.
    """
    given = tf.constant([], tf.int32) if splits is None else tf.convert_to_tensor(splits)
    output, received = _calls.alltoall(
        tensor, given, name, ignore_name_scope=ignore_name_scope, process_set=process_set
    )
    return output if splits is None else (output, received)
