"""allgather, broadcast and alltoall of torch tensors, with gradients.

The asynchronous and the in-place forms are `lightcc`'s own and record no gradient. The others
record one where a tensor requires it; its backward pass is a collective again, which all ranks of
the process set must run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import torch

from lightcc._ops import exchanges
from lightcc._ops.exchanges import (
    allgather_async,
    alltoall_async,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather_async,
    recv,
    recv_async,
    send,
    send_async,
)
from lightcc.compression import compress_each, compress_one
from lightcc.process_sets import ProcessSet, global_process_set
from lightcc.torch._compiled import operators
from lightcc.torch._profile import profiled
from lightcc.torch.autograd import (
    HorovodAllgather,
    HorovodAlltoall,
    HorovodBroadcast,
    HorovodGroupedAllgather,
    records,
)
from lightcc.torch.compression import Compression, by_engine, refuse_gradients

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightcc.torch.compression import Compressor

__all__ = [
    "allgather",
    "allgather_async",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "recv",
    "recv_async",
    "send",
    "send_async",
]


@profiled
def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    compression: type[Compressor] | Compressor = Compression.none,
) -> torch.Tensor:
    """Concatenates the tensors of all ranks along the first dimension, with their gradient.

    The gradient is averaged over the ranks, and each rank gets the part that belongs to its rows.

    Collective: every rank of the process set must call it with the same `name`, dtype and shape but
    for the first dimension, which may differ.

    Args:
        tensor: Shape (rows, ...), at least 1-dimensional, contiguous; rows may be 0. Read, not
            copied.
        name: Matches this call across ranks; see `lightcc`.
        process_set: The ranks that take part.
        compression: As in `lightcc.allgather()`.

    Returns:
        A new tensor of shape (sum of rows, ...), the same on every rank.

    Raises:
        ValueError: This rank's call is wrong; see `lightcc`.
        HorovodInternalError: On all ranks; see `lightcc`.
    """
    sent, context = compress_one(compression, tensor)
    if compiled := operators(process_set, compression):
        gathered = compiled.allgather(sent, name, process_set.process_set_id)
    elif records(sent):
        refuse_gradients(compression)
        gathered = HorovodAllgather.apply(sent, name, process_set)
    else:
        gathered = exchanges.allgather(sent, name, process_set, by_engine(compression))
    rows: torch.Tensor = compression.decompress(gathered, context)
    return rows


@profiled
def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    compression: type[Compressor] | Compressor = Compression.none,
) -> list[torch.Tensor]:
    """Does `allgather()` on several tensors, all or nothing, with their gradients.

    Args:
        tensors: At least one tensor.
        name: Of the group; its members are called `<name>_<i>of<n>`.
        process_set: The ranks that take part.
        compression: As in `lightcc.allgather()`.

    Returns:
        New tensors, in the order of `tensors`.

    Raises:
        ValueError: This rank's call is wrong; see `lightcc`.
        HorovodInternalError: On all ranks; see `lightcc`.
    """
    sent, restore = compress_each(compression, tensors)
    if compiled := operators(process_set, compression):
        outputs = compiled.grouped_allgather(sent, name, process_set.process_set_id)
    elif records(*sent):
        refuse_gradients(compression)
        outputs = HorovodGroupedAllgather.apply(name, process_set, *sent)
    else:
        outputs = exchanges.grouped_allgather(sent, name, process_set, by_engine(compression))
    return restore(outputs)


@profiled
def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns the root's tensor on every rank, with its gradient.

    The gradient is averaged over the ranks and given to the root; the others get zeros.

    Collective: every rank of the process set must call it with the same `name`, dtype, shape and
    root.

    Args:
        tensor: Any shape, contiguous. Read on the root; elsewhere only its dtype and shape count.
        root_rank: World rank of the root, a member of the process set.
        name: Matches this call across ranks; see `lightcc`.
        process_set: The ranks that take part.

    Returns:
        A new tensor with the root's contents.

    Raises:
        ValueError: This rank's call is wrong; see `lightcc`.
        HorovodInternalError: On all ranks; see `lightcc`.
    """
    if compiled := operators(process_set):
        members = process_set.process_set_id
        copy: torch.Tensor = compiled.broadcast(tensor, root_rank, name, members)
        return copy
    if records(tensor):
        output: torch.Tensor = HorovodBroadcast.apply(tensor, root_rank, name, process_set)
        return output
    return exchanges.broadcast(tensor, root_rank, name, process_set)


@overload
def alltoall(
    tensor: torch.Tensor,
    splits: None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor: ...
@overload
def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, torch.Tensor]: ...
@profiled
def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Sends a part of the first dimension to every rank, and concatenates what the ranks sent.

    The gradient's rows go back to the ranks that the rows came from.

    Collective: every rank of the process set must call it with the same `name`, dtype and shape but
    for the first dimension, which may differ.

    Args:
        tensor: Shape (rows, ...), at least 1-dimensional, contiguous. Read, not copied.
        splits: Shape (members,), int32 or a sequence of integers: how many rows go to each member,
            in order; their sum is at most rows. `None` sends the same number to each.
        name: Matches this call across ranks; see `lightcc`.
        process_set: The ranks that take part.

    Returns:
        A new tensor of what was received, in the order of ranks; with `splits`, also how many rows
        came from each member: int32, shape (members,), where `splits` are if these are a tensor.

    Raises:
        ValueError: This rank's call is wrong; see `lightcc`.
        HorovodInternalError: On all ranks; see `lightcc`.
    """
    if compiled := operators(process_set):
        is_list = splits is not None and not isinstance(splits, torch.Tensor)
        rows = torch.tensor(splits, dtype=torch.int32) if is_list else splits
        members = (process_set.process_set_id, process_set.size())
        output, counts = compiled.alltoall(tensor, rows, name, *members)
        return output if splits is None else (output, counts)
    if records(tensor):
        received: Any = HorovodAlltoall.apply(tensor, splits, name, process_set)
    else:
        received = exchanges.alltoall(tensor, splits, name, process_set)
    if isinstance(splits, torch.Tensor) and splits.is_cuda:
        received = (received[0], received[1].to(splits.device))
    return received  # type: ignore[no-any-return]
