"""The gradient of every operation: a collective again, which all ranks of the process set run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from lightcc._ops import basics
from lightcc._ops.reductions import Average, Sum
from lightcc.process_sets import ProcessSet, get_process_set_ids_and_ranks
from lightcc.tensorflow import _calls

if TYPE_CHECKING:
    from collections.abc import Callable


def _set_of(op: Any) -> ProcessSet:
    """Returns the process set that an operation of the forward pass ran in."""
    number = int(op.get_attr("process_set_id"))
    process_set = ProcessSet(get_process_set_ids_and_ranks()[number])
    process_set.process_set_id = number
    return process_set


def _ignores_scope(op: Any) -> bool:
    return bool(op.get_attr("naming") == b"node_base")


def _factors(op: Any) -> tuple[int, float, float]:
    return (
        int(op.get_attr("reduce_op")),
        float(op.get_attr("prescale_factor")),
        float(op.get_attr("postscale_factor")),
    )


def _of_allreduce(op: Any, grad: Any) -> Any:
    return _calls.allreduce(
        grad, None, *_factors(op), ignore_name_scope=_ignores_scope(op), process_set=_set_of(op)
    )


def _of_grouped_allreduce(op: Any, *grads: Any) -> list[Any]:
    return _calls.grouped_allreduce(
        list(grads),
        None,
        *_factors(op),
        ignore_name_scope=_ignores_scope(op),
        process_set=_set_of(op),
    )


def _of_tuned_allreduce(op: Any, *grads: Any) -> list[Any]:
    return [*_of_grouped_allreduce(op, *grads), None]


def _own_rows(op: Any, contribution: Any, grad: Any, process_set: ProcessSet) -> Any:
    """Returns the averaged gradient's part that belongs to this rank's rows of an allgather."""
    scope = _ignores_scope(op)
    averaged = _calls.allreduce(
        grad, None, Average, ignore_name_scope=scope, process_set=process_set
    )
    with tf.device("/cpu:0"):
        mine = tf.reshape(tf.shape(contribution)[0], [1])
        rows = _calls.allgather(mine, None, ignore_name_scope=scope, process_set=process_set)
        begin = tf.reduce_sum(rows[: process_set.rank()])
    rows_of_mine = averaged[begin : begin + mine[0]]
    rows_of_mine.set_shape(contribution.shape)
    return rows_of_mine


def _of_allgather(op: Any, grad: Any) -> Any:
    return _own_rows(op, op.inputs[0], grad, _set_of(op))


def _of_grouped_allgather(op: Any, *grads: Any) -> list[Any]:
    process_set = _set_of(op)
    return [  # Integers, such as indices, have none.
        None if grad is None else _own_rows(op, contribution, grad, process_set)
        for contribution, grad in zip(op.inputs, grads, strict=True)
    ]


def _of_broadcast(op: Any, grad: Any) -> Any:
    averaged = _calls.allreduce(
        grad, None, Average, ignore_name_scope=_ignores_scope(op), process_set=_set_of(op)
    )
    if basics.rank() == int(op.get_attr("root_rank")):
        return averaged
    with tf.control_dependencies([averaged]):  # Else this rank would leave the operation out.
        return tf.identity(tf.zeros_like(grad))


def _of_grouped_broadcast(op: Any, *grads: Any) -> list[Any]:
    return [_of_broadcast(op, grad) for grad in grads]


def _of_alltoall(op: Any, grad: Any, _: Any) -> list[Any]:
    returned, _splits = _calls.alltoall(
        grad, op.outputs[1], ignore_name_scope=_ignores_scope(op), process_set=_set_of(op)
    )
    return [returned, None]


def _scaled(op: Any, grad: Any, process_set: ProcessSet) -> Any:
    """Returns what a reducescatter's gradient is before it is gathered."""
    number, prescale, postscale = _factors(op)
    factor = prescale * postscale * ((process_set.size() or 1) if number == Sum else 1)
    return grad if factor == 1.0 else grad * tf.cast(factor, grad.dtype)


def _of_reducescatter(op: Any, grad: Any) -> Any:
    process_set = _set_of(op)
    return _calls.allgather(
        _scaled(op, grad, process_set),
        None,
        ignore_name_scope=_ignores_scope(op),
        process_set=process_set,
    )


def _of_grouped_reducescatter(op: Any, *grads: Any) -> list[Any]:
    return [_of_reducescatter(op, grad) for grad in grads]


#: By TensorFlow's name of the operation.
GRADIENTS: dict[str, Callable[..., Any]] = {
    "LightccAllreduce": _of_allreduce,
    "LightccGroupedAllreduce": _of_grouped_allreduce,
    "LightccTunedAllreduce": _of_tuned_allreduce,
    "LightccAllgather": _of_allgather,
    "LightccGroupedAllgather": _of_grouped_allgather,
    "LightccBroadcast": _of_broadcast,
    "LightccGroupedBroadcast": _of_grouped_broadcast,
    "LightccAlltoall": _of_alltoall,
    "LightccReducescatter": _of_reducescatter,
    "LightccGroupedReducescatter": _of_grouped_reducescatter,
}


def register() -> None:
    """Tells TensorFlow of the gradients; once in a process."""
    for name, gradient in GRADIENTS.items():
        tf.RegisterGradient(name)(gradient)
    for name in ("LightccStanding", "LightccJoin", "LightccBarrier"):
        tf.no_gradient(name)
