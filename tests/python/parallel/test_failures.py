"""Ranks that die or fall silent: every other rank gets an error that names them, in time."""

from __future__ import annotations

import gc
import os
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from faults import (
    DEATH_S,
    Seen,
    after_error,
    check_death,
    check_survivors,
    others,
    processes,
    reduce_until_error,
    rest_then_reduce,
    wait_for_file,
)
from grids import THREE, TWO_HOSTS, Grid

import lightcc as hvd
from lightcc.testing import mark, spawn_ranks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.multiproc

#: A rank that is not alone on its host, and the leader of another host.
victims = pytest.mark.parametrize(("grid", "victim"), [(THREE, 2), (TWO_HOSTS, 2)], ids=str)
PEER_TIMEOUT_S = 2.0
NAMED_S = 10.0  # More than a timeout, for ranks that share a core.


@pytest.mark.parametrize(
    ("grid", "victim", "elements"),
    [(THREE, 0, 1000), (THREE, 2, 4_000_000), (TWO_HOSTS, 0, 4_000_000), (TWO_HOSTS, 3, 1000)],
    ids=str,
)
def test_death_during_collectives_reaches_every_rank(
    grid: Grid, victim: int, elements: int
) -> None:
    check_death(grid, victim, reduce_until_error, elements)


@victims
def test_death_while_all_are_idle_is_told_by_the_next_operation(
    grid: Grid, victim: int, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    with processes(grid, rest_then_reduce, str(go)) as ranks:
        ranks.wait_mark("running")
        ranks.kill(victim)
        go.touch()
        since = time.monotonic()
        results = ranks.wait(40, ranks=others(grid, victim))
    check_survivors(results, "PeerFailedError", victim, since, DEATH_S)


def rest_with_children(go: str, parent: int) -> Seen:
    """`rest_then_reduce`, but `parent` forks two children that outlive it."""
    hvd.init()
    hvd.allreduce(np.ones(100_000))
    if hvd.rank() == parent:
        for _ in range(2):
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
    return rest_then_reduce(go)


@victims
def test_forked_children_do_not_hide_the_death_of_their_parent(
    grid: Grid, victim: int, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    with processes(grid, rest_with_children, str(go), victim) as ranks:
        ranks.wait_mark("running")
        go.touch()
        killed = time.monotonic()
        ranks.kill(victim)
        results = ranks.wait(40, ranks=others(grid, victim))
        os.killpg(ranks.pids[victim], 0)  # The children still live.
    check_survivors(results, "PeerFailedError", victim, killed, DEATH_S)


@pytest.mark.parametrize(
    ("grid", "victim", "elements"), [(THREE, 0, 4_000_000), (TWO_HOSTS, 2, 1000)], ids=str
)
def test_stopped_rank_is_a_timeout_that_names_it(grid: Grid, victim: int, elements: int) -> None:
    with processes(
        grid, reduce_until_error, elements, LIGHT_PEER_TIMEOUT=str(PEER_TIMEOUT_S)
    ) as ranks:
        ranks.wait_mark("running")
        stopped = time.monotonic()
        ranks.stop(victim)
        results = ranks.wait(40, ranks=others(grid, victim))
        ranks.resume(victim)
        resumed = time.monotonic()
        (late,) = ranks.wait(20, ranks=[victim])
    check_survivors(results, "CollectiveTimeoutError", victim, stopped, NAMED_S)
    # The world is over for the one that overslept, too; whom it blames is its own view.
    assert late.ok, late.describe()
    assert late.value is not None
    assert late.value.kind in {"CollectiveTimeoutError", "PeerFailedError"}, late.value
    assert late.value.at - resumed < NAMED_S


def reduce_beside_an_idle_rank(go: str) -> Seen:
    """Ranks 1 and 2 run one all-reduce that takes long. Rank 0 is idle until `go` is there."""
    pair = hvd.ProcessSet([1, 2])
    hvd.init(process_sets=[pair])
    hvd.barrier()
    try:
        if hvd.rank() == 0:
            wait_for_file(go)
            hvd.allreduce(np.ones(1))
        else:
            handle = hvd.allreduce_async(np.ones(8_000_000, np.float32), process_set=pair)
            mark("running")
            hvd.synchronize(handle)
    except hvd.HorovodInternalError as error:
        return after_error(error)
    raise AssertionError("nothing failed")


def test_stopped_rank_with_idle_neighbours_is_seen_by_a_rank_that_waits_elsewhere(
    tmp_path: Path,
) -> None:
    """Rank 0 leads the tree: the ranks that wait for each other are not neighbours."""
    go = tmp_path / "go"
    grid = Grid(3, [0, 1, 2])
    with processes(
        grid,
        reduce_beside_an_idle_rank,
        str(go),
        LIGHT_PEER_TIMEOUT=str(PEER_TIMEOUT_S),
        LIGHT_TCP_RATE="2M",
    ) as ranks:
        ranks.wait_mark("running", ranks=[1, 2])
        time.sleep(1)  # By now both have asked, and the all-reduce runs for 16 s.
        stopped = time.monotonic()
        ranks.stop(2)
        results = ranks.wait(40, ranks=[1])
        go.touch()
        results += ranks.wait(20, ranks=[0])
    check_survivors(results[:1], "CollectiveTimeoutError", 2, stopped, NAMED_S)
    check_survivors(results[1:], "CollectiveTimeoutError", 2, stopped, NAMED_S)


def compute_past_the_timeout(seconds: float) -> float:
    hvd.init()
    hvd.barrier()
    if hvd.rank() == hvd.size() - 1:
        # Holds the GIL, as a training step may.
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass
    return float(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])


def test_rank_that_computes_longer_than_the_timeout_is_healthy() -> None:
    values = TWO_HOSTS.run(compute_past_the_timeout, 3.0, env={"LIGHT_PEER_TIMEOUT": "1"})
    assert values == [4.0] * 4


def free_after_error(victim: int, elements: int) -> Seen:
    """Gives the tensors' memory to others right after the error; it must be left alone."""
    hvd.init()
    hvd.allreduce(np.ones(8))
    mark("running")
    tensors: list[np.ndarray] = []
    handles: list[int] = []
    try:
        while True:
            tensors = [np.full(elements, 1.0, np.float32) for _ in range(4)]
            handles = [hvd.allreduce_async_(x, op=hvd.Average) for x in tensors]
            if hvd.rank() == victim:
                time.sleep(60)  # Killed here, with operations of the others half done.
            for handle in handles:
                hvd.synchronize(handle)
    except hvd.HorovodInternalError as error:
        del tensors, handles
        gc.collect()
        for _ in range(50):
            reused = [np.full(elements, 7.0, np.float32) for _ in range(4)]
            assert all((x == 7.0).all() for x in reused)
        return after_error(error)


@victims
def test_tensors_may_be_freed_right_after_an_error(grid: Grid, victim: int) -> None:
    check_death(grid, victim, free_after_error, victim, 500_000)


def begin_anew(victim: int) -> tuple[Seen, list[int]]:
    """After the victim's death the others make a world of their own in the same process."""
    seen = reduce_until_error(100_000)
    hvd.init(comm=[rank for rank in range(3) if rank != victim])
    try:
        ranks = hvd.allgather(np.array([hvd.rank()]))
        for _ in range(3):
            hvd.allreduce(np.ones(200_000, np.float32))
        return seen, ranks.tolist()
    finally:
        hvd.shutdown()


@pytest.mark.parametrize(("hosts", "victim"), [(None, 2), ([0, 1, 1], 0)], ids=str)
def test_survivors_make_a_new_world_in_the_same_process(
    hosts: list[int] | None, victim: int
) -> None:
    grid = THREE._replace(hosts=hosts)
    with processes(grid, begin_anew, victim) as ranks:
        ranks.wait_mark("running")
        ranks.kill(victim)
        results = ranks.wait(60, ranks=others(grid, victim))
    for result in results:
        assert result.ok, result.describe()
        assert result.value is not None
        seen, members = result.value
        assert (seen.kind, seen.rank) == ("PeerFailedError", victim)
        assert members == [0, 1]


def join_or_fail() -> tuple[str, str]:
    try:
        hvd.init()
    except hvd.HorovodInternalError as error:
        return type(error).__name__, str(error)
    return "joined", ""


@pytest.mark.parametrize(("hosts", "wrong"), [(None, 1), ([0, 1, 1], 0)], ids=str)
def test_wrong_secret_is_an_error_everywhere_in_time(hosts: list[int] | None, wrong: int) -> None:
    env = [{"HOROVOD_START_TIMEOUT": "3"} for _ in range(3)]
    env[wrong]["LIGHT_SECRET"] = "0" * 64
    results = spawn_ranks(join_or_fail, 3, env=env, hosts=hosts, timeout_s=30)
    assert "joined" not in {kind for kind, _ in results}, results
    assert "secret" in results[wrong][1], results[wrong]
    for rank in range(3):
        assert results[rank][1], results
