"""allreduce and reducescatter of TensorFlow's tensors, with gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from lightcc._ops.reductions import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
    check_op,
    choose_op,
)
from lightcc.compression import check_compression, engine_spec, refuse_engine_compressor
from lightcc.process_sets import ProcessSet, global_process_set
from lightcc.tensorflow import _calls
from lightcc.tensorflow._naming import naming
from lightcc.tensorflow._sparse import allreduce_slices
from lightcc.tensorflow.compression import Compression

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "allreduce",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
]


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Combines `tensor` elementwise over all ranks and returns the result, with its gradient.

    The gradient is the same allreduce of the result's gradient. Of tf.IndexedSlices, values and
    indices are gathered, which adds them up when they are applied.

    Collective: every rank of the process set must call it with the same name, dtype, shape, `op`
    and factors.

    Args:
        tensor: A tensor, variable or tf.IndexedSlices of any shape.
        average: Deprecated: `True` is `op=Average`, `False` is `op=Sum`.
        device_dense: Device of the operations for dense tensors.
        device_sparse: Device of the operations for tf.IndexedSlices.
        compression: What is sent: `Compression.none`, `.fp16`, `.bf16`; or `.topk(...)`,
            `.int8`, `.int4`, which need a `name`.
        op: `Average` (the default), `Sum`, `Min`, `Max`, `Product`, or `Adasum` (floating point).
        prescale_factor: Multiplies the input. Integers are rounded towards zero.
        postscale_factor: Multiplies the result, likewise.
        name: Matches this call across ranks. Without one, graphs use the name of the node, and
            eager calls are numbered, so that ranks must make them in one order.
        process_set: The ranks that take part.
        ignore_name_scope: Whether the scopes around the node are no part of its name.

    Returns:
        A tensor of the same dtype and shape; tf.IndexedSlices of tf.IndexedSlices.

    Raises:
        ValueError: An argument is not allowed.
        NotImplementedError: tf.IndexedSlices with another `op`, or with factors.
        tf.errors.InvalidArgumentError: This rank's call is wrong.
        tf.errors.FailedPreconditionError: Ranks disagree; on all ranks.
        tf.errors.AbortedError: A rank failed or left; on all ranks.
    """
    number = choose_op(average, op)
    check_compression(compression)
    if isinstance(tensor, tf.IndexedSlices):
        _refuse_factors(prescale_factor, postscale_factor)
        with tf.device(device_sparse):
            return allreduce_slices(
                tensor,
                number,
                naming(
                    "HorovodAllgather", None, tensor.values, ignore_name_scope=ignore_name_scope
                ),
                process_set,
            )
    with tf.device(device_dense):
        sent, context = compression.compress(tf.convert_to_tensor(tensor))
        combined = _calls.allreduce(
            sent,
            name,
            number,
            prescale_factor,
            postscale_factor,
            ignore_name_scope=ignore_name_scope,
            process_set=process_set,
            spec=engine_spec(compression),
        )
        return compression.decompress(combined, context)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> Any:
    """Combines several tensors, all or none, and returns the results, with their gradients.

    Collective: every rank of the process set must call it with as many tensors of the same dtypes
    and shapes, in the same order.

    Args:
        tensors: Tensors, variables or tf.IndexedSlices, of any dtypes.
        average: As of `allreduce()`, like all others.
        device_dense: Device of the operations for dense tensors.
        device_sparse: Device of the operations for tf.IndexedSlices.
        compression: What is sent.
        op: How tensors are combined.
        prescale_factor: Multiplies the inputs.
        postscale_factor: Multiplies the results.
        process_set: The ranks that take part.
        ignore_name_scope: Whether the scopes around the node are no part of its name.
        name: Matches this call across ranks.

    Returns:
        A list of results in the order of `tensors`.

    Raises:
        ValueError: An argument is not allowed; other errors as of `allreduce()`.
    """
    number = choose_op(average, op)
    check_compression(compression)
    results: list[Any] = list(tensors)
    dense = [i for i, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    for i, tensor in enumerate(tensors):
        if i not in dense:
            results[i] = allreduce(
                tensor,
                device_sparse=device_sparse,
                op=number,
                prescale_factor=prescale_factor,
                postscale_factor=postscale_factor,
                process_set=process_set,
                ignore_name_scope=ignore_name_scope,
            )
    if not dense:
        return results
    with tf.device(device_dense):
        pairs = [compression.compress(tf.convert_to_tensor(tensors[i])) for i in dense]
        combined = _calls.grouped_allreduce(
            [sent for sent, _ in pairs],
            name,
            number,
            prescale_factor,
            postscale_factor,
            ignore_name_scope=ignore_name_scope,
            process_set=process_set,
            spec=engine_spec(compression),
        )
        for i, result, (_, context) in zip(dense, combined, pairs, strict=True):
            results[i] = compression.decompress(result, context)
    return results


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Combines `tensor` over all ranks and returns this rank's rows of the result.

    Where the rows cannot be divided evenly, the first ranks get one more. The gradients of all
    ranks' rows are gathered.

    Collective: every rank of the process set must call it with the same name, dtype, shape, `op`
    and factors.

    Args:
        tensor: Shape (rows, ...).
        device_dense: Device of the operations.
        compression: What is sent: `Compression.none`, `.fp16` or `.bf16`.
        op: `Average` or `Sum`.
        name: As of `allreduce()`.
        process_set: The ranks that take part.
        ignore_name_scope: Whether the scopes around the node are no part of its name.
        prescale_factor: Multiplies the input.
        postscale_factor: Multiplies the result.

    Returns:
        A tensor of shape (this rank's rows, ...).

    Raises:
        ValueError: An argument is not allowed; other errors as of `allreduce()`.
    """
    check_compression(compression)
    refuse_engine_compressor(compression, "reducescatter")
    with tf.device(device_dense):
        sent, context = compression.compress(tf.convert_to_tensor(tensor))
        combined = _calls.reducescatter(
            sent,
            name,
            check_op(op),
            prescale_factor,
            postscale_factor,
            ignore_name_scope=ignore_name_scope,
            process_set=process_set,
        )
        return compression.decompress(combined, context)


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Combines several tensors, all or none, and returns this rank's rows of the results.

    Collective: every rank of the process set must call it with as many tensors of the same dtypes
    and shapes, in the same order.

    Args:
        tensors: Each of shape (rows, ...).
        device_dense: Device of the operations.
        compression: What is sent: `Compression.none`, `.fp16` or `.bf16`.
        op: `Average` or `Sum`.
        process_set: The ranks that take part.
        prescale_factor: Multiplies the inputs.
        postscale_factor: Multiplies the results.

    Returns:
        A list of results in the order of `tensors`.

    Raises:
        ValueError: An argument is not allowed; other errors as of `allreduce()`.
    """
    check_compression(compression)
    refuse_engine_compressor(compression, "grouped_reducescatter")
    if not tensors:
        return tensors
    with tf.device(device_dense):
        pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
        combined = _calls.grouped_reducescatter(
            [sent for sent, _ in pairs],
            None,
            check_op(op),
            prescale_factor,
            postscale_factor,
            process_set=process_set,
        )
        return [
            compression.decompress(result, context)
            for result, (_, context) in zip(combined, pairs, strict=True)
        ]


def _refuse_factors(prescale_factor: float, postscale_factor: float) -> None:
    if prescale_factor != 1.0 or postscale_factor != 1.0:
        msg = "Pre/postscale_factor are not supported with tf.IndexedSlices"
        raise NotImplementedError(msg)
