"""allreduce and reducescatter of torch tensors, with gradients.

The asynchronous and the in-place forms are `lightcc`'s own and record no gradient. The others
record one where a tensor requires it; its backward pass is a collective again, which all ranks of
the process set must run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lightcc._ops import reductions
from lightcc._ops.reductions import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    choose_op,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter_async,
    reducescatter_async,
)
from lightcc.compression import compress_each, compress_one
from lightcc.process_sets import ProcessSet, global_process_set
from lightcc.torch._compiled import operators
from lightcc.torch._profile import profiled
from lightcc.torch.autograd import (
    HorovodAllreduce,
    HorovodGroupedAllreduce,
    HorovodGroupedReducescatter,
    HorovodReducescatter,
    records,
)
from lightcc.torch.compression import Compression, NoneCompressor, by_engine, refuse_gradients

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightcc.torch.compression import Compressor

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reducescatter",
    "reducescatter_async",
]


@profiled
def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] | Compressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Combines `tensor` elementwise over all ranks and returns the result, with its gradient.

    The gradient is the same allreduce of the result's gradient.

    Collective: every rank of the process set must call it with the same `name`, dtype, shape, `op`
    and factors; calls with different names may overlap and finish in any order.

    Args:
        tensor: Any shape, contiguous. Read, not copied.
        average: Deprecated: `True` is `op=Average`, `False` is `op=Sum`.
        name: Matches this call across ranks; see `lightcc`.
        compression: What is sent for `tensor`: `Compression.none`, `.fp16`, `.bf16`, or
            `.topk(...)`, `.int8` or `.int4`: then the call needs a
            `name`, and `tensor` may not require a gradient.
        op: `Average` (the default), `Sum`, `Min`, `Max`, `Product`, or `Adasum` (floating point).
            bool has `Min`, `Max` and `Product`. `Average` divides the sum by the size of the set;
            integers are rounded towards zero.
        prescale_factor: Multiplies the input. Integers are scaled in float64 and rounded towards
            zero.
        postscale_factor: Multiplies the result, likewise.
        process_set: The ranks that take part.

    Returns:
        A new tensor of the same dtype and shape, the same bits on every rank.

    Raises:
        ValueError: This rank's call is wrong; see `lightcc`.
        HorovodInternalError: On all ranks; see `lightcc`.

    Example:
        >>> import torch
        >>> import lightcc.torch as hvd
        >>> hvd.init()
        >>> weight = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> hvd.allreduce(weight).sum().backward()
        >>> weight.grad
        tensor([1., 1.])
    """
    is_plain = compression is NoneCompressor and not records(tensor)
    if is_plain and not torch.compiler.is_compiling():
        return reductions.allreduce(
            tensor, average, name, compression, op, prescale_factor, postscale_factor, process_set
        )
    op = choose_op(average, op)
    sent, context = compress_one(compression, tensor)
    if compiled := operators(process_set, compression):
        output = compiled.allreduce(
            sent, name, op, prescale_factor, postscale_factor, process_set.process_set_id
        )
    elif records(sent):
        refuse_gradients(compression)
        output = HorovodAllreduce.apply(
            sent, None, name, op, prescale_factor, postscale_factor, process_set
        )
    else:
        how = (op, prescale_factor, postscale_factor, process_set)
        output = reductions.allreduce(sent, None, name, by_engine(compression), *how)
    reduced: torch.Tensor = compression.decompress(output, context)
    return reduced


@profiled
def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] | Compressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Does `allreduce()` on several tensors, all or nothing, with their gradients.

    Nothing is sent before all tensors of the group are there on all ranks.

    Args:
        tensors: At least one tensor; shapes and dtypes may differ.
        average: As in `allreduce()`.
        name: Of the group; its members are called `<name>_<i>of<n>`.
        compression: As in `allreduce()`.
        op: As in `allreduce()`.
        prescale_factor: As in `allreduce()`.
        postscale_factor: As in `allreduce()`.
        process_set: As in `allreduce()`.

    Returns:
        New tensors, in the order of `tensors`.

    Raises:
        ValueError: This rank's call is wrong; see `lightcc`.
        HorovodInternalError: On all ranks; see `lightcc`.
    """
    op = choose_op(average, op)
    sent, restore = compress_each(compression, tensors)
    how = (op, prescale_factor, postscale_factor, process_set)
    if compiled := operators(process_set, compression):
        outputs = compiled.grouped_allreduce(
            sent, name, op, prescale_factor, postscale_factor, process_set.process_set_id
        )
    elif records(*sent):
        refuse_gradients(compression)
        outputs = HorovodGroupedAllreduce.apply(None, name, *how, *sent)
    else:
        outputs = reductions.grouped_allreduce(sent, None, name, by_engine(compression), *how)
    return restore(outputs)


@profiled
def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] | Compressor = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Combines `tensor` over all ranks and returns this rank's rows, with their gradient.

    The gradient is an allgather of the shares' gradients, scaled by the factors, and by the number
    of members after a `Sum`.

    Collective: every rank of the process set must call it with the same `name`, dtype, shape, `op`
    and factors.

    Args:
        tensor: Shape (rows, ...), at least 1-dimensional, contiguous. Read, not copied.
        name: Matches this call across ranks; see `lightcc`.
        compression: As in `lightcc.reducescatter()`.
        op: `Average` (the default) or `Sum`.
        process_set: The ranks that take part.
        prescale_factor: As in `allreduce()`.
        postscale_factor: As in `allreduce()`.

    Returns:
        A new tensor of shape (share, ...). Shares follow each other in the order of ranks; where
        rows is no multiple of the number of members, the first `rows % members` have one row more.

    Raises:
        ValueError: This rank's call is wrong; see `lightcc`.
        HorovodInternalError: On all ranks; see `lightcc`.
    """
    sent, context = compress_one(compression, tensor)
    how = (op, process_set, prescale_factor, postscale_factor)
    if compiled := operators(process_set, compression):
        members = (process_set.process_set_id, process_set.size(), process_set.rank())
        output = compiled.reducescatter(sent, name, op, prescale_factor, postscale_factor, *members)
    elif records(sent):
        refuse_gradients(compression)
        output = HorovodReducescatter.apply(sent, name, *how)
    else:
        output = reductions.reducescatter(sent, name, by_engine(compression), *how)
    share: torch.Tensor = compression.decompress(output, context)
    return share


@profiled
def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] | Compressor = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Does `reducescatter()` on several tensors, all or nothing, with their gradients.

    Args:
        tensors: At least one tensor.
        name: Of the group; its members are called `<name>_<i>of<n>`.
        compression: As in `allreduce()`.
        op: As in `reducescatter()`.
        process_set: The ranks that take part.
        prescale_factor: As in `allreduce()`.
        postscale_factor: As in `allreduce()`.

    Returns:
        New tensors, in the order of `tensors`.

    Raises:
        ValueError: This rank's call is wrong; see `lightcc`.
        HorovodInternalError: On all ranks; see `lightcc`.
    """
    sent, restore = compress_each(compression, tensors)
    how = (op, process_set, prescale_factor, postscale_factor)
    if compiled := operators(process_set, compression):
        members = (process_set.process_set_id, process_set.size(), process_set.rank())
        outputs = compiled.grouped_reducescatter(
            sent, name, op, prescale_factor, postscale_factor, *members
        )
    elif records(*sent):
        refuse_gradients(compression)
        outputs = HorovodGroupedReducescatter.apply(name, *how, *sent)
    else:
        outputs = reductions.grouped_reducescatter(sent, name, by_engine(compression), *how)
    return restore(outputs)
