"""Operations that move tensors between ranks: allgather, broadcast, alltoall, send and recv.

What a tensor may be, how names match across ranks, and what is raised when, is told in `lightcc`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from lightcc import _world
from lightcc._binding import _core
from lightcc._world import GROUP, IN_PLACE, NEW, ONE, WAITS
from lightcc.compression import Compression, compress_each, compress_one, engine_spec
from lightcc.process_sets import ProcessSet, global_process_set, set_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightcc._typing import Handle, Splits, Tensor
    from lightcc.compression import Compressor

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


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[Tensor]:
    """Starts `allgather()` and returns its handle; `synchronize()` returns the new tensor."""
    return _world.current().allgather(tensor, ONE, name, set_id(process_set))


def allgather(
    tensor: Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    compression: type[Compressor] | Compressor = Compression.none,
) -> Tensor:
    """Concatenates the tensors of all ranks along the first dimension, in the order of ranks.

    Collective: every rank of the process set must call it with the same `name`, dtype and shape but
    for the first dimension, which may differ.

    Args:
        tensor: Shape (rows, ...), at least 1-dimensional; rows may be 0. Read, not copied.
        name: Matches this call across ranks; see `lightcc`.
        process_set: The ranks that take part.
        compression: As in `allreduce()`, but for top-k. Between hosts, int8 and int4 send rounded
            elements, and every rank gets the same ones, also of its own. Nothing is kept back, and
            rows of any size are rounded. A rank whose rows have a NaN or an infinity gives NaN.

    Returns:
        A new tensor of shape (sum of rows, ...), the same on every rank.

    Raises:
        ValueError: This rank's call is wrong; see `lightcc`.
        HorovodInternalError: On all ranks; see `lightcc`.
    """
    sent, context = compress_one(compression, tensor)
    handle = _world.current().allgather(
        sent, ONE, name, set_id(process_set), WAITS, compression=engine_spec(compression)
    )
    result: Tensor = compression.decompress(_core.wait(handle), context)
    return result


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[list[Tensor]]:
    """Starts `grouped_allgather()` and returns one handle; `synchronize()` returns the list."""
    return _world.current().allgather(tensors, GROUP, name, set_id(process_set))


def grouped_allgather(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    compression: type[Compressor] | Compressor = Compression.none,
) -> list[Tensor]:
    """Does `allgather()` on several tensors, all or nothing.

    Args:
        tensors: At least one tensor.
        name: Of the group; its members are called `<name>_<i>of<n>`.
        process_set: The ranks that take part.
        compression: As in `allgather()`.

    Returns:
        New tensors, in the order of `tensors`.

    Raises:
        ValueError: This rank's call is wrong; see `lightcc`.
        HorovodInternalError: On all ranks; see `lightcc`.
    """
    sent, restore = compress_each(compression, tensors)
    handle = _world.current().allgather(
        sent, GROUP, name, set_id(process_set), WAITS, compression=engine_spec(compression)
    )
    return restore(_core.wait(handle))


def broadcast_async(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Tensor]:
    """Starts `broadcast()` and returns its handle; `synchronize()` returns the new tensor."""
    return _world.current().broadcast(tensor, NEW, root_rank, name, set_id(process_set))


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Returns the root's tensor on every rank.

    Collective: every rank of the process set must call it with the same `name`, dtype, shape and
    root.

    Args:
        tensor: Any shape. Read on the root; elsewhere only its dtype and shape count.
        root_rank: World rank of the root, a member of the process set.
        name: Matches this call across ranks; see `lightcc`.
        process_set: The ranks that take part.

    Returns:
        A new tensor with the root's contents.

    Raises:
        ValueError: This rank's call is wrong; see `lightcc`.
        HorovodInternalError: On all ranks; see `lightcc`.
    """
    handle = _world.current().broadcast(tensor, NEW, root_rank, name, set_id(process_set), WAITS)
    result: Tensor = _core.wait(handle)
    return result


def broadcast_async_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Tensor]:
    """Starts `broadcast_()` and returns its handle; `synchronize()` returns `tensor`."""
    return _world.current().broadcast(tensor, IN_PLACE, root_rank, name, set_id(process_set))


def broadcast_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Does `broadcast()` in place: `tensor` gets the root's contents.

    Args:
        tensor: Any shape, writable. Read on the root, overwritten elsewhere.
        root_rank: As in `broadcast()`.
        name: As in `broadcast()`.
        process_set: As in `broadcast()`.

    Returns:
        `tensor`.

    Raises:
        ValueError: This rank's call is wrong; see `lightcc`.
        HorovodInternalError: On all ranks; see `lightcc`.
    """
    handle = _world.current().broadcast(
        tensor, IN_PLACE, root_rank, name, set_id(process_set), WAITS
    )
    result: Tensor = _core.wait(handle)
    return result


def alltoall_async(
    tensor: Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[tuple[Tensor, Tensor]]:
    """Starts `alltoall()` and returns its handle.

    `synchronize()` always returns both the new tensor and the received splits.
    """
    return _world.current().alltoall(tensor, splits, name, set_id(process_set))


@overload
def alltoall(
    tensor: Tensor,
    splits: None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor: ...
@overload
def alltoall(
    tensor: Tensor,
    splits: Splits,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[Tensor, Tensor]: ...
def alltoall(
    tensor: Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor | tuple[Tensor, Tensor]:
    """Sends a part of the first dimension to every rank and concatenates what the ranks sent.

    Collective: every rank of the process set must call it with the same `name`, dtype and shape but
    for the first dimension, which may differ.

    Args:
        tensor: Shape (rows, ...), at least 1-dimensional. Read, not copied.
        splits: Shape (members,): how many rows go to each member, in order; their sum is at most
            rows. `None` sends the same number to each.
        name: Matches this call across ranks; see `lightcc`.
        process_set: The ranks that take part.

    Returns:
        A new tensor of what was received, in the order of ranks; with `splits`, also how many rows
        came from each member: int32, shape (members,).

    Raises:
        ValueError: This rank's call is wrong; see `lightcc`.
        HorovodInternalError: On all ranks; see `lightcc`.
    """
    handle = _world.current().alltoall(tensor, splits, name, set_id(process_set), WAITS)
    output, received_splits = _core.wait(handle)
    return output if splits is None else (output, received_splits)


def send_async(
    tensor: Tensor,
    destination: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[None]:
    """Starts `send()` and returns its handle; `synchronize()` returns `None`."""
    return _world.current().send(tensor, destination, name, set_id(process_set))


def send(
    tensor: Tensor,
    destination: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Sends `tensor` to one rank, which must call `recv()`; returns when it was received.

    Args:
        tensor: Any shape. Read, not copied.
        destination: World rank, another member of the process set.
        name: Matches the other rank's `recv()`. Unnamed ones match in order, for each pair of ranks
            and direction.
        process_set: A set with both ranks.

    Raises:
        ValueError: This rank's call is wrong; see `lightcc`.
        HorovodInternalError: On both ranks; see `lightcc`.
    """
    _core.wait(_world.current().send(tensor, destination, name, set_id(process_set), WAITS))


def recv_async(
    tensor: Tensor,
    source: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Tensor]:
    """Starts `recv()` and returns its handle; `synchronize()` returns `tensor`."""
    return _world.current().recv(tensor, source, name, set_id(process_set))


def recv(
    tensor: Tensor,
    source: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Receives into `tensor` what one rank sends with `send()`.

    Args:
        tensor: The dtype and shape of what is sent; writable, overwritten.
        source: World rank, another member of the process set.
        name: Matches the other rank's `send()`, as described there.
        process_set: A set with both ranks.

    Returns:
        `tensor`.

    Raises:
        ValueError: This rank's call is wrong; see `lightcc`.
        HorovodInternalError: On both ranks; see `lightcc`.
    """
    handle = _world.current().recv(tensor, source, name, set_id(process_set), WAITS)
    result: Tensor = _core.wait(handle)
    return result
