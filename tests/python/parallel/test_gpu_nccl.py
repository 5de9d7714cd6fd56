"""Arrays in CUDA memory by NCCL, through `import lightcc`: a fake NCCL on the fake driver."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any

import numpy as np
import pytest
from arrays import check_same
from gpu_arrays import FAKE_CUDA, GpuArray, needs_fake_cuda, on_host, use_gpu

import lightcc as hvd
from lightcc.testing import RankProcesses, spawn_ranks

pytestmark = [pytest.mark.multiproc, needs_fake_cuda]

FAKE_NCCL = FAKE_CUDA.parent / "libnccl.so.2"


def with_nccl(size: int, nccl: str = "", **more: str) -> list[dict[str, str]]:
    """Returns the environments of ranks that have a GPU each."""
    return [
        {
            "HOROVOD_GPU_OPERATIONS": "NCCL",
            "LIGHT_NCCL_LIBRARY": str(FAKE_NCCL),
            "LIGHTCC_FAKE_CUDA": f"delay_us=300,bus={rank + 1}",
            "LIGHTCC_FAKE_NCCL": nccl,
            **more,
        }
        for rank in range(size)
    ]


def operations_of_nccl() -> int:
    count: int = ctypes.CDLL("libnccl.so.2").lightcc_fake_nccl_operations()
    return count


def results_are_the_hosts() -> None:
    use_gpu()
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    assert operations_of_nccl() == 0
    for dtype in (np.float32, np.float64, np.float16, np.int32, np.int64, np.uint8):
        x = (np.arange(1000, dtype=np.float64) % 7 + rank).astype(dtype)
        for op in (hvd.Sum, hvd.Min, hvd.Max, hvd.Product):
            check_same(on_host(hvd.allreduce(GpuArray(x), op=op)), hvd.allreduce(x, op=op))
        given = GpuArray(x)
        assert hvd.broadcast_(given, size - 1) is given
        check_same(on_host(given), hvd.broadcast(x, size - 1))
        uneven = x[: 10 * (rank + 1)]
        check_same(on_host(hvd.allgather(GpuArray(uneven))), hvd.allgather(uneven))
        check_same(on_host(hvd.allgather(GpuArray(x))), hvd.allgather(x))
        check_same(
            on_host(hvd.reducescatter(GpuArray(x), op=hvd.Sum)), hvd.reducescatter(x, op=hvd.Sum)
        )
        splits = [100 * (rank + 1)] + [0] * (size - 2) + [50]
        check_same(
            on_host(hvd.alltoall(GpuArray(x[: sum(splits)]), splits)[0]),
            hvd.alltoall(x[: sum(splits)], splits)[0],
        )
    y = np.arange(1000, dtype=np.float32) + rank
    np.testing.assert_allclose(on_host(hvd.allreduce(GpuArray(y))), hvd.allreduce(y), rtol=1e-6)
    assert operations_of_nccl() > 40
    before = operations_of_nccl()
    for other in (y.astype(np.int16), y > 500):
        check_same(
            on_host(hvd.allreduce(GpuArray(other), op=hvd.Max)), hvd.allreduce(other, op=hvd.Max)
        )
    assert operations_of_nccl() == before  # By way of host memory.
    assert hvd.nccl_built() == 21805


@pytest.mark.parametrize("size", [2, 3])
def test_results_are_the_hosts_on_two_lanes(size: int) -> None:
    spawn_ranks(results_are_the_hosts, size, env=with_nccl(size, LIGHT_NUM_STREAMS="2"))


def reduce_until_an_error(victim: int) -> str:
    use_gpu()
    hvd.init()
    arrays: list[Any] = [GpuArray(np.ones(1000, np.float32)) for _ in range(3)]
    for step in range(1000):
        if hvd.rank() == victim and step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            hvd.grouped_allreduce_(arrays, op=hvd.Sum, name=str(step))
        except hvd.HorovodInternalError as error:
            return str(error)
    return "no error"


@pytest.mark.parametrize("hosts", [[0, 0, 0], [0, 0, 1], [0, 0, 1, 1]])
def test_a_killed_rank_is_named_and_nobody_hangs(hosts: list[int]) -> None:
    size = len(hosts)
    # Hosts that are alike make two levels.
    settings = with_nccl(size, LIGHT_2D_ALLREDUCE="1", LIGHT_2D_CHUNK="4096")
    with RankProcesses(reduce_until_an_error, size, 1, env=settings, hosts=hosts) as ranks:
        results = ranks.wait(60)
    for rank in set(range(size)) - {1}:
        assert "rank 1" in str(results[rank].value)


def compress_until_an_error(victim: int) -> str:
    use_gpu()
    hvd.init()
    array: Any = GpuArray(np.ones(3000, np.float32))
    for step in range(1000):
        if hvd.rank() == victim and step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            hvd.allreduce(array, op=hvd.Sum, name="t", compression=hvd.Compression.topk(0.02))
        except hvd.HorovodInternalError as error:
            return str(error)
        assert hvd.stats().nccl_buckets == step + 1
    return "no error"


def test_a_rank_that_is_killed_while_lists_go_by_nccl_is_named() -> None:
    settings = with_nccl(3, LIGHT_NCCL_TOPK="1", LIGHT_TOPK_THRESHOLD="1")
    with RankProcesses(compress_until_an_error, 3, 1, env=settings, hosts=[0, 1, 2]) as ranks:
        results = ranks.wait(60)
    for rank in (0, 2):
        assert "rank 1" in str(results[rank].value)


def test_an_error_of_nccl_ends_the_world_on_all_ranks() -> None:
    settings = with_nccl(2)
    settings[1]["LIGHTCC_FAKE_NCCL"] = "fail=ncclAllReduce:3:7"
    for told in spawn_ranks(reduce_until_an_error, 2, -1, env=settings):
        assert "rank 1: ncclAllReduce: error of the fake NCCL (NCCL error 3)" in told


def init_fails() -> str:
    use_gpu()
    with pytest.raises((ValueError, hvd.HorovodInternalError, hvd.EngineError)) as told:
        hvd.init()
    return str(told.value)


def test_versions_that_differ_are_named() -> None:
    settings = with_nccl(2)
    settings[1]["LIGHTCC_FAKE_NCCL"] = "version=23203"
    for told in spawn_ranks(init_fails, 2, env=settings):
        assert "rank 0 has NCCL 2.18.5, but rank 1 has NCCL 2.32.3" in told


def it_is_staged() -> int:
    use_gpu()
    hvd.init()
    x = np.arange(100, dtype=np.float32)
    check_same(on_host(hvd.allreduce(GpuArray(x), op=hvd.Sum)), hvd.size() * x)
    assert operations_of_nccl() == 0
    return hvd.nccl_built()


def test_a_rank_with_an_old_nccl_or_a_shared_gpu_is_staged() -> None:
    settings = with_nccl(2)
    settings[1]["LIGHTCC_FAKE_NCCL"] = "version=21708"
    assert spawn_ranks(it_is_staged, 2, env=settings) == [21805, 0]
    settings = with_nccl(2)
    settings[1]["LIGHTCC_FAKE_CUDA"] = settings[0]["LIGHTCC_FAKE_CUDA"]
    assert spawn_ranks(it_is_staged, 2, env=settings) == [21805, 21805]
