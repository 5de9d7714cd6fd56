"""DistributedOptimizer for optimizers that compute their own gradients (tf.compat.v1.train).

Keras' optimizers are wrapped by `lightcc.tensorflow.keras`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from lightcc._adapter import groups_or_number
from lightcc._ops.reductions import Average
from lightcc.process_sets import ProcessSet, global_process_set
from lightcc.tensorflow._gradient_exchange import GradientExchange
from lightcc.tensorflow.compression import Compression
from lightcc.tensorflow.gradient_aggregation import LocalAggregation
from lightcc.tensorflow.util import key_of

if TYPE_CHECKING:
    from collections.abc import Sequence


#: What an optimizer of tf.compat.v1.train has that divides by squares of gradients.
_SECOND_MOMENT = (
    "_beta2",
    "_rho",
    "_decay",
    "_initial_accumulator_value",
    "_initial_gradient_squared_accumulator_value",
)


class _DistributedOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """An optimizer of tf.compat.v1.train whose gradients are those of all ranks."""

    def __init__(
        self,
        optimizer: Any,
        name: str,
        use_locking: bool,
        exchange: GradientExchange,
        *,
        backward_passes_per_step: int,
        average_aggregated_gradients: bool,
        scale_local_gradients: bool,
    ) -> None:
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        self._exchange = exchange
        self._scale_local_gradients = scale_local_gradients
        self._local: set[Any] = set()
        self._variables: list[Any] = []
        self._aggregation: LocalAggregation | None = None
        if backward_passes_per_step != 1:
            if tf.executing_eagerly():
                msg = (
                    "backward_passes_per_step > 1 is not yet supported for optimizers of"
                    " tf.compat.v1.train with eager execution."
                )
                raise ValueError(msg)
            self._aggregation = LocalAggregation(
                backward_passes_per_step,
                lambda sums: self._combine(sums, self._variables),
                average=average_aggregated_gradients,
                name=name,
            )

    def register_local_var(self, var: Any) -> None:
        """Keeps the gradient of a variable this rank's own."""
        self._local.add(key_of(var))

    def compression_choices(self) -> dict[str, str]:
        """Returns how `Compression.auto` has gradients travel now, by their variables' names.

        What travels as it is because it is small, or because all ranks share a host, is not there.
        """
        return self._exchange.choices()

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Returns the gradients of all ranks, combined, each with its variable.

        Collective: every rank of the process set must run what it adds to the graph.
        """
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        gradients = [gradient for gradient, _ in pairs]
        variables = [variable for _, variable in pairs]
        if self._aggregation is None:
            combined = self._combine(gradients, variables)
        else:
            self._variables = [v for g, v in pairs if g is not None]
            combined = self._aggregation.add(gradients)
        return list(zip(combined, variables, strict=True))

    def _combine(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        results = list(gradients)
        is_local = [key_of(variable) in self._local for variable in variables]
        shared = [i for i, local in enumerate(is_local) if not local]
        combined = self._exchange.reduce(
            [gradients[i] for i in shared], [variables[i] for i in shared]
        )
        for i, gradient in zip(shared, combined, strict=True):
            results[i] = gradient
        if self._scale_local_gradients:
            results = [
                self._exchange.scale(g) if local else g
                for g, local in zip(results, is_local, strict=True)
            ]
        return results

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Steps as the given optimizer does, in the last backward pass of a step."""
        pairs = list(grads_and_vars)
        if self._aggregation is None:
            return self._optimizer.apply_gradients(pairs, global_step, name)
        return self._aggregation.step(
            lambda: self._optimizer.apply_gradients(pairs, global_step, name),
            [gradient for gradient, _ in pairs],
        )

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the given optimizer returns."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the given optimizer returns."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the given optimizer returns."""
        return self._optimizer.variables(*args, **kwargs)


def DistributedOptimizer(  # noqa: N802  Horovod's name
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    *,
    allreduce_type: str | None = None,
    fusion_type: str | None = None,
    auto_fusion_threshold: int | None = None,
    piecewise_fusion_schedule: str | None = None,
    scopewise_fusion_schedule: str | None = None,
) -> Any:
    """Returns an optimizer like `optimizer`, whose steps use the gradients of all ranks.

    Args:
        optimizer: Of tf.compat.v1.train; one of Keras is given to
            `lightcc.tensorflow.keras.DistributedOptimizer`.
        name: Begins the names of gradients; "Distributed" and the optimizer's class if `None`.
        use_locking: As of tf.compat.v1.train.Optimizer.
        device_dense: Device of operations on dense gradients.
        device_sparse: Device of operations on tf.IndexedSlices.
        compression: What is sent for a gradient: `Compression.none`, `.fp16`, `.bf16`,
            `.topk(...)`, `.int8`, `.int4`, `.auto(...)`, which finds
            out, or a class with `compress()` and `decompress()`.
        sparse_as_dense: Whether tf.IndexedSlices are made dense first.
        backward_passes_per_step: Gradients of that many backward passes are added up on each rank
            before they are combined; in graphs only.
        op: `Average`, `Sum`, `Min`, `Max`, `Product` or `Adasum`.
        gradient_predivide_factor: With `Average`: how much of the division by the number of ranks
            comes before the sum.
        average_aggregated_gradients: Whether the sums of several passes are divided by their
            number.
        num_groups: Deprecated; use `groups`.
        groups: How many groups of gradients to make, or lists of variables.
        process_set: The ranks that take part; others step on their own.
        scale_local_gradients: Whether gradients of local variables are divided by the number of
            ranks.
        allreduce_type: "fusion" (the default), or "normal": each gradient by itself.
        fusion_type: As of `DistributedGradientTape`, like the last three.
        auto_fusion_threshold: Bytes in one bucket of auto_fusion.
        piecewise_fusion_schedule: Positions where buckets begin, as "2;6".
        scopewise_fusion_schedule: Prefixes of variables' names, as "encoder;decoder".

    Raises:
        ValueError: An argument is not allowed.
    """
    groups = groups_or_number(groups, num_groups)
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        arguments = {**locals(), "num_groups": 0}
        del arguments["use_locking"]
        # Not at the top: programs without Keras need not load it.
        keras = importlib.import_module("lightcc.tensorflow.keras")
        return keras.DistributedOptimizer(**arguments)
    name = name or f"Distributed{type(optimizer).__name__}"
    exchange = GradientExchange(
        name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        groups=groups,
        process_set=process_set,
        fusion={
            "allreduce_type": allreduce_type,
            "fusion_type": fusion_type,
            "auto_fusion_threshold": auto_fusion_threshold,
            "piecewise_fusion_schedule": piecewise_fusion_schedule,
            "scopewise_fusion_schedule": scopewise_fusion_schedule,
        },
        squares=any(hasattr(optimizer, attribute) for attribute in _SECOND_MOMENT),
    )
    return _DistributedOptimizer(
        optimizer,
        name,
        use_locking,
        exchange,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        scale_local_gradients=scale_local_gradients,
    )
