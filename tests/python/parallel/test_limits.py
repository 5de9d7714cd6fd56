"""What the system refuses is an error that says how much was wanted; never a signal or a hang."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
from typing import TYPE_CHECKING

import numpy as np
import pytest
from grids import TWO, TWO_APART, TWO_HOSTS

import lightcc as hvd
from lightcc.testing import RankProcesses

if TYPE_CHECKING:
    from grids import Grid

    from lightcc.testing import RankResult

pytestmark = pytest.mark.multiproc

_CLONE_NEWNS = 0x00020000


def limited(name: str, value: int, victim: int) -> tuple[str, str]:
    """Joins and reduces under a limit that `victim` has; returns the error's class and text."""
    if int(os.environ["LIGHT_RANK"]) == victim:
        which = getattr(resource, name)
        base = 0
        if name == "RLIMIT_AS":  # Counts what is there already.
            with open("/proc/self/statm") as statm:
                base = int(statm.read().split()[0]) * resource.getpagesize()
        elif name == "RLIMIT_NOFILE":
            base = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(which, (base + value, resource.getrlimit(which)[1]))
    try:
        hvd.init()
        for _ in range(3):
            hvd.allreduce(np.ones(2_000_000, np.float32))
    except (hvd.HorovodInternalError, MemoryError) as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def run_limited(
    grid: Grid, name: str, value: int, victim: int
) -> list[RankResult[tuple[str, str]]]:
    with RankProcesses(
        limited,
        grid.ranks,
        name,
        value,
        victim,
        hosts=grid.hosts,
        env={"HOROVOD_START_TIMEOUT": "3", "LIGHT_PEER_TIMEOUT": "3"},
    ) as processes:
        results = processes.wait(40)
    for result in results:
        assert result.ok, result.describe()
    return results


# Rank 0 leads the host and makes the shared memory.
@pytest.mark.parametrize(("name", "value"), [("RLIMIT_FSIZE", 4096), ("RLIMIT_AS", 1 << 16)])
def test_memory_limit_is_an_error_that_names_the_bytes(name: str, value: int) -> None:
    results = run_limited(TWO, name, value, 0)
    kind, text = results[0].value or ("", "")
    assert kind == "EngineError", results
    assert "bytes of shared memory" in text, results
    assert any(word.isdigit() and int(word) > 4096 for word in text.split()), results
    kind, text = results[1].value or ("", "")
    assert kind != "nothing", results


# Within a host, test_init_failures.py has the same.
@pytest.mark.parametrize("room", [2, 6, 12])
def test_few_descriptors_are_an_error_or_enough(room: int) -> None:
    results = run_limited(TWO_APART, "RLIMIT_NOFILE", room, 1)
    kind, text = results[1].value or ("", "")
    if kind != "nothing":
        assert "Too many open files" in text, results
        assert (results[0].value or ("nothing", ""))[0] != "nothing", results
    else:
        assert room > 4, results


def reduce_with_small_shm() -> float:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/dev/shm"], check=True)
    assert os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize == 1 << 20
    hvd.init()
    total = hvd.allreduce(np.ones(4_000_000, np.float32), op=hvd.Sum)
    assert total[0] == total[-1] == hvd.size()
    assert os.listdir("/dev/shm") == []
    return float(hvd.allgather(np.ones(1_000_000, np.float32)).sum())


@pytest.mark.netns
@pytest.mark.parametrize("grid", [TWO, TWO_HOSTS], ids=str)
def test_small_dev_shm_is_enough(grid: Grid) -> None:
    assert grid.run(reduce_with_small_shm) == [grid.ranks * 1e6] * grid.ranks
