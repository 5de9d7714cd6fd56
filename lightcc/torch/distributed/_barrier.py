"""A barrier that says who is missing."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from lightcc.exceptions import CollectiveTimeoutError

_TAG = 0x6D6F6E  # No other message's.


def monitored_barrier(
    group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """Waits until all ranks have called it, and names those that have not.

    `torch.distributed.monitored_barrier()` does the same for gloo, and takes no other backend.

    Args:
        group: A process group of any backend; `None` is the default one.
        timeout: For how long; 30 minutes by default.
        wait_all_ranks: Whether rank 0 names all ranks that are missing, and not the first alone.

    Raises:
        CollectiveTimeoutError: On rank 0: ranks are missing. On others: rank 0 said nothing, as it
            is missing itself, or another rank is.
        HorovodInternalError: A rank failed.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    limit = timedelta(minutes=30) if timeout is None else timeout
    if rank != 0:
        _report(group, limit, rank)
        return
    deadline = time.monotonic() + limit.total_seconds()
    calls: dict[int, Any] = {
        peer: dist.irecv(torch.zeros(1, dtype=torch.uint8), group=group, group_src=peer, tag=_TAG)
        for peer in range(1, size)
    }
    missing = []
    for peer, call in calls.items():
        left = max(deadline - time.monotonic(), 0.001)
        try:
            call.wait(timedelta(seconds=left))
        except CollectiveTimeoutError:
            missing.append(peer)
            if not wait_all_ranks:
                break
    if missing:
        msg = (
            f"monitored_barrier: rank(s) {', '.join(map(str, missing))} did not call it within "
            f"{limit.total_seconds():g} s."
        )
        raise CollectiveTimeoutError(msg, missing[0])
    for peer in calls:
        dist.send(torch.zeros(1, dtype=torch.uint8), group=group, group_dst=peer, tag=_TAG)


def _report(group: Any, limit: timedelta, rank: int) -> None:
    token = torch.zeros(1, dtype=torch.uint8)
    works: list[Any] = [
        dist.isend(token, group=group, group_dst=0, tag=_TAG),
        dist.irecv(token.clone(), group=group, group_src=0, tag=_TAG),
    ]
    try:
        for work in works:
            work.wait(limit)
    except CollectiveTimeoutError:
        msg = (
            f"monitored_barrier: rank {rank} heard nothing from rank 0 within "
            f"{limit.total_seconds():g} s: it did not call, or misses another rank."
        )
        raise CollectiveTimeoutError(msg, 0) from None
