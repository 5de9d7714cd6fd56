"""A barrier that says who is missing."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from lightcc.exceptions import CollectiveTimeoutError
from lightcc.torch.distributed._messages import Messages

_TAG = 0x6D6F6E  # No other message's.


class MonitoredBarrier(Messages):
    """The barrier of a process group that names ranks. Texts begin as those of gloo."""

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Waits until all ranks have called it, and names those that have not.

        Args:
            timeout: For how long; that of the group by default.
            wait_all_ranks: Whether rank 0 names all ranks that are missing, and not one alone.

        Raises:
            CollectiveTimeoutError: On rank 0: ranks are missing. On others: rank 0 said nothing, as
                it is missing itself, or another rank is.
            HorovodInternalError: A rank failed.
        """
        limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
        if self._rank == 0:
            self._hear_all(limit_s, wait_all_ranks)
        else:
            self._report(limit_s)

    def _hear_all(self, limit_s: float, wait_all_ranks: bool) -> None:
        if limit_s <= 0:
            msg = f"Rank 0 timed out in monitoredBarrier after {limit_s * 1000:.0f} ms."
            raise CollectiveTimeoutError(msg, 0)
        deadline = time.monotonic() + limit_s
        peers = range(1, self._size)
        calls: list[Any] = [self.recv([_token()], peer, _TAG) for peer in peers]
        missing = []
        for peer, call in zip(peers, calls, strict=True):
            try:
                call.wait(timedelta(seconds=max(deadline - time.monotonic(), 0.001)))
            except CollectiveTimeoutError:
                missing.append(peer)
            if missing and not wait_all_ranks:
                break
        if missing:
            who = ", ".join(map(str, missing))
            msg = (
                f"Rank{'s' if wait_all_ranks else ''} {who} failed to pass monitoredBarrier in "
                f"{limit_s * 1000:.0f} ms: not called there."
            )
            raise CollectiveTimeoutError(msg, missing[0])
        answers: list[Any] = [self.send([_token()], peer, _TAG) for peer in peers]
        for answer in answers:
            answer.wait()

    def _report(self, limit_s: float) -> None:
        works: list[Any] = [self.send([_token()], 0, _TAG), self.recv([_token()], 0, _TAG)]
        try:
            for work in works:
                work.wait(timedelta(seconds=limit_s))
        except CollectiveTimeoutError:
            msg = (
                f"Rank {self._rank} successfully reached monitoredBarrier, but received errors "
                f"while waiting for send/recv from rank 0, for {limit_s * 1000:.0f} ms: it did not "
                "call, or misses another rank, which it names."
            )
            raise CollectiveTimeoutError(msg, 0) from None


def monitored_barrier(
    group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """Does what the method of a process group does, for the default group, too.

    `torch.distributed.monitored_barrier()` takes the backend gloo only.

    Args:
        group: A process group of this backend; `None` is the default one.
        timeout: As of `ProcessGroup.monitored_barrier()`, and so is the rest.
        wait_all_ranks: See there.

    Raises:
        ValueError: The group is of another backend.
    """
    group = dist.group.WORLD if group is None else group
    if not isinstance(group, MonitoredBarrier):
        msg = f"The group is of another backend than lightcc: a {type(group).__name__}."
        raise ValueError(msg)  # noqa: TRY004  as torch's function does
    group.monitored_barrier(timeout, wait_all_ranks)


def _token() -> torch.Tensor:
    return torch.zeros(1, dtype=torch.uint8)
