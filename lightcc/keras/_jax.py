"""JAX below Keras, on CPUs: what lightcc's Keras core needs of it.

Gradients are arrays of numpy for the engine. In a compiled step, JAX calls back for them, once for
each step and on all ranks in the same order.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.experimental
import numpy as np

import lightcc as hvd
from lightcc.keras._stream import StreamBackend, StreamExchange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightcc._keras import Aggregation, Exchange, Settings
    from lightcc.process_sets import ProcessSet


class JaxBackend(StreamBackend):
    """The operations of `lightcc` on arrays of numpy, for Keras 3 on JAX."""

    def __init__(self) -> None:
        """Takes nothing."""
        super().__init__(hvd, np.asarray, jax.numpy.asarray)

    def exchange(self, name: str, settings: Settings) -> Exchange:
        """Returns what combines gradients, within compiled functions as well."""
        return _Exchange(StreamExchange(name, settings, _writable, np.zeros_like))

    def aggregation(
        self, passes: int, reduce: Callable[[list[Any]], list[Any]], *, average: bool, name: str
    ) -> Aggregation:
        """Refuses.

        Raises:
            NotImplementedError: A function of JAX has no state of its own.
        """
        del passes, reduce, average, name
        msg = (
            "backward_passes_per_step > 1 is not there for Keras on JAX: use the argument"
            " gradient_accumulation_steps of Keras' optimizer"
        )
        raise NotImplementedError(msg)

    def all_true(self, flag: Any, process_set: ProcessSet) -> Any:
        """Returns whether the flag is true on all ranks."""

        def lowest(number: Any) -> Any:
            array = np.asarray(number).astype(np.int32)
            return hvd.allreduce(
                array, name="all_ranks_finite", op=hvd.Min, process_set=process_set
            )

        if not process_set.included():
            return flag
        number = jax.numpy.asarray(flag).astype(np.int32)
        return _call(lowest, number) == 1

    def outside_compilation(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function itself, which calls back where it is compiled."""
        return function

    def broadcast_variables(self, variables: Sequence[Any], root_rank: int) -> None:
        """Gives variables of every rank the root's values."""
        for i, variable in enumerate(variables):
            value = np.asarray(variable.value)
            name = f"broadcast_variables.{i}.{variable.path}"
            variable.assign(hvd.broadcast(value, root_rank, name=name))


class _Exchange:
    """A StreamExchange for arrays of JAX, which may be traced."""

    def __init__(self, exchange: StreamExchange) -> None:
        self._exchange = exchange

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        if not self._exchange.combines():
            return list(gradients)
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        known = [variables[i] for i in present]
        reduce = functools.partial(_reduce, self._exchange, known)
        combined = _call(reduce, [gradients[i] for i in present])
        results = list(gradients)
        for i, gradient in zip(present, combined, strict=True):
            results[i] = gradient
        return results

    def scale(self, gradient: Any) -> Any:
        return self._exchange.scale(gradient)

    def choices(self) -> dict[str, str]:
        return self._exchange.choices()


def _reduce(exchange: StreamExchange, variables: Sequence[Any], gradients: Any) -> list[Any]:
    return exchange.reduce(gradients, variables)


def _call(function: Callable[..., Any], argument: Any) -> Any:
    """Calls a function of numpy, now or when what is being compiled runs."""
    leaves = jax.tree_util.tree_leaves(argument)
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return jax.tree_util.tree_map(jax.numpy.asarray, function(argument))
    shapes = jax.tree_util.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), argument)
    return jax.experimental.io_callback(function, shapes, argument, ordered=True)


def _writable(gradient: Any) -> Any:
    return np.array(gradient, order="C")


BACKEND = JaxBackend()
