"""What all collectives of a process group share: how they are called, and how they end."""

from __future__ import annotations

import operator
import zlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from lightcc._binding import _core
from lightcc.exceptions import CollectiveTimeoutError
from lightcc.torch._profile import region
from lightcc.torch.distributed._futures import sequence
from lightcc.torch.distributed._work import Together, Work, is_pending, too_late

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightcc._core import CompressionSpec
    from lightcc.torch.distributed._worlds import Lease

SEQUENCE = "c10d"
# A rank's part of fewer elements travels exactly.
_COMPRESSED_FROM = 4096
# So many operations may be under way whose callbacks start others.
_CALLBACK_SEQUENCES = 4096


class Calls:
    """The part of a process group that starts operations and waits for them."""

    def __init__(self, lease: Lease, name: str, title: str, timeout: timedelta) -> None:
        """Takes the world that the group runs on, its name, and what errors call the group."""
        self._lease: Lease | None = lease
        self._world = lease.world
        self._rank = lease.world.rank
        self._size = lease.world.size
        self._title = title
        self._timeout_s = timeout.total_seconds()
        self._coalesced: list[Work] | None = None
        self._operations = 0
        self._collectives = 0
        self._gathers: CompressionSpec | None = None
        self._scatters: CompressionSpec | None = None
        # How sequences begin that belong to this group's callbacks.
        self._sequences = f"{SEQUENCE}.{zlib.crc32(name.encode()):x}."

    def set_compression(
        self, gathers: CompressionSpec | None, scatters: CompressionSpec | None
    ) -> None:
        """Chooses how `all_gather_into_tensor` and `reduce_scatter_tensor` travel between hosts."""
        self._gathers = gathers
        self._scatters = scatters

    def _way_of(
        self, compression: CompressionSpec | None, part: torch.Tensor
    ) -> CompressionSpec | None:
        """Returns how a rank's part travels."""
        return compression if part.numel() >= _COMPRESSED_FROM else None

    @property
    def _sequence(self) -> str:
        """Numbers the group's collectives apart from others of the world, as `hvd`'s."""
        return sequence() or SEQUENCE

    def _leased(self) -> Lease:
        if self._lease is None:
            msg = f"{self._title} has been destroyed."
            raise ValueError(msg)
        return self._lease

    def _asked(
        self, opts: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Any, bool, float | None]:
        """Returns reduction, whether to wait, and the timeout, of any form of a call."""
        if self._lease is None:
            self._leased()
        goes_on = getattr(opts, "asyncOp", None)
        if goes_on is not None:
            asked = opts.timeout.total_seconds()
            return getattr(opts, "reduceOp", None), not goes_on, asked if asked > 0 else None
        op = opts if opts is not None else kwargs.get("op")
        timeout = kwargs.get("timeout")
        for value in args:
            if isinstance(value, timedelta):
                timeout = value
            elif value is not None:
                op = value
        op = dist.ReduceOp.SUM if op is None else op
        return op, False, timeout.total_seconds() if timeout is not None else None

    def _started(
        self,
        handle: int,
        outputs: Sequence[torch.Tensor],
        waits: bool,
        finish: Callable[[Any], int | None] | None,
        timeout_s: float | None,
        what: str,
        source: int = -1,
        *,
        is_collective: bool = True,
    ) -> Work | None:
        """Waits for an operation, or makes what waits for it."""
        self._operations += 1
        inner = sequence()
        if is_collective and inner is None:
            self._collectives += 1  # As all ranks do.
        limit = timeout_s or self._timeout_s
        if waits and self._coalesced is None:
            with region(what):
                self._finish(handle, finish, limit, what)
            return None
        with region(what):
            if is_collective and inner is None:
                inner = f"{self._sequences}{self._collectives % _CALLBACK_SEQUENCES}"
            work = Work(handle, outputs, finish, limit, self._named(what), source, inner)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _finish(
        self, handle: int, finish: Callable[[Any], int | None] | None, timeout_s: float, what: str
    ) -> None:
        try:
            result = _core.wait(handle, timeout_s)
        except CollectiveTimeoutError:
            if not is_pending(handle):
                raise
            raise too_late(self._named(what), timeout_s) from None
        if finish is not None:
            with torch.no_grad():
                finish(result)

    def _together(self, works: Sequence[Work | None], waits: bool) -> Work | None:
        every = Together([work for work in works if work is not None])
        if waits:
            every.wait()
            return None
        return every

    def _settled(
        self, work: Work | None, outputs: list[torch.Tensor], waits: bool, timeout_s: float | None
    ) -> Work | None:
        """Gives a work the outputs of the operation that it is part of."""
        if work is None:
            return None
        if waits:
            work.wait()
            return None
        work.show(outputs)
        work._timeout_s = timeout_s or self._timeout_s  # noqa: SLF001  its own package
        return work

    def _named(self, what: str) -> str:
        return f"{what} in {self._title}"

    def _check_rank(self, rank: int, what: str) -> None:
        if not 0 <= rank < self._size:
            msg = f"{what} is rank {rank}; {self._title} has the ranks 0 to {self._size - 1}."
            raise ValueError(msg)

    def _check_count(self, tensors: Sequence[torch.Tensor], what: str) -> None:
        if len(tensors) != self._size:
            msg = f"{what} has {len(tensors)} tensors; {self._size} ranks need one each."
            raise ValueError(msg)


def as_list(tensors: Any) -> Any:
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def as_rows(tensors: Any) -> list[torch.Tensor]:
    """Returns a list of tensors that may come in a list of its own."""
    tensors = list(tensors)
    if tensors and isinstance(tensors[0], (list, tuple)):
        (tensors,) = tensors
    return list(tensors)


def rooted(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, int, Sequence[Any]]:
    """Returns options, root and what is left, of options or of a root and what follows it."""
    first: Any = args[0] if args else kwargs.get("opts", kwargs.get("root"))
    if hasattr(first, "rootRank"):
        return first, first.rootRank, ()
    return None, operator.index(first), args[1:]


def check_elements(a: torch.Tensor, b: torch.Tensor, what: str) -> None:
    if a.numel() != b.numel():
        msg = (
            f"{what}: tensors of shape {tuple(a.shape)} and {tuple(b.shape)} must have the same "
            "number of elements."
        )
        raise ValueError(msg)
