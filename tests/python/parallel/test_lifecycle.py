"""Worlds that come and go, worlds that rest, and settings that cannot be used."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from grids import TWO, TWO_APART, TWO_HOSTS, Grid

import lightcc as hvd
from lightcc import _world
from lightcc.testing import RankProcesses, spawn_ranks

pytestmark = pytest.mark.multiproc


def usage() -> tuple[int, int, int]:
    """Open descriptors, threads, and resident kilobytes."""
    status = Path("/proc/self/status").read_text().splitlines()
    numbers = {line.split(":")[0]: line.split()[1] for line in status if len(line.split()) > 1}
    return len(os.listdir("/proc/self/fd")), int(numbers["Threads"]), int(numbers["VmRSS"])


def usage_at_rest() -> tuple[int, int, int]:
    """The least usage of some looks: a thread that was joined may still be leaving /proc."""
    looks = [usage()]
    for _ in range(20):
        time.sleep(0.01)
        looks.append(usage())
    descriptors, threads, resident = zip(*looks, strict=True)
    return min(descriptors), min(threads), min(resident)


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
            seen.append(usage_at_rest())
    descriptors, threads, resident = zip(*seen, strict=True)
    return list(descriptors), list(threads), list(resident)


@pytest.mark.parametrize(
    ("grid", "cycles"),
    [(TWO, 30), (TWO_APART, 30), pytest.param(TWO_APART, 500, marks=pytest.mark.slow)],
    ids=str,
)
@pytest.mark.timeout(400)
def test_worlds_that_come_and_go_leave_nothing_behind(grid: Grid, cycles: int) -> None:
    results = spawn_ranks(many_worlds, grid.ranks, cycles, 10, hosts=grid.hosts, timeout_s=350)
    for descriptors, threads, resident in results:
        assert descriptors[0] == descriptors[1], results
        assert threads[0] == threads[1], results
        # A world's memory is megabytes: one that stayed in twenty cycles would show.
        assert resident[1] - resident[0] < 12_000, results


def rest(seconds: float) -> tuple[float, int]:
    """Returns the CPU seconds that this process used in `seconds` of rest, and its sleeps."""
    hvd.init()
    for _ in range(10):
        hvd.allreduce(np.ones(100_000, np.float32))
    hvd.barrier()
    time.sleep(0.5)
    before, sleeps = resource.getrusage(resource.RUSAGE_SELF), hvd.stats()["sleeps"]
    time.sleep(seconds)
    after, more = resource.getrusage(resource.RUSAGE_SELF), hvd.stats()["sleeps"]
    hvd.barrier()
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used, more - sleeps


def test_idle_job_uses_no_cpu() -> None:
    for used, sleeps in TWO_HOSTS.run(rest, 2.5):
        assert used < 0.02 * 2.5, (used, sleeps)
        assert sleeps < 50, (used, sleeps)


def die_or_rest(seconds: float) -> tuple[int, object, object]:
    """Returns how often a rank slept in `seconds` after its world has failed.

    And where its compressed tensors belong, before and after that.
    """
    hvd.init()
    world = _world.current()
    position = world.compression_position(0)
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
        return after - before, position, world.compression_position(0)


def test_a_world_that_failed_rests_and_knows_where_what_it_kept_back_belongs() -> None:
    with RankProcesses(die_or_rest, 2, 1.0, hosts=TWO_APART.hosts) as processes:
        survivor = processes.wait(30)[0]
    assert survivor.value is not None, survivor.describe()
    sleeps, *positions = survivor.value
    assert sleeps < 20, survivor.describe()
    assert positions == [(2, 0, 1, 0)] * 2, survivor.describe()


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
    assert max(grid.run(wait_alone, 1.5)) < 0.1 * 1.5


def init_error() -> tuple[str, str]:
    try:
        hvd.init()
    except Exception as error:  # noqa: BLE001 - the test judges it.
        return type(error).__name__, str(error)
    return "joined", ""


#: The C++ tests have a wrong value of every other variable.
BAD_VALUES = [
    ("LIGHT_FUSION_STRATEGY", "best", "none, auto_fusion"),
    ("LIGHT_RANK", "one", "integer"),
    ("LIGHT_RENDEZVOUS", "nowhere", "host:port"),
]


def errors_of_bad_values() -> list[tuple[str, str]]:
    found = []
    for name, value, _ in BAD_VALUES:
        before = os.environ.get(name)
        os.environ[name] = value
        found.append(init_error())
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
    return found


def test_value_that_cannot_be_used_is_named_with_what_is_allowed() -> None:
    (found,) = spawn_ranks(errors_of_bad_values, 1, env={"LIGHT_SIZE": "2"})
    for (kind, text), words in zip(found, BAD_VALUES, strict=True):
        assert kind == "ValueError", text
        assert all(word in text for word in words), text


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
