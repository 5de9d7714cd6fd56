"""Ranks that die, are late, or fail while a world is made: all hear of it, and of the right one."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from faults import DEATH_S, wait_for_file
from grids import THREE, TWO_HOSTS
from sockets import is_connected
from store_proxy import StoreProxy, go_through, init_seen

import lightcc as hvd
from lightcc import _core
from lightcc.testing import RankProcesses, mark, spawn_ranks

if TYPE_CHECKING:
    from grids import Grid

pytestmark = pytest.mark.multiproc
#: Longer than any test may take: what these tests see is not the start timeout.
PATIENT = {"HOROVOD_START_TIMEOUT": "50"}


def init_through(proxy: str, upstream: str, victim: int) -> tuple[str, int | None, str, float]:
    if int(os.environ["LIGHT_RANK"]) == victim:
        go_through(proxy, upstream)
    return init_seen()


def kill_in_init(grid: Grid, victim: int, request: int, answer: int, tmp_path: Path) -> None:
    """Kills `victim` in the place of one of its requests, or of the store's answer to it."""
    killed: list[float] = []
    pids: list[int] = []
    are_started = threading.Event()

    def spare(number: int, fatal: int) -> bool:
        if number != fatal:
            return True
        are_started.wait(40)  # The victim may come so far before its number is known here.
        killed.append(time.monotonic())
        os.kill(pids[victim], signal.SIGKILL)
        return False

    upstream = tmp_path / "upstream"
    with (
        StoreProxy(upstream, lambda n: spare(n, request), lambda n: spare(n, answer)) as proxy,
        RankProcesses(
            init_through,
            grid.ranks,
            *(proxy.address, str(upstream), victim),
            hosts=grid.hosts,
            env=PATIENT,
        ) as processes,
    ):
        pids += processes.pids
        are_started.set()
        others = [rank for rank in range(grid.ranks) if rank != victim]
        results = processes.wait(40, ranks=others)
    assert killed, "the victim did not come so far"
    for result in results:
        assert result.value is not None, result.describe()
        kind, rank, text, at = result.value
        assert kind == "PeerFailedError", result.describe()
        assert rank == victim, text
        assert text.startswith(f"rank {victim} "), text
        assert at - killed[0] < DEATH_S, text


# One death before anything was found out, one amid the ranks of a host, one amid the hosts.
@pytest.mark.parametrize(
    ("grid", "victim", "request_no", "answer"),
    [(THREE, 1, 1, -1), (THREE, 0, -1, 2), (TWO_HOSTS, 2, 3, -1), (TWO_HOSTS, 3, -1, 3)],
)
def test_death_in_init_is_told_by_name(
    grid: Grid, victim: int, request_no: int, answer: int, tmp_path: Path
) -> None:
    kill_in_init(grid, victim, request_no, answer, tmp_path)


def serve_or_join(directory: str) -> tuple[str, int | None, str, float]:
    """Rank 0 serves the store itself, and is killed while it waits for a rank that never comes."""
    rank, address = int(os.environ["LIGHT_RANK"]), Path(directory, "address")
    os.environ["LIGHT_SIZE"] = "3"
    if rank == 0:
        server = _core.StoreServer("127.0.0.1:0", os.environ["LIGHT_SECRET"])
        address.with_suffix(".partial").write_text(server.address)
        address.with_suffix(".partial").rename(address)
    wait_for_file(str(address))
    os.environ["LIGHT_RENDEZVOUS"] = address.read_text()
    return init_seen()


def test_death_of_the_rank_that_serves_the_store_is_noticed(tmp_path: Path) -> None:
    with RankProcesses(serve_or_join, 2, str(tmp_path), env=PATIENT) as processes:
        wait_for_file(str(tmp_path / "address"))
        port = int((tmp_path / "address").read_text().rpartition(":")[2])
        deadline = time.monotonic() + 30
        while not is_connected(processes.pids[1], port) and time.monotonic() < deadline:
            time.sleep(0.01)
        killed = time.monotonic()
        processes.kill(0)
        (result,) = processes.wait(40, ranks=[1])
    assert result.value is not None, result.describe()
    kind, _, text, at = result.value
    assert kind == "PeerFailedError", text
    assert "the store at 127.0.0.1" in text
    assert at - killed < DEATH_S, text


@pytest.mark.parametrize("slow", [0, 3])
def test_init_and_shutdown_at_once_strand_no_slow_rank(slow: int, tmp_path: Path) -> None:
    """Each answer of the store reaches one rank late: what it has still to read must be there."""

    def late(_number: int) -> bool:
        time.sleep(0.05)
        return True

    upstream = tmp_path / "upstream"
    with (
        StoreProxy(upstream, on_answer=late) as proxy,
        RankProcesses(
            init_through,
            4,
            *(proxy.address, str(upstream), slow),
            hosts=TWO_HOSTS.hosts,
            env={"HOROVOD_START_TIMEOUT": "15"},
        ) as processes,
    ):
        results = processes.wait(60)
    processes.check(results)
    assert [result.value[0] for result in results if result.value] == ["joined"] * 4, results


def init_under_limit(victim: int, room: int) -> tuple[str, int | None, str, float]:
    if int(os.environ["LIGHT_RANK"]) == victim:
        limit = len(os.listdir("/proc/self/fd")) + room
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    return init_seen()


@pytest.mark.parametrize(("victim", "room"), [(0, 5), (1, 4), (1, 7)])
def test_who_runs_out_of_descriptors_in_init_says_so_to_all(victim: int, room: int) -> None:
    seen = spawn_ranks(init_under_limit, 3, victim, room, env=PATIENT, timeout_s=60)
    if seen[victim][0] == "joined":
        assert room > 6, seen
        return
    for kind, rank, text, _ in seen:
        assert kind == "EngineError", seen
        assert rank == victim, seen
        assert "Too many open files" in text, seen
    assert seen[2][2].startswith(f"rank {victim}: "), seen


def run_out_of_descriptors(victim: int) -> tuple[str, int | None, str]:
    hvd.init(process_sets="dynamic")
    hvd.allreduce(np.ones(10))
    files = []
    if hvd.rank() == victim:
        with contextlib.suppress(OSError):
            while True:
                files.append(os.open("/dev/null", os.O_RDONLY))
    hvd.barrier()
    try:
        pair = hvd.add_process_set([0, 1])
        if hvd.rank() < 2:
            hvd.allreduce(np.ones(10_000), process_set=pair)  # Not inline: it needs a connection.
        hvd.allreduce(np.ones(10))
    except hvd.HorovodInternalError as error:
        return type(error).__name__, error.rank, str(error)
    finally:
        for file in files:
            os.close(file)
    return "nothing", None, ""


@pytest.mark.parametrize(
    ("hosts", "victim"), [(None, 1), ([0, 1, 2], 0)], ids=["one_host", "three_hosts"]
)
def test_who_runs_out_of_descriptors_later_says_so_to_all(
    hosts: list[int] | None, victim: int
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        seen = spawn_ranks(run_out_of_descriptors, 3, victim, hosts=hosts, timeout_s=60)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for kind, rank, text in seen:
        assert kind == "EngineError", seen
        assert rank == victim, seen
        assert text.startswith(f"rank {victim}: "), seen
        assert "Too many open files" in text, seen


def allocate_too_much(victim: int) -> tuple[str, int | None, str]:
    hvd.init()
    hvd.allreduce(np.ones(10))
    if hvd.rank() == victim:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        room = pages * resource.getpagesize() + (32 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
    try:
        hvd.allgather(np.ones(6 << 20, np.float32))
    except hvd.HorovodInternalError as error:
        return type(error).__name__, error.rank, str(error)
    return "nothing", None, ""


def test_who_cannot_allocate_an_output_says_so_to_all() -> None:
    seen = spawn_ranks(allocate_too_much, 3, 1, timeout_s=60)
    for kind, rank, text in seen:
        assert (kind, rank) == ("EngineError", 1), seen
        assert text.startswith("rank 1: cannot allocate"), seen


def stats_beside(seconds: float) -> tuple[int, float]:
    """Returns how often another thread ran, and the longest pause, while this one asked stats()."""
    hvd.init()
    over = threading.Event()
    stamps = [time.monotonic()]

    def tick() -> None:
        while not over.is_set():
            stamps.append(time.monotonic())
            time.sleep(0.001)

    def wait() -> None:
        hvd.barrier()

    mark("running")
    if hvd.rank() == 0:
        time.sleep(seconds)
        hvd.barrier()
        return 1, 0.0
    threads = [threading.Thread(target=wait), threading.Thread(target=tick)]
    for thread in threads:
        thread.start()
    while threads[0].is_alive():
        hvd.stats()
    over.set()
    threads[1].join()
    pauses = np.diff(stamps)
    return len(stamps), float(np.sort(pauses)[-3:].min())


def test_stats_lets_other_threads_run() -> None:
    """A thread that waits for an operation drives the engine, for up to 100 ms at a time."""
    count, pause = spawn_ranks(stats_beside, 2, 1.0)[1]
    assert count > 100, (count, pause)
    assert pause < 0.09, (count, pause)
