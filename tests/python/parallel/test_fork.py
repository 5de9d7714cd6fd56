"""Processes that ranks start: none of them is a rank, none keeps a descriptor of the engine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from grids import TWO, TWO_HOSTS

import lightcc as hvd

if TYPE_CHECKING:
    from collections.abc import Callable

    from grids import Grid

pytestmark = pytest.mark.multiproc


def error_of(call: Callable[[], Any]) -> str:
    begun = time.monotonic()
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is, the test judges it.
        took = time.monotonic() - begun
        return f"{type(error).__name__}: {error}" if took < 2 else f"late by {took} s: {error}"
    return "nothing"


def engine_descriptors() -> list[str]:
    """Sockets, event and memory descriptors that are open here."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:  # The listing's own descriptor.
            continue
        if target.startswith(("socket:", "anon_inode:", "/memfd:")):
            found.append(target)
    return found


def calls_in_child(handle: int) -> list[str]:
    return [
        error_of(lambda: hvd.allreduce(np.ones(3))),
        error_of(hvd.barrier),
        error_of(hvd.rank),
        error_of(hvd.init),
        error_of(lambda: hvd.synchronize(handle)),
    ]


def fork_and_go_on() -> None:
    before = set(engine_descriptors())
    hvd.init()
    x = np.ones(50_000, np.float32)
    hvd.allreduce(x)
    # In flight while the fork happens: rank 0 submits only afterwards.
    handle = hvd.allreduce_async(x, op=hvd.Sum, name="x") if hvd.rank() != 0 else -1

    def child() -> tuple[list[str], set[str]]:
        return calls_in_child(handle), set(engine_descriptors()) - before

    pid = os.fork()
    if pid == 0:
        errors, descriptors = child()
        wrong = [e for e in errors[:4] if not e.startswith("ShutDownError: lightcc was init")]
        # An unknown handle is None for Horovod, one of before the fork an error: no result at all.
        if wrong or descriptors or hvd.is_initialized() or errors[4].startswith("late"):
            os.write(2, f"in the child: {errors} {descriptors}\n".encode())
            os._exit(9)
        raise SystemExit(0)  # As rank_main ends: exit handlers run.
    deadline = time.monotonic() + 20
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
        assert time.monotonic() < deadline, "the child hangs"
        time.sleep(0.01)
    # 1: rank_main saw SystemExit(0) as an exception of the function; anything else is a crash.
    assert os.waitstatus_to_exitcode(ended[1]) == 1, ended
    for _ in range(20):
        hvd.allreduce(x)
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(x, op=hvd.Sum, name="x")
    assert hvd.synchronize(handle)[0] == hvd.size()
    hvd.shutdown()


def test_forked_child_is_refused_at_once_and_the_parent_goes_on() -> None:
    TWO_HOSTS.run(fork_and_go_on)


def double(x: int) -> int:
    return 2 * x


def work_with_pool(method: str) -> None:
    """A data loader's way: workers are started during training and ended by it."""
    hvd.init()
    x = np.ones(10_000, np.float32)
    context: Any = multiprocessing.get_context(method)
    with context.Pool(1) as pool:
        result = pool.map_async(double, range(20))
        for _ in range(20):
            assert hvd.allreduce(x, op=hvd.Sum)[0] == hvd.size()
        assert result.get(30) == [2 * i for i in range(20)]
    worker = context.Process(target=double, args=(1,))
    worker.start()
    hvd.barrier()
    worker.join(30)
    assert worker.exitcode == 0
    hvd.barrier()


# A worker that is spawned imports all anew, so there are few of them.
@pytest.mark.parametrize(
    ("method", "grid"), [("fork", TWO_HOSTS), ("spawn", TWO), ("forkserver", TWO)], ids=str
)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_worker_processes_do_not_disturb_the_world(method: str, grid: Grid) -> None:
    grid.run(work_with_pool, method)


def init_after_fork() -> int:
    """A child that was forked before init() may be the rank."""
    pid = os.fork()
    if pid == 0:
        hvd.init()
        total = hvd.allreduce(np.ones(1), op=hvd.Sum)[0]
        hvd.shutdown()
        os._exit(int(total))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def fork_before_init_and_after_shutdown() -> list[int]:
    totals = [init_after_fork()]
    hvd.init()
    hvd.allreduce(np.ones(1))
    hvd.shutdown()
    return [*totals, init_after_fork()]


def test_children_forked_before_init_and_after_shutdown_can_be_the_rank() -> None:
    assert TWO_HOSTS.run(fork_before_init_and_after_shutdown) == [[4, 4]] * 4


def kill_child_of_rank() -> None:
    hvd.init()
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    hvd.barrier()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for _ in range(20):
        assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == hvd.size()


def test_death_of_a_forked_child_is_no_death_of_its_rank() -> None:
    TWO_HOSTS.run(kill_child_of_rank)
