"""The functions of a frontend for Keras, over the operations below it.

A frontend makes one `Frontend`, and its functions are this object's methods. Frontends differ by
the module of Keras and by the backend alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lightcc._adapter import groups_or_number
from lightcc._keras.backend import Settings
from lightcc._keras.layers import local_variables
from lightcc._keras.optimizer import distribute
from lightcc._keras.saving import load_model
from lightcc._ops.reductions import Average
from lightcc.compression import Compression
from lightcc.process_sets import ProcessSet, global_process_set

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Frontend:
    """Horovod's functions for one module of Keras."""

    def __init__(
        self, name: str, keras: Any, backend: Callable[[], Any], backend_for: Callable[[Any], Any]
    ) -> None:
        """Makes the functions of a module.

        Args:
            name: Of the module, which has this object as `_FRONTEND`.
            keras: The module that loads models.
            backend: Returns the operations; called when they are needed.
            backend_for: Returns those for an optimizer.
        """
        self._name = name
        self._keras = keras
        self._backend = backend
        self._backend_for = backend_for

    def __reduce__(self) -> tuple[Callable[[str], Frontend], tuple[str]]:
        """Says how to find it in another process, so that its functions can be pickled."""
        return _frontend_of, (self._name,)

    def DistributedOptimizer(  # noqa: N802  Horovod's name
        self,
        optimizer: Any,
        name: str | None = None,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        gradient_predivide_factor: float = 1.0,
        op: int = Average,
        backward_passes_per_step: int = 1,
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

        Gradients are combined before anything else is done to them: clipping, checks for overflow,
        moving averages. A model that is saved with it loads without lightcc as well.

        Collective: every rank of the process set must make the same steps.

        Args:
            optimizer: An optimizer of Keras. It stays as it is.
            name: Begins the names of gradients; "Distributed" and the optimizer's class if `None`.
            device_dense: Device of operations on dense gradients, in TensorFlow.
            device_sparse: Device of operations on tf.IndexedSlices.
            compression: What is sent for a gradient: `Compression.none`, `.fp16`, `.topk(...)`,
                `.int8`, `.int4`, `.auto(...)`, which finds out, or a class with `compress()` and
                `decompress()`.
            sparse_as_dense: Whether sparse gradients are made dense first.
            gradient_predivide_factor: With `Average`: how much of the division by the number of
                ranks comes before the sum.
            op: `Average`, `Sum`, `Min`, `Max`, `Product` or `Adasum`.
            backward_passes_per_step: Gradients of that many calls are added up on each rank before
                they are combined, and the weights change.
            average_aggregated_gradients: Whether such sums are divided by the number of calls.
            num_groups: Deprecated; use `groups`.
            groups: How many groups of gradients to make, or lists of variables; the gradients of a
                group are combined all at once.
            process_set: The ranks that take part; others step on their own.
            scale_local_gradients: Whether gradients of local variables are divided by the number of
                ranks.
            allreduce_type: "fusion" (the default), or "normal": each gradient by itself.
            fusion_type: Which gradients travel in one bucket: one of `lightcc.fusion.STRATEGIES`.
            auto_fusion_threshold: Bytes in one bucket of auto_fusion.
            piecewise_fusion_schedule: Positions where buckets begin, as "2;6".
            scopewise_fusion_schedule: Prefixes of variables' names, as "encoder;decoder".

        Raises:
            TypeError: `optimizer` is no optimizer of Keras, or `compression` is none.
            ValueError: Another argument is not allowed.
            NotImplementedError: The backend of Keras cannot do it.
        """
        groups = groups_or_number(groups, num_groups)
        settings = Settings(
            name=name,
            device_dense=device_dense,
            device_sparse=device_sparse,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor,
            op=op,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
            groups=groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
            fusion={
                "allreduce_type": allreduce_type,
                "fusion_type": fusion_type,
                "auto_fusion_threshold": auto_fusion_threshold,
                "piecewise_fusion_schedule": piecewise_fusion_schedule,
                "scopewise_fusion_schedule": scopewise_fusion_schedule,
            },
        )
        return distribute(optimizer, settings, self._backend_for(optimizer))

    def PartialDistributedOptimizer(  # noqa: N802  Horovod's name
        self,
        optimizer: Any,
        name: str | None = None,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        gradient_predivide_factor: float = 1.0,
        op: int = Average,
        backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False,
        groups: int | Sequence[Sequence[Any]] | None = None,
        process_set: ProcessSet = global_process_set,
        local_layers: Any = None,
        scale_local_gradients: bool = True,
        **fusion: Any,
    ) -> Any:
        """Returns a DistributedOptimizer that leaves the gradients of some layers this rank's own.

        Args:
            optimizer: As of DistributedOptimizer, like all but `local_layers`.
            name: Begins the names of gradients.
            device_dense: Device of operations on dense gradients.
            device_sparse: Device of operations on sparse ones.
            compression: What is sent for a gradient.
            sparse_as_dense: Whether sparse gradients are made dense first.
            gradient_predivide_factor: How much of the division comes before the sum.
            op: How gradients are combined.
            backward_passes_per_step: How many passes are added up before a step.
            average_aggregated_gradients: Whether such sums are divided by the number of passes.
            groups: How many groups of gradients to make, or lists of variables.
            process_set: The ranks that take part.
            local_layers: A layer or several, whose trainable weights stay this rank's own.
            scale_local_gradients: Whether gradients of local variables are divided by the number of
                ranks.
            fusion: `allreduce_type`, `fusion_type` and its thresholds and schedules.

        Raises:
            ValueError: An argument is not allowed.
        """
        arguments = {**locals(), **fusion}
        del arguments["self"], arguments["fusion"], arguments["local_layers"]
        distributed = self.DistributedOptimizer(**arguments)
        for variable in local_variables(local_layers):
            distributed.register_local_var(variable)
        return distributed

    def broadcast_global_variables(self, root_rank: int) -> Any:
        """Gives all global variables of a graph of tf.compat.v1 the root's values.

        Args:
            root_rank: World rank of the root.

        Raises:
            RuntimeError: There is no such graph; `callbacks.BroadcastGlobalVariablesCallback` does
                it for models.
        """
        return self._backend().broadcast_global_variables(root_rank)

    def allreduce(
        self,
        value: Any,
        name: str | None = None,
        average: bool | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        op: int | None = None,
        compression: Any = Compression.none,
    ) -> Any:
        """Combines a value elementwise over all ranks.

        Collective: every rank must call it with the same dtype and shape.

        Args:
            value: A number, an array of numpy, or a tensor.
            name: Matches this call across ranks; without one, calls are numbered.
            average: Deprecated: `True` is `op=Average`, `False` is `op=Sum`.
            prescale_factor: Multiplies the input.
            postscale_factor: Multiplies the result.
            op: How values are combined; `Average` if neither is given.
            compression: What is sent.

        Returns:
            A tensor of Keras' backend of the same shape; in a graph of tf.compat.v1, an array of
            numpy.

        Raises:
            ValueError: An argument is not allowed.
        """
        factors = (prescale_factor, postscale_factor)
        return self._backend().allreduce(value, name, average, factors, op, compression)

    def allgather(self, value: Any, name: str | None = None) -> Any:
        """Concatenates the values of all ranks along the first dimension.

        Collective: every rank must call it; only the first dimension may differ.

        Args:
            value: An array of numpy or a tensor, with at least one dimension.
            name: Matches this call across ranks.
        """
        return self._backend().allgather(value, name)

    def broadcast(self, value: Any, root_rank: int, name: str | None = None) -> Any:
        """Returns the root's value on every rank.

        Collective: every rank must call it with the same dtype and shape.

        Args:
            value: A number, an array of numpy, or a tensor.
            root_rank: World rank of the root.
            name: Matches this call across ranks.
        """
        return self._backend().broadcast(value, root_rank, name)

    def reducescatter(self, value: Any, name: str | None = None, op: int = Average) -> Any:
        """Combines the values of all ranks and returns this rank's rows of the result.

        Collective: every rank must call it with the same dtype and shape.

        Args:
            value: An array of numpy or a tensor, with at least one dimension.
            name: Matches this call across ranks.
            op: `Average` or `Sum`.
        """
        return self._backend().reducescatter(value, name, op)

    def load_model(
        self,
        filepath: Any,
        custom_optimizers: Sequence[type] | None = None,
        custom_objects: Mapping[str, Any] | None = None,
        compression: Any = Compression.none,
        legacy_opts: bool = False,
    ) -> Any:
        """Loads a saved model; its optimizer is a DistributedOptimizer with the saved state.

        The model may have been saved with a DistributedOptimizer or without one.

        Args:
            filepath: What `model.save()` wrote.
            custom_optimizers: Classes of optimizers that are not Keras' own.
            custom_objects: As of `keras.models.load_model()`.
            compression: As of DistributedOptimizer.
            legacy_opts: Makes no difference: Keras 2 knows its older optimizers itself.

        Raises:
            ValueError: As of `keras.models.load_model()`.
        """
        del legacy_opts
        settings = Settings(compression)
        return load_model(
            self._keras, filepath, custom_optimizers, custom_objects, settings, self._backend()
        )


def _frontend_of(name: str) -> Frontend:
    frontend: Frontend = importlib.import_module(name)._FRONTEND  # noqa: SLF001  by this package's frontends
    return frontend
