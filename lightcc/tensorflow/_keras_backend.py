"""TensorFlow below Keras: what lightcc's Keras core needs of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

import lightcc.tensorflow as hvd
from lightcc._keras.values import Values
from lightcc._ops.reductions import Min
from lightcc.tensorflow import _calls
from lightcc.tensorflow._gradient_exchange import GradientExchange
from lightcc.tensorflow.functions import broadcast_global_variables, broadcast_variables
from lightcc.tensorflow.gradient_aggregation import LocalAggregation
from lightcc.tensorflow.util import _executing_eagerly, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightcc._keras import Aggregation, Exchange, Settings
    from lightcc.process_sets import ProcessSet


class TensorFlowBackend(Values):
    """The operations of `lightcc.tensorflow`, for Keras 2 and 3 on TensorFlow."""

    def __init__(self) -> None:
        """Takes nothing."""
        super().__init__(hvd, tf.convert_to_tensor, _evaluate)

    def exchange(self, name: str, settings: Settings) -> Exchange:
        """Returns what combines gradients, as DistributedGradientTape does."""
        groups = settings.groups
        if groups is not None and not isinstance(groups, int):
            groups = [[_of_tensorflow(v) for v in group] for group in groups]
        return _Exchange(
            GradientExchange(
                name,
                device_dense=settings.device_dense,
                device_sparse=settings.device_sparse,
                compression=settings.compression,
                sparse_as_dense=settings.sparse_as_dense,
                op=settings.op,
                gradient_predivide_factor=settings.gradient_predivide_factor,
                groups=groups,
                process_set=settings.process_set,
                fusion=settings.fusion,
                squares=settings.squares,
            )
        )

    def aggregation(
        self, passes: int, reduce: Callable[[list[Any]], list[Any]], *, average: bool, name: str
    ) -> Aggregation:
        """Returns what adds gradients up in variables."""
        return LocalAggregation(passes, reduce, average=average, name=name)

    def key(self, variable: Any) -> Any:
        """Returns what tells this variable from others: Keras 3 wraps those of TensorFlow."""
        return key_of(_of_tensorflow(variable))

    def differentiate(self, loss: Any, variables: list[Any], grad_loss: Any, tape: Any) -> Any:
        """Returns this rank's gradients of a loss.

        Raises:
            ValueError: The loss is a tensor, and there is no tape.
        """
        if callable(loss):
            tape = tf.GradientTape() if tape is None else tape
            with tape:
                loss = loss()
        if tape is None:
            msg = "`tape` is required when the loss is a tensor"
            raise ValueError(msg)
        return tape.gradient(loss, variables, grad_loss)

    def all_true(self, flag: Any, process_set: ProcessSet) -> Any:
        """Returns whether the flag is true on all ranks."""
        if not process_set.included():
            return flag
        number = tf.cast(flag, tf.int32)
        lowest = _calls.allreduce(number, "all_ranks_finite", Min, process_set=process_set)
        return tf.equal(lowest, 1)

    def outside_compilation(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function itself.

        Raises:
            NotImplementedError: XLA compiles what is being traced.
        """
        if _compiled_by_xla():
            msg = (
                "XLA cannot compile the step of a distributed optimizer, as it does not know"
                " lightcc's collectives: compile the model with jit_compile=False, and leave"
                " jit_compile=True out of the tf.function that applies gradients"
            )
            raise NotImplementedError(msg)
        return function

    def compiles_collectives(self) -> bool:
        """Returns false: XLA does not know lightcc's operations."""
        return False

    def broadcast_variables(self, variables: Sequence[Any], root_rank: int) -> None:
        """Gives variables of every rank the root's values."""
        broadcast_variables([_of_tensorflow(v) for v in variables], root_rank)

    def broadcast_global_variables(self, root_rank: int) -> Any:
        """Gives the variables of a graph of tf.compat.v1 the root's values."""
        return _evaluate(broadcast_global_variables(root_rank))


class _Exchange:
    """A GradientExchange that takes variables of Keras 3 for those of TensorFlow."""

    def __init__(self, exchange: GradientExchange) -> None:
        self._exchange = exchange

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return self._exchange.reduce(gradients, [_Named(v) for v in variables])

    def scale(self, gradient: Any) -> Any:
        return self._exchange.scale(gradient)

    def choices(self) -> dict[str, str]:
        return self._exchange.choices()


class _Named:
    """A variable by the name that Keras gives it, and as TensorFlow tells it from others."""

    def __init__(self, variable: Any) -> None:
        self.path = getattr(variable, "path", None) or variable.name
        self.ref = _of_tensorflow(variable).ref


def _of_tensorflow(variable: Any) -> Any:
    """Returns the variable of TensorFlow: Keras 3 has its own around it."""
    inner = getattr(variable, "value", None)
    return inner if isinstance(inner, tf.Variable) else variable


def _evaluate(result: Any) -> Any:
    if _executing_eagerly() or tf.inside_function():
        return result
    return tf.compat.v1.keras.backend.get_session().run(result)


def _compiled_by_xla() -> bool:
    """Returns whether what is being traced belongs to a tf.function with jit_compile=True."""
    if _executing_eagerly():
        return False
    try:
        from tensorflow.python.ops import control_flow_util
    except ImportError:  # XLA's own error says then what it does not know.
        return False
    graph = tf.compat.v1.get_default_graph()
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


BACKEND = TensorFlowBackend()
