"""The operations as Python functions, one for each; what users call is made of them.

Factors are texts, because TensorFlow's float attributes have 32 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from lightcc import _world
from lightcc._ops.reductions import Sum
from lightcc.process_sets import ProcessSet, global_process_set, process_set_ids
from lightcc.tensorflow._library import ops
from lightcc.tensorflow._naming import naming, refuse_compilation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightcc._core import CompressionSpec
    from lightcc.fusion import Rule


def set_id(process_set: ProcessSet) -> int:
    """Returns the engine's number of a process set.

    Raises:
        ValueError: It is not registered.
    """
    number = process_set.process_set_id
    # Ranks may make a graph before there is a world; the set of all is there in each.
    is_missing = bool(number) and _world.exists() and number not in process_set_ids()
    if number is None or is_missing:
        msg = "Process set provided does not exist, or has not been registered."
        raise ValueError(msg)
    return number


def reduction(op: int, prescale_factor: float, postscale_factor: float) -> dict[str, Any]:
    """Returns the arguments that say how contributions are combined."""
    return {
        "reduce_op": int(op),
        "prescale_factor": repr(float(prescale_factor)),
        "postscale_factor": repr(float(postscale_factor)),
    }


def compression_arguments(spec: CompressionSpec | None) -> dict[str, Any]:
    """Returns the arguments that ask for compression."""
    if spec is None:
        return {}
    if spec.bits:
        return {"quantize_bits": spec.bits}
    return {
        "topk_ratio": repr(spec.ratio),
        "topk_momentum": repr(spec.momentum),
        "topk_warmup_steps": spec.warmup_steps,
        "topk_fp16": spec.fp16,
        "topk_exact": spec.exact,
    }


def way_of(spec: CompressionSpec | None) -> list[float]:
    """Returns a row of what a tuned allreduce is told: bits, and the share of top-k."""
    if spec is None:
        return [0.0, 0.0]
    return [float(spec.bits), 0.0] if spec.bits else [0.0, spec.ratio]


def fusion_arguments(rule: Rule | int, limit_bytes: int) -> dict[str, Any]:
    """Returns the arguments that say what may travel together."""
    return {"fusion_rule": int(rule), "fusion_limit": limit_bytes}


def allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    spec: CompressionSpec | None = None,
) -> Any:
    """Combines one tensor."""
    tensor = tf.convert_to_tensor(tensor)
    return ops.lightcc_allreduce(
        tensor,
        process_set_id=set_id(process_set),
        **naming("HorovodAllreduce", name, tensor, ignore_name_scope=ignore_name_scope),
        **reduction(op, prescale_factor, postscale_factor),
        **compression_arguments(spec),
    )


def grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    spec: CompressionSpec | None = None,
) -> list[Any]:
    """Combines tensors of any dtypes, all or none."""
    sent = [tf.convert_to_tensor(tensor) for tensor in tensors]
    combined: list[Any] = ops.lightcc_grouped_allreduce(
        sent,
        process_set_id=set_id(process_set),
        **naming("HorovodGroupedAllreduce", name, sent[0], ignore_name_scope=ignore_name_scope),
        **reduction(op, prescale_factor, postscale_factor),
        **compression_arguments(spec),
    )
    return combined


def allgather(
    tensor: Any,
    name: str | None = None,
    *,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Concatenates the tensors of all ranks."""
    tensor = tf.convert_to_tensor(tensor)
    return ops.lightcc_allgather(
        tensor,
        process_set_id=set_id(process_set),
        **naming("HorovodAllgather", name, tensor, ignore_name_scope=ignore_name_scope),
    )


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    *,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Concatenates several tensors of all ranks, all or none."""
    sent = [tf.convert_to_tensor(tensor) for tensor in tensors]
    gathered: list[Any] = ops.lightcc_grouped_allgather(
        sent,
        process_set_id=set_id(process_set),
        **naming("HorovodGroupedAllgather", name, sent[0], ignore_name_scope=ignore_name_scope),
    )
    return gathered


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    *,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root's tensor."""
    tensor = tf.convert_to_tensor(tensor)
    return ops.lightcc_broadcast(
        tensor,
        root_rank=root_rank,
        process_set_id=set_id(process_set),
        **naming("HorovodBroadcast", name, tensor, ignore_name_scope=ignore_name_scope),
    )


def broadcast_each(
    tensors: Sequence[Any],
    root_rank: int,
    names: Sequence[str],
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Returns the root's tensors, each of which travels under its name."""
    refuse_compilation()
    received: list[Any] = ops.lightcc_grouped_broadcast(
        [tf.convert_to_tensor(tensor) for tensor in tensors],
        root_rank=root_rank,
        process_set_id=set_id(process_set),
        names=list(names),
        together=False,
    )
    return received


def reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Combines one tensor and returns this rank's rows of the result."""
    tensor = tf.convert_to_tensor(tensor)
    return ops.lightcc_reducescatter(
        tensor,
        process_set_id=set_id(process_set),
        **naming("HorovodReducescatter", name, tensor, ignore_name_scope=ignore_name_scope),
        **reduction(op, prescale_factor, postscale_factor),
    )


def grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Combines tensors, all or none, and returns this rank's rows of the results."""
    sent = [tf.convert_to_tensor(tensor) for tensor in tensors]
    combined: list[Any] = ops.lightcc_grouped_reducescatter(
        sent,
        process_set_id=set_id(process_set),
        **naming("HorovodGroupedReducescatter", name, sent[0], ignore_name_scope=ignore_name_scope),
        **reduction(op, prescale_factor, postscale_factor),
    )
    return combined


def alltoall(
    tensor: Any,
    splits: Any,
    name: str | None = None,
    *,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tuple[Any, Any]:
    """Sends rows to every rank; returns what came, and how many rows came from each rank."""
    tensor = tf.convert_to_tensor(tensor)
    output, received = ops.lightcc_alltoall(
        tensor,
        splits,
        process_set_id=set_id(process_set),
        **naming("HorovodAlltoall", name, tensor, ignore_name_scope=ignore_name_scope),
    )
    return output, received
