"""Operations that move arrays between ranks: allgather, broadcast, alltoall, send and recv.

What an array may be, how names match across ranks, and what is raised when, is told in `lightcc`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from lightcc import _world
from lightcc.process_sets import ProcessSet, global_process_set
from lightcc.waiting import synchronize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightcc._typing import Array, ArrayOrScalar, Handle


def allgather_async(
    tensor: ArrayOrScalar, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[Array]:
    """Starts `allgather()` and returns its handle; `synchronize()` returns the new array."""
    return _world.current().allgather(tensor, False, name, process_set.process_set_id)


def allgather(
    tensor: ArrayOrScalar, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Concatenates the arrays of all ranks along the first dimension, in the order of ranks.

    Collective: every rank of the process set must call it with the same `name`, dtype and shape but
    for the first dimension, which may differ.

    Args:
        tensor: Shape (rows, ...), at least 1-dimensional; rows may be 0. Read, not copied.
        name: Matches this call across ranks; see `lightcc`.
        process_set: The ranks that take part.

    Returns:
        A new array of shape (sum of rows, ...), the same on every rank.

    Raises:
        ValueError: This rank's call is wrong; see `lightcc`.
        HorovodInternalError: On all ranks; see `lightcc`.
    """
    return synchronize(allgather_async(tensor, name, process_set))


def grouped_allgather_async(
    tensors: Sequence[ArrayOrScalar],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Array]]:
    """Starts `grouped_allgather()` and returns one handle; `synchronize()` returns the list."""
    return _world.current().allgather(tensors, True, name, process_set.process_set_id)


def grouped_allgather(
    tensors: Sequence[ArrayOrScalar],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Does `allgather()` on several arrays, all or nothing.

    Args:
        tensors: At least one array.
        name: Of the group; its members are called `<name>_<i>of<n>`.
        process_set: The ranks that take part.

    Returns:
        New arrays, in the order of `tensors`.

    Raises:
        ValueError: This rank's call is wrong; see `lightcc`.
        HorovodInternalError: On all ranks; see `lightcc`.
    """
    return synchronize(grouped_allgather_async(tensors, name, process_set))


def broadcast_async(
    tensor: ArrayOrScalar,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Array]:
    """Starts `broadcast()` and returns its handle; `synchronize()` returns the new array."""
    return _world.current().broadcast(tensor, False, root_rank, name, process_set.process_set_id)


def broadcast(
    tensor: ArrayOrScalar,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Returns the root's array on every rank.

    Collective: every rank of the process set must call it with the same `name`, dtype, shape and
        root.

    Args:
        tensor: Any shape. Read on the root; elsewhere only its dtype and shape count.
        root_rank: World rank of the root, a member of the process set.
        name: Matches this call across ranks; see `lightcc`.
        process_set: The ranks that take part.

    Returns:
        A new array with the root's contents.

    Raises:
        ValueError: This rank's call is wrong; see `lightcc`.
        HorovodInternalError: On all ranks; see `lightcc`.
    """
    return synchronize(broadcast_async(tensor, root_rank, name, process_set))


def broadcast_async_(
    tensor: Array,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Array]:
    """Starts `broadcast_()` and returns its handle; `synchronize()` returns `tensor`."""
    return _world.current().broadcast(tensor, True, root_rank, name, process_set.process_set_id)


def broadcast_(
    tensor: Array,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
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
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def alltoall_async(
    tensor: ArrayOrScalar,
    splits: Array | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[tuple[Array, Array]]:
    """Starts `alltoall()` and returns its handle.

    `synchronize()` always returns both the new array and the received splits.
    """
    return _world.current().alltoall(tensor, splits, name, process_set.process_set_id)


@overload
def alltoall(
    tensor: ArrayOrScalar,
    splits: None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array: ...
@overload
def alltoall(
    tensor: ArrayOrScalar,
    splits: Array | Sequence[int],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[Array, Array]: ...
def alltoall(
    tensor: ArrayOrScalar,
    splits: Array | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array | tuple[Array, Array]:
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
        A new array of what was received, in the order of ranks; with `splits`, also how many rows
        came from each member: int32, shape (members,).

    Raises:
        ValueError: This rank's call is wrong; see `lightcc`.
        HorovodInternalError: On all ranks; see `lightcc`.
    """
    output, received_splits = synchronize(alltoall_async(tensor, splits, name, process_set))
    return output if splits is None else (output, received_splits)


def send_async(
    tensor: ArrayOrScalar,
    destination: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[None]:
    """Starts `send()` and returns its handle; `synchronize()` returns `None`."""
    return _world.current().send(tensor, destination, name, process_set.process_set_id)


def send(
    tensor: ArrayOrScalar,
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
    synchronize(send_async(tensor, destination, name, process_set))


def recv_async(
    tensor: Array,
    source: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Array]:
    """Starts `recv()` and returns its handle; `synchronize()` returns `tensor`."""
    return _world.current().recv(tensor, source, name, process_set.process_set_id)


def recv(
    tensor: Array,
    source: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
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
    return synchronize(recv_async(tensor, source, name, process_set))
