"""Gradients of several backward passes, added up on each rank before they are combined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class LocalAggregation:
    """Adds up gradients in variables of the graph, or of the program where it runs eagerly.

    Every `passes` calls of `add()`, the sums are combined; after the others, `is_last()` is false
    and the step is left out.

    Attributes:
        passes: How many backward passes come before a step.
    """

    def __init__(
        self, passes: int, reduce: Callable[[list[Any]], list[Any]], *, average: bool, name: str
    ) -> None:
        """Takes what is done with the sums.

        Args:
            passes: How many backward passes come before a step; at least 1.
            reduce: Combines the sums of all ranks.
            average: Whether sums are divided by `passes`.
            name: Begins the names of the variables.

        Raises:
            ValueError: `passes` is not positive.
        """
        if passes <= 0:
            msg = "backward_passes_per_step must be > 0"
            raise ValueError(msg)
        self.passes = passes
        self._reduce = reduce
        self._average = average
        self._name = name
        self._sums: list[Any] = []
        self._count: Any = None

    def add(self, gradients: Sequence[Any]) -> list[Any]:
        """Adds gradients up; returns the combined sums in the last pass, this rank's own before.

        Sparse gradients are made dense. `None` stays.

        Args:
            gradients: Tensors, tf.IndexedSlices or `None`, the same ones in each call.
        """
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        dense = [tf.convert_to_tensor(gradients[i]) for i in present]
        self._make_variables(dense)
        added = [s.assign_add(g) for s, g in zip(self._sums, dense, strict=True)]
        with tf.control_dependencies(_operations(added)):
            counted = self._count.assign_add(1)
        with tf.control_dependencies(_operations([counted])):
            sums = [tf.convert_to_tensor(s) for s in self._sums]
            combined = tf.cond(self.is_last(), lambda: self._finish(sums), lambda: sums)
        results: list[Any] = list(gradients)
        for i, result in zip(present, combined, strict=True):
            results[i] = result
        return results

    def is_last(self) -> Any:
        """Returns whether the last pass of a step has been added, as a bool scalar."""
        return tf.equal(tf.convert_to_tensor(self._count), self.passes)

    @property
    def counter(self) -> Any:
        """The variable that counts the passes since the last step; `None` before the first."""
        return self._count

    def step(
        self,
        apply: Callable[[], Any],
        gradients: Sequence[Any],
        otherwise: Callable[[], Any] | None = None,
    ) -> Any:
        """Calls `apply` in the last pass, and begins anew then.

        Args:
            apply: Makes the step; returns an operation where a graph is made.
            gradients: What `add()` returned, which must be known first.
            otherwise: What is done in the other passes; returns an operation where a graph is made.
        """

        def step() -> Any:
            applied = apply()
            with tf.control_dependencies(_operations([applied])):
                cleared = [s.assign(tf.zeros_like(s)) for s in self._sums]
                cleared.append(self._count.assign(0))
            return tf.group(*_operations(cleared)) if not tf.executing_eagerly() else tf.no_op()

        def skip() -> Any:
            done = [] if otherwise is None else [otherwise()]
            return tf.group(*_operations(done)) if not tf.executing_eagerly() else tf.no_op()

        with tf.control_dependencies(_operations(gradients)):
            return tf.cond(self.is_last(), step, skip)

    def variables(self) -> list[Any]:
        """Returns what the sums and the count are kept in."""
        return [*self._sums, *([] if self._count is None else [self._count])]

    def _finish(self, sums: list[Any]) -> list[Any]:
        if self._average:
            sums = [s / tf.cast(self.passes, s.dtype) for s in sums]
        return self._reduce(sums)

    def _make_variables(self, gradients: Sequence[Any]) -> None:
        if self._count is not None:
            return
        scope = f"{self._name}_aggregation"
        with tf.init_scope() if tf.compat.v1.executing_eagerly_outside_functions() else _nothing():
            self._count = _variable(lambda: tf.zeros([], tf.int32), tf.int32, f"{scope}_count")
            self._sums = [
                _variable(_zeros(g.shape, g.dtype), g.dtype, f"{scope}_{i}")
                for i, g in enumerate(gradients)
            ]


def _zeros(shape: Any, dtype: Any) -> Callable[[], Any]:
    return lambda: tf.zeros(shape, dtype)


def _variable(initial: Callable[[], Any], dtype: Any, name: str) -> Any:
    if tf.executing_eagerly():
        return tf.Variable(initial(), trainable=False, dtype=dtype, name=name)
    return tf.compat.v1.Variable(
        initial, trainable=False, dtype=dtype, name=name, use_resource=True
    )


def _nothing() -> Any:
    import contextlib

    return contextlib.nullcontext()


def _operations(values: Sequence[Any]) -> list[Any]:
    """Returns what can be depended on in a graph."""
    if tf.executing_eagerly():
        return []
    return [
        value.values if isinstance(value, tf.IndexedSlices) else value
        for value in values
        if value is not None
    ]
