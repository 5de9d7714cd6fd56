"""Waiting: for an asynchronous operation, for all ranks, for the end of all ranks' data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from lightcc import _world
from lightcc._binding import _core
from lightcc.process_sets import ProcessSet, global_process_set, set_id

if TYPE_CHECKING:
    from lightcc._typing import Handle, Result

__all__ = ["barrier", "join", "poll", "synchronize"]


def poll(handle: int) -> bool:
    """Returns whether an operation is finished: `synchronize(handle)` returns at once.

    Of what NCCL does with tensors of torch or arrays of CuPy it does so earlier.

    Args:
        handle: What an asynchronous function returned.

    Raises:
        ValueError: There is no such handle, or it was synchronized already.
    """
    return _core.poll(handle)


@overload
def synchronize(handle: Handle[Result]) -> Result: ...
@overload
def synchronize(handle: int) -> Any: ...
def synchronize(handle: int) -> Any:
    """Waits for an asynchronous operation, forgets its handle and returns its result.

    It does not wait for what NCCL does with tensors of torch or arrays of CuPy: the current stream
    of this thread waits for that. Use the result on this stream, or on one that waits for it. An
    error that comes later is raised by what is called next.

    Other threads run meanwhile, and signals (Ctrl-C) are handled; an interrupted wait can be
    repeated.

    Args:
        handle: What an asynchronous function returned.

    Returns:
        What the synchronous form returns (`alltoall_async`: always tensor and received splits).

    Raises:
        ValueError: There is no such handle, or it was synchronized already.
        HorovodInternalError: See `lightcc`.
    """
    _core.poll(handle)  # Refuses a handle that is not known.
    return _core.wait(handle)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until all ranks of the process set have called it.

    Before that, it waits until this rank's GPU has finished all that was synchronized.

    Other operations may be in flight meanwhile.

    Args:
        process_set: The ranks that take part.

    Raises:
        ValueError: This rank's call is wrong; see `lightcc`.
        HorovodInternalError: On all ranks; see `lightcc`.
    """
    world = _world.current()
    world.finish()
    _core.wait(world.barrier(set_id(process_set)))


def join(device: int = -1) -> int:  # noqa: ARG001  Horovod's signature
    """Says that this rank has no more data, and waits until all ranks have said so.

    Meanwhile the other ranks' `allreduce` goes on with zeros from this one; averages still divide
    by the number of all ranks. Other operations on the global process set fail with an error that
    says so. When it returns, all ranks number their unnamed operations from zero again.

    Collective: all ranks must call it sooner or later.

    Args:
        device: Ignored: this rank contributes zeros, for which it needs no memory of a device.

    Returns:
        The rank that joined last, the same on all ranks.

    Raises:
        ValueError: lightcc is not initialized.
        HorovodInternalError: On all ranks; see `lightcc`.
    """
    last: int = _core.wait(_world.current().join())
    _world.begin_counting()
    return last
