"""Operations that combine the tensors of all ranks: allreduce and reducescatter.

What a tensor may be, how names match across ranks, and what is raised when, is told in `lightcc`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from lightcc import _world
from lightcc._binding import _core
from lightcc._warnings import warn_caller
from lightcc._world import GROUP, IN_PLACE, NEW, ONE, WAITS
from lightcc.compression import (
    Compression,
    NoneCompressor,
    compress_each,
    compress_one,
    engine_spec,
)
from lightcc.process_sets import ProcessSet, global_process_set, set_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightcc._typing import Handle, Tensor
    from lightcc.compression import Compressor

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


class ReduceOp(enum.IntEnum):
    """How contributions are combined; the numbers are Horovod's."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Adasum = ReduceOp.ADASUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT


def check_op(op: object) -> int:
    """Returns `op`; ValueError, with what is allowed, where it is no operator."""
    if isinstance(op, int):
        return op  # The engine knows which numbers there are.
    msg = f"op is {op!r}; allowed are Average, Sum, Adasum, Min, Max and Product."
    raise ValueError(msg)


def choose_op(average: bool | None, op: int | None) -> int:
    """Returns the operator that the two arguments ask for."""
    if average is None:
        return Average if op is None else check_op(op)
    if op is not None:
        msg = "The op parameter supersedes average. Please provide only one of them."
        raise ValueError(msg)
    warn_caller("Use op=Average or op=Sum instead of `average`.", DeprecationWarning)
    return Average if average else Sum


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Tensor]:
    """Starts `allreduce()` and returns its handle; `synchronize()` returns the new tensor."""
    return _world.current().allreduce(
        tensor,
        ONE,
        NEW,
        name,
        choose_op(average, op),
        prescale_factor,
        postscale_factor,
        set_id(process_set),
    )


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] | Compressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Combines `tensor` elementwise over all ranks and returns the result.

    Collective: every rank of the process set must call it with the same `name`, dtype, shape,
    `op` and factors; calls with different names may overlap and finish in any order.

    Args:
        tensor: Any shape. Read, not copied.
        average: Deprecated: `True` is `op=Average`, `False` is `op=Sum`.
        name: Matches this call across ranks; see `lightcc`.
        compression: What is sent for `tensor`: `Compression.none`, `Compression.fp16`, or
            `Compression.topk(...)`, `.int8` or `.int4`, for which the
            call needs a `name`.
        op: `Average` (the default), `Sum`, `Min`, `Max`, `Product`, or `Adasum` (floating point).
            bool has `Min`, `Max` and `Product`. `Average` divides the sum by the size of the set;
            integers are rounded towards zero, and the sum of int8 or uint8 is taken in int32.
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
        >>> import numpy as np, lightcc as hvd
        >>> hvd.init()
        >>> hvd.allreduce(np.array([1.0, 2.0]), op=hvd.Sum, prescale_factor=0.5) / hvd.size()
        array([0.5, 1. ])
    """
    if compression is NoneCompressor:
        return _allreduce_now(
            tensor, NEW, average, name, op, prescale_factor, postscale_factor, process_set
        )
    sent, context = compress_one(compression, tensor)
    how = (name, choose_op(average, op), prescale_factor, postscale_factor, set_id(process_set))
    spec = engine_spec(compression)
    handle = _world.current().allreduce(sent, ONE, NEW, *how, WAITS, spec)
    result: Tensor = compression.decompress(_core.wait(handle), context)
    return result


def _allreduce_now(
    tensor: Tensor,
    in_place: bool,
    average: bool | None,
    name: str | None,
    op: int | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Tensor:
    # What was done before takes few checks; all else is looked at as for an asynchronous call.
    world = _world.current()
    number = set_id(process_set)
    chosen = op if average is None and op is not None else choose_op(average, op)
    result: Tensor | None = world.repeat_allreduce(
        tensor, in_place, name, chosen, prescale, postscale, number
    )
    if result is None:
        how = (name, check_op(chosen), prescale, postscale, number)
        result = _core.wait(world.allreduce(tensor, ONE, in_place, *how, WAITS))
    return result


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Tensor]:
    """Starts `allreduce_()` and returns its handle; `synchronize()` returns `tensor`."""
    return _world.current().allreduce(
        tensor,
        ONE,
        IN_PLACE,
        name,
        choose_op(average, op),
        prescale_factor,
        postscale_factor,
        set_id(process_set),
    )


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Does `allreduce()` in place.

    Args:
        tensor: Any shape, writable. Read, then overwritten with the result; after an error its
            contents are not defined.
        average: As in `allreduce()`.
        name: As in `allreduce()`.
        op: As in `allreduce()`.
        prescale_factor: As in `allreduce()`.
        postscale_factor: As in `allreduce()`.
        process_set: As in `allreduce()`.

    Returns:
        `tensor`.

    Raises:
        ValueError: This rank's call is wrong; see `lightcc`.
        HorovodInternalError: On all ranks; see `lightcc`.
    """
    return _allreduce_now(
        tensor, IN_PLACE, average, name, op, prescale_factor, postscale_factor, process_set
    )


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Tensor]]:
    """Starts `grouped_allreduce()` and returns one handle; `synchronize()` returns the list."""
    return _world.current().allreduce(
        tensors,
        GROUP,
        NEW,
        name,
        choose_op(average, op),
        prescale_factor,
        postscale_factor,
        set_id(process_set),
    )


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] | Compressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Does `allreduce()` on several tensors, all or nothing.

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
    sent, restore = compress_each(compression, tensors)
    handle = _world.current().allreduce(
        sent,
        GROUP,
        NEW,
        name,
        choose_op(average, op),
        prescale_factor,
        postscale_factor,
        set_id(process_set),
        WAITS,
        engine_spec(compression),
    )
    return restore(_core.wait(handle))


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Tensor]]:
    """Starts `grouped_allreduce_()` and returns one handle; `synchronize()` returns the list."""
    return _world.current().allreduce(
        tensors,
        GROUP,
        IN_PLACE,
        name,
        choose_op(average, op),
        prescale_factor,
        postscale_factor,
        set_id(process_set),
    )


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Does `grouped_allreduce()` in place.

    Args:
        tensors: At least one tensor, writable, overwritten with the results; no two may overlap.
        average: As in `allreduce()`.
        name: As in `grouped_allreduce()`.
        op: As in `allreduce()`.
        prescale_factor: As in `allreduce()`.
        postscale_factor: As in `allreduce()`.
        process_set: As in `allreduce()`.

    Returns:
        The tensors of `tensors`.

    Raises:
        ValueError: This rank's call is wrong; see `lightcc`.
        HorovodInternalError: On all ranks; see `lightcc`.
    """
    handle = _world.current().allreduce(
        tensors,
        GROUP,
        IN_PLACE,
        name,
        choose_op(average, op),
        prescale_factor,
        postscale_factor,
        set_id(process_set),
        WAITS,
    )
    results: list[Tensor] = _core.wait(handle)
    return results


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[Tensor]:
    """Starts `reducescatter()` and returns its handle; `synchronize()` returns the new tensor."""
    return _world.current().reducescatter(
        tensor, ONE, name, check_op(op), prescale_factor, postscale_factor, set_id(process_set)
    )


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] | Compressor = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Combines `tensor` elementwise over all ranks and returns this rank's share of the rows.

    Collective: every rank of the process set must call it with the same `name`, dtype, shape,
    `op` and factors.

    Args:
        tensor: Shape (rows, ...), at least 1-dimensional. Read, not copied.
        name: Matches this call across ranks; see `lightcc`.
        compression: As in `allreduce()`, but for top-k. Between hosts, int8 and int4 send what each
            host has summed up, and what rounding takes away is added to the next call of that name.
            They take as many rows for each rank. Without a name int8 keeps nothing back, and int4
            is refused.
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
    handle = _world.current().reducescatter(
        sent,
        ONE,
        name,
        check_op(op),
        prescale_factor,
        postscale_factor,
        set_id(process_set),
        WAITS,
        compression=engine_spec(compression),
    )
    result: Tensor = compression.decompress(_core.wait(handle), context)
    return result


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[list[Tensor]]:
    """Starts `grouped_reducescatter()` and returns one handle; `synchronize()` returns the list."""
    return _world.current().reducescatter(
        tensors, GROUP, name, check_op(op), prescale_factor, postscale_factor, set_id(process_set)
    )


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[Compressor] | Compressor = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Does `reducescatter()` on several tensors, all or nothing.

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
    handle = _world.current().reducescatter(
        sent,
        GROUP,
        name,
        check_op(op),
        prescale_factor,
        postscale_factor,
        set_id(process_set),
        WAITS,
        compression=engine_spec(compression),
    )
    return restore(_core.wait(handle))
