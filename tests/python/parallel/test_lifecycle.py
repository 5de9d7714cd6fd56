"""Worlds that come and go, worlds that rest, and settings that cannot be used."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from faults import TWO, TWO_HOSTS
from grids import Grid

import lightcc as hvd
from lightcc import _world
from lightcc.testing import RankProcesses, spawn_ranks

pytestmark = pytest.mark.multiproc
TWO_APART = Grid(2, [0, 1])


def usage() -> tuple[int, int, int]:
    """Open descriptors, threads, and resident kilobytes."""
    status = Path("/proc/self/status").read_text().splitlines()
    numbers = {line.split(":")[0]: line.split()[1] for line in status if len(line.split()) > 1}
    return len(os.listdir("/proc/self/fd")), int(numbers["Threads"]), int(numbers["VmRSS"])


def many_worlds(cycles: int, settle: int) -> tuple[list[int], list[int], list[int]]:
    """Returns usage after `settle` cycles and after all."""
    x = np.ones(300_000, np.float32)
    seen = []
    for cycle in range(cycles):
        hvd.init()
        hvd.allreduce(x)
        hvd.allgather(x[: 10 + hvd.rank()])
        hvd.shutdown()
        if cycle in (settle, cycles - 1):
            seen.append(usage())
    descriptors, threads, resident = zip(*seen, strict=True)
    return list(descriptors), list(threads), list(resident)


CYCLES = [pytest.param(60, id="60"), pytest.param(500, id="500", marks=pytest.mark.slow)]


@pytest.mark.parametrize("cycles", CYCLES)
@pytest.mark.parametrize("grid", [TWO, TWO_APART], ids=str)
@pytest.mark.timeout(400)
def test_worlds_that_come_and_go_leave_nothing_behind(grid: Grid, cycles: int) -> None:
    results = spawn_ranks(many_worlds, grid.ranks, cycles, 20, hosts=grid.hosts, timeout_s=350)
    for descriptors, threads, resident in results:
        assert descriptors[0] == descriptors[1], results
        assert threads[0] == threads[1], results
        # A world's memory is megabytes: one that stayed in forty cycles would show.
        assert resident[1] - resident[0] < 12_000, results


def rest(seconds: float) -> tuple[float, int]:
    """Returns the CPU seconds that this process used in `seconds` of rest, and its sleeps."""
    hvd.init()
    for _ in range(10):
        hvd.allreduce(np.ones(100_000, np.float32))
    hvd.barrier()
    time.sleep(1)
    before, sleeps = resource.getrusage(resource.RUSAGE_SELF), hvd.stats()["sleeps"]
    time.sleep(seconds)
    after, more = resource.getrusage(resource.RUSAGE_SELF), hvd.stats()["sleeps"]
    hvd.barrier()
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used, more - sleeps


@pytest.mark.parametrize("grid", [TWO, TWO_HOSTS], ids=str)
def test_idle_job_uses_no_cpu(grid: Grid) -> None:
    for used, sleeps in grid.run(rest, 5.0):
        assert used < 0.02 * 5.0, (used, sleeps)
        assert sleeps < 100, (used, sleeps)


def die_or_rest(seconds: float) -> int:
    """Returns how often a rank slept in `seconds` after its world has failed."""
    hvd.init()
    hvd.barrier()
    if hvd.rank() == hvd.size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            hvd.allreduce(np.ones(1000))
    except hvd.HorovodInternalError:
        before: int = hvd.stats()["sleeps"]
        time.sleep(seconds)
        after: int = hvd.stats()["sleeps"]
        return after - before


@pytest.mark.parametrize("grid", [TWO, TWO_APART], ids=str)
def test_a_world_that_failed_rests(grid: Grid) -> None:
    with RankProcesses(die_or_rest, grid.ranks, 2.0, hosts=grid.hosts) as processes:
        survivor = processes.wait(30)[0]
    assert survivor.value is not None, survivor.describe()
    assert survivor.value < 20, survivor.describe()


def die_or_look() -> tuple[object, object]:
    """Returns where a rank's compressed tensors belong, before its world has failed and after."""
    hvd.init()
    world = _world.current()
    before = world.compression_position(0)
    hvd.barrier()
    if hvd.rank() == hvd.size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            hvd.allreduce(np.ones(1000))
    except hvd.HorovodInternalError:
        return before, world.compression_position(0)


def test_what_is_kept_back_has_its_position_after_a_failure() -> None:
    with RankProcesses(die_or_look, TWO_APART.ranks, hosts=TWO_APART.hosts) as processes:
        survivor = processes.wait(30)[0]
    assert survivor.value == ((2, 0, 1, 0), (2, 0, 1, 0)), survivor.describe()


def wait_alone(seconds: float) -> float:
    """Returns the CPU seconds that a rank used while it waited for one that was late."""
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 0:
        time.sleep(seconds)
        hvd.barrier()
        return 0.0
    before = time.process_time()
    hvd.barrier()
    return time.process_time() - before


@pytest.mark.parametrize("grid", [TWO, TWO_HOSTS], ids=str)
def test_waiting_for_a_late_rank_uses_little_cpu(grid: Grid) -> None:
    assert max(grid.run(wait_alone, 3.0)) < 0.1 * 3.0


def init_error() -> tuple[str, str]:
    try:
        hvd.init()
    except Exception as error:  # noqa: BLE001 - the test judges it.
        return type(error).__name__, str(error)
    return "joined", ""


BAD_VALUES = [
    ("LIGHT_PEER_TIMEOUT", "soon", "seconds"),
    ("LIGHT_PEER_TIMEOUT", "-1", "0.1"),
    ("HOROVOD_START_TIMEOUT", "1e400", "seconds"),
    ("HOROVOD_CACHE_CAPACITY", "many", "integer"),
    ("HOROVOD_FUSION_THRESHOLD", "12Q", "integer"),
    ("LIGHT_FUSION_STRATEGY", "best", "none, auto_fusion"),
    ("LIGHT_NET", "carrier-pigeon", "tcp"),
    ("LIGHT_GPU_OPERATIONS", "gpu", "host, nccl"),
    ("LIGHT_NUM_STREAMS", "17", "1 to 8"),
    ("HOROVOD_LOG_LEVEL", "loud", "trace, debug"),
    ("LIGHT_RANK", "one", "integer"),
    ("LIGHT_RENDEZVOUS", "nowhere", "host:port"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), BAD_VALUES)
def test_value_that_cannot_be_used_is_named_with_what_is_allowed(
    name: str, value: str, allowed: str
) -> None:
    (kind, text), *_ = spawn_ranks(init_error, 1, env={"LIGHT_SIZE": "2", name: value})
    assert kind == "ValueError", text
    assert name in text
    assert value in text
    assert allowed in text


def test_value_that_one_rank_cannot_use_is_told_to_the_others() -> None:
    env = [{"HOROVOD_START_TIMEOUT": "50"} for _ in range(3)]
    env[1]["LIGHT_NUM_STREAMS"] = "17"
    results = spawn_ranks(init_error, 3, env=env, timeout_s=30)
    assert results[1][0] == "ValueError"
    for kind, text in (results[0], results[2]):
        assert (kind, text) == ("ValueError", f"rank 1: {results[1][1]}"), results


def test_missing_rank_is_named_in_time() -> None:
    env = {"LIGHT_SIZE": "4", "HOROVOD_START_TIMEOUT": "2"}
    for kind, text in spawn_ranks(init_error, 3, env=env, timeout_s=30):
        assert kind == "CollectiveTimeoutError"
        assert "ranks [3] of 4 did not join in time" in text


def init_again_after_failure() -> float:
    assert init_error()[0] == "ValueError"
    del os.environ["LIGHT_NUM_STREAMS"]
    hvd.init()
    return float(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])


def test_init_works_after_one_that_failed() -> None:
    assert spawn_ranks(init_again_after_failure, 2, env={"LIGHT_NUM_STREAMS": "17"}) == [2.0, 2.0]
