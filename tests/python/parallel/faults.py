"""What the tests of failures share: ranks that work until an error ends it, and what they saw."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import lightcc as hvd
from lightcc.testing import RankProcesses, RankResult, mark

if TYPE_CHECKING:
    from collections.abc import Callable

    from grids import Grid

#: The design's bound for the news of a dead process to be everywhere.
DEATH_S = 5.0


class Seen(NamedTuple):
    """How a rank's work ended."""

    kind: str  # Class of the error.
    rank: int | None  # Whom it names.
    text: str
    at: float  # On the clock that all processes of a machine share.
    again: str  # Class of the error of the next call.
    ended: float  # When shutdown() was over.


def wait_for_file(path: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not Path(path).exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.005)


def after_error(error: hvd.HorovodInternalError) -> Seen:
    """Checks that the world stays failed, and leaves it."""
    at = time.monotonic()
    try:
        hvd.allreduce(np.ones(1), op=hvd.Sum)
        again = "nothing"
    except hvd.HorovodInternalError as later:
        again = type(later).__name__
    hvd.shutdown()
    assert not hvd.is_initialized()
    return Seen(type(error).__name__, error.rank, str(error), at, again, time.monotonic())


def repeat_until_error(step: Callable[[int], None]) -> Seen:
    """Calls `step` with 0, 1, 2 and so on until it fails; says that it runs after five of them."""
    try:
        for count in itertools.count():
            if count == 5:
                mark("running")
            step(count)
    except hvd.HorovodInternalError as error:
        return after_error(error)
    raise AssertionError


def reduce_until_error(elements: int) -> Seen:
    """Reduces again and again, several tensors in flight; checks what it gets until it fails."""
    hvd.init()
    n = hvd.size()

    def step(_: int) -> None:
        inputs = [np.full(elements, i + hvd.rank(), np.float32) for i in range(3)]
        handles = [hvd.allreduce_async(x, op=hvd.Sum) for x in inputs]
        for i, handle in enumerate(handles):
            total: Any = hvd.synchronize(handle)
            assert total[0] == total[-1] == n * i + n * (n - 1) / 2, (i, total)

    return repeat_until_error(step)


def rest_then_reduce(go: str) -> Seen:
    """Is idle until the file `go` is there; then reduces until it fails."""
    hvd.init()
    hvd.barrier()
    mark("running")
    wait_for_file(go)
    try:
        while True:
            hvd.allreduce(np.ones(10))
    except hvd.HorovodInternalError as error:
        return after_error(error)


def check_survivors(
    results: list[RankResult[Seen]], kind: str, rank: int, since: float, within_s: float
) -> None:
    """Checks that all `results` are one kind of error, naming `rank`, and came soon enough."""
    for result in results:
        assert result.ok, result.describe()
        seen = result.value
        assert seen is not None
        assert (seen.kind, seen.rank) == (kind, rank), (result.rank, seen)
        assert f"rank {rank}" in seen.text, (result.rank, seen)
        assert seen.again == kind, (result.rank, seen)
        assert seen.at - since < within_s, (result.rank, seen, since)
        assert seen.ended - seen.at < DEATH_S, (result.rank, seen)


def others(grid: Grid, rank: int) -> list[int]:
    return [other for other in range(grid.ranks) if other != rank]


def processes(grid: Grid, program: Any, *args: object, **env: str) -> RankProcesses[Any]:
    return RankProcesses(program, grid.ranks, *args, env=env, hosts=grid.hosts)


def check_death(grid: Grid, victim: int, program: Any, *args: object, **env: str) -> None:
    """Kills `victim` in the middle of `program`; all others must learn of it, by name and soon."""
    with processes(grid, program, *args, **env) as ranks:
        ranks.wait_mark("running")
        killed = time.monotonic()
        ranks.kill(victim)
        results = ranks.wait(40, ranks=others(grid, victim))
    check_survivors(results, "PeerFailedError", victim, killed, DEATH_S)
