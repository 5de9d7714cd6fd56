"""DistributedGradientTape: a tape whose gradients are those of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from lightcc._adapter import groups_or_number
from lightcc._keras import local_variables
from lightcc._ops.reductions import Average
from lightcc.process_sets import ProcessSet, global_process_set
from lightcc.tensorflow._gradient_exchange import GradientExchange
from lightcc.tensorflow.compression import Compression
from lightcc.tensorflow.util import key_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightcc._adapter import TunedSteps

#: What `Compression.auto` knows of earlier steps, as a loop makes a tape in each.
_TUNED: dict[Any, TunedSteps] = {}


class _DistributedGradientTape(tf.GradientTape):  # type: ignore[misc]
    """What DistributedGradientTape adds to a tape."""

    _exchange: GradientExchange
    _local_sources: set[Any]
    _scale_local_gradients: bool

    def compression_choices(self) -> dict[str, str]:
        """Returns how `Compression.auto` has gradients travel now, by their sources' names.

        Tapes of the same sources share their choices. What travels as it is because it is small, or
        because all ranks share a host, is not there.
        """
        return self._exchange.choices()

    def register_local_source(self, source: Any) -> None:
        """Keeps the gradient of a variable this rank's own."""
        self._local_sources.add(key_of(source))

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        *,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Returns the gradients of all ranks, combined.

        Collective: every rank of the process set must call it with the same sources.

        Args:
            target: As of tf.GradientTape.gradient().
            sources: Tensors or variables, nested in any way.
            output_gradients: As of tf.GradientTape.gradient().
            use_generic_names: Whether gradients are matched by their position, not by the names of
                their variables.
            unconnected_gradients: As of tf.GradientTape.gradient().

        Returns:
            Gradients, nested as `sources` are.

        Raises:
            tf.errors.OpError: As of `allreduce()`.
        """
        gradients = super().gradient(target, sources, output_gradients, unconnected_gradients)
        flat = _flatten(gradients)
        variables = _flatten(sources)
        local = [key_of(variable) in self._local_sources for variable in variables]
        shared = [i for i, is_local in enumerate(local) if not is_local]
        combined = self._exchange.reduce(
            [flat[i] for i in shared], [variables[i] for i in shared], generic=use_generic_names
        )
        for i, gradient in zip(shared, combined, strict=True):
            flat[i] = gradient
        if self._scale_local_gradients:
            flat = [
                self._exchange.scale(g) if is_local else g
                for g, is_local in zip(flat, local, strict=True)
            ]
        return tf.nest.pack_sequence_as(sources, flat)

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Returns `(source, gradient)` for each source of this rank alone, and for the others.

        Collective: as `gradient()`, whose arguments it takes.
        """
        gradients = _flatten(self.gradient(target, sources, output_gradients, use_generic_names))
        local: list[tuple[Any, Any]] = []
        shared: list[tuple[Any, Any]] = []
        for source, gradient in zip(_flatten(sources), gradients, strict=True):
            (local if key_of(source) in self._local_sources else shared).append((source, gradient))
        return local, shared


def _flatten(nested: Any) -> list[Any]:
    flat: list[Any] = tf.nest.flatten(nested)
    return flat


def DistributedGradientTape(  # noqa: N802  Horovod's name
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
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
    """Returns a tape like `gradtape`, whose `gradient()` gives the gradients of all ranks.

    Args:
        gradtape: A tf.GradientTape, which records or has recorded.
        device_dense: Device of operations on dense gradients.
        device_sparse: Device of operations on tf.IndexedSlices.
        compression: What is sent for a gradient: `Compression.none`, `.fp16`, `.bf16`,
            `.topk(...)`, `.int8`, `.int4`, `.auto(...)`, which finds
            out, or a class with `compress()` and `decompress()`. A tape does not know what is done
            with gradients, so `.auto()` tries no top-k.
        sparse_as_dense: Whether tf.IndexedSlices are made dense first.
        op: `Average`, `Sum`, `Min`, `Max`, `Product` or `Adasum`.
        gradient_predivide_factor: With `Average`: how much of the division by the number of ranks
            comes before the sum.
        num_groups: Deprecated; use `groups`.
        groups: How many groups of gradients to make, or lists of variables; the gradients of a
            group are combined all at once.
        process_set: The ranks that take part; others keep their own gradients.
        scale_local_gradients: Whether gradients of local sources are divided by the number of
            ranks.
        allreduce_type: "fusion" (the default), or "normal": each gradient by itself.
        fusion_type: Which gradients travel in one bucket: "none", "auto_fusion", "horovod",
            "piecewise_fusion" or "scopewise_fusion".
        auto_fusion_threshold: Bytes in one bucket of auto_fusion.
        piecewise_fusion_schedule: Positions where buckets begin, as "2;6".
        scopewise_fusion_schedule: Prefixes of variables' names, as "encoder;decoder".

    Raises:
        ValueError: An argument is not allowed.

    Example:
        >>> import tensorflow as tf
        >>> import lightcc.tensorflow as hvd
        >>> hvd.init()
        >>> x = tf.Variable(3.0)
        >>> with tf.GradientTape() as tape:
        ...     y = x * x
        >>> tape = hvd.DistributedGradientTape(tape)
        >>> float(tape.gradient(y, x))
        6.0
    """
    groups = groups_or_number(groups, num_groups)
    kind = type(gradtape)
    made: Any = object.__new__(type(kind.__name__, (_DistributedGradientTape, kind), {}))
    made.__dict__.update(gradtape.__dict__)
    made._local_sources = set()  # noqa: SLF001  of this module
    made._scale_local_gradients = scale_local_gradients  # noqa: SLF001
    made._exchange = GradientExchange(  # noqa: SLF001
        "DistributedGradientTape",
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
        tuned=_TUNED,
    )
    return made


def PartialDistributedGradientTape(  # noqa: N802  Horovod's name
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    **fusion: Any,
) -> Any:
    """Returns a DistributedGradientTape that leaves the gradients of some layers this rank's own.

    Args:
        gradtape: As of DistributedGradientTape, like all but `local_layers`.
        device_dense: Device of operations on dense gradients.
        device_sparse: Device of operations on tf.IndexedSlices.
        compression: What is sent for a gradient.
        sparse_as_dense: Whether tf.IndexedSlices are made dense first.
        op: How gradients are combined.
        gradient_predivide_factor: How much of the division comes before the sum.
        num_groups: Deprecated; use `groups`.
        groups: How many groups of gradients to make, or lists of variables.
        process_set: The ranks that take part.
        local_layers: A layer or several, whose trainable weights stay this rank's own.
        scale_local_gradients: Whether their gradients are divided by the number of ranks.
        fusion: `allreduce_type`, `fusion_type` and its thresholds and schedules.

    Raises:
        ValueError: An argument is not allowed.
    """
    arguments = {**locals(), **fusion}
    del arguments["fusion"], arguments["local_layers"]
    tape = DistributedGradientTape(**arguments)
    for variable in local_variables(local_layers):
        tape.register_local_source(variable)
    return tape
