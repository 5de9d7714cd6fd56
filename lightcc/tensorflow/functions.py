"""State that all ranks must start from: variables and Python objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from lightcc._ops import functions
from lightcc.process_sets import ProcessSet, global_process_set
from lightcc.tensorflow.exchanges import broadcast_
from lightcc.tensorflow.util import _executing_eagerly

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]

# So many bytes of variables are received before they are assigned.
_BATCH_BYTES = 256 << 20


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Gives variables of every rank the root's values.

    Collective: every rank of the process set must call it with variables of the same dtypes and
    shapes, in the same order.

    Args:
        variables: Such as `model.variables` and those of the optimizer.
        root_rank: World rank of the root.
        process_set: The ranks that take part.
        inplace: Makes no difference: at most 256 MiB are held twice.

    Returns:
        `None`; in a graph of tf.compat.v1, the operation that assigns.

    Raises:
        tf.errors.OpError: As of `allreduce()`.

    Example:
        >>> import tensorflow as tf
        >>> import lightcc.tensorflow as hvd
        >>> hvd.init()
        >>> hvd.broadcast_variables([tf.Variable([1.0, 2.0])], root_rank=0)
    """
    del inplace
    values = [
        value
        for i, batch in enumerate(_batches(variables))
        for value in broadcast_(batch, root_rank, f"broadcast_variables_{i}", process_set)
    ]
    if _executing_eagerly() or tf.inside_function():  # A function runs its assignments anyway.
        return None
    return tf.group(*values)


def _batches(variables: Sequence[Any]) -> list[list[Any]]:
    batches: list[list[Any]] = []
    room = 0
    for variable in variables:
        elements = tf.TensorShape(variable.shape).num_elements() or 0
        num_bytes = elements * tf.as_dtype(variable.dtype).size
        if num_bytes > room or not batches:
            batches.append([])
            room = _BATCH_BYTES
        batches[-1].append(variable)
        room -= num_bytes
    return batches


def broadcast_global_variables(root_rank: int) -> Any:
    """Returns the operation that gives all global variables of a graph the root's values.

    Args:
        root_rank: World rank of the root.

    Raises:
        RuntimeError: Operations run eagerly, where there are no global variables.
    """
    if _executing_eagerly():
        msg = (
            "hvd.broadcast_global_variables() does not support eager execution. Please use "
            "`hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
        raise RuntimeError(msg)
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """A hook for MonitoredSession that gives all ranks the root's variables at the start.

    Args:
        root_rank: World rank of the root.
        device: Device of the operations.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        """Takes the arguments of the class."""
        super().__init__()
        self.root_rank = root_rank
        self.bcast_op: Any = None
        self.device = device

    def begin(self) -> None:
        """Adds the operation to the graph."""
        graph = tf.compat.v1.get_default_graph()
        if self.bcast_op is None or self.bcast_op.graph is not graph:
            with tf.device(self.device):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs it."""
        del coord
        session.run(self.bcast_op)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root's object on every rank; see `lightcc.broadcast_object()`.

    Args:
        obj: Anything that can be pickled. Ignored on other ranks than the root.
        root_rank: World rank of the root.
        session: Not used: objects travel outside of graphs.
        name: Matches this call across ranks.
        process_set: The ranks that take part.
    """
    del session
    return functions.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Returns a function that is `broadcast_object()` with these arguments.

    Args:
        root_rank: World rank of the root.
        session: Not used.
        name: Matches the calls across ranks.
        process_set: The ranks that take part.
    """
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Returns the objects of all ranks on every rank; see `lightcc.allgather_object()`.

    Args:
        obj: Anything that can be pickled.
        session: Not used: objects travel outside of graphs.
        name: Matches this call across ranks.
        process_set: The ranks that take part.
    """
    del session
    return functions.allgather_object(obj, name, process_set)
