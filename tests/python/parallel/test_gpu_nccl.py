"""Arrays in CUDA memory by NCCL, through `import lightcc`: a fake NCCL on the fake driver."""

from __future__ import annotations

import ctypes

import gpu_nccl
import pytest
from gpu_arrays import FAKE_CUDA, needs_fake_cuda

from lightcc.testing import RankProcesses, spawn_ranks

pytestmark = [pytest.mark.multiproc, needs_fake_cuda]

DRIVER = str(FAKE_CUDA)
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


def every_collective_goes_by_nccl() -> None:
    gpu_nccl.every_collective_goes_by_nccl(DRIVER)
    assert ctypes.CDLL("libnccl.so.2").lightcc_fake_nccl_operations() > 80


@pytest.mark.parametrize("size", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_every_collective_goes_by_nccl(size: int) -> None:
    # On two lanes.
    settings = with_nccl(size, "version=22703", LIGHT_NUM_STREAMS="2")
    spawn_ranks(every_collective_goes_by_nccl, size, env=settings)


@pytest.mark.parametrize("hosts", [[0, 0, 1], [0, 0, 1, 1]])
def test_a_killed_rank_is_named_and_nobody_hangs(hosts: list[int]) -> None:
    size = len(hosts)
    # Hosts that are alike make two levels.
    settings = with_nccl(size, LIGHT_2D_ALLREDUCE="1", LIGHT_2D_CHUNK="4096")
    with RankProcesses(
        gpu_nccl.reduce_until_an_error, size, DRIVER, 1, env=settings, hosts=hosts
    ) as ranks:
        results = ranks.wait(60)
    for rank in set(range(size)) - {1}:
        assert "rank 1" in str(results[rank].value)


def test_a_rank_with_an_old_nccl_or_a_shared_gpu_is_staged() -> None:
    settings = with_nccl(2)
    settings[1]["LIGHTCC_FAKE_NCCL"] = "version=21708"
    assert spawn_ranks(gpu_nccl.ranks_of_one_gpu_are_staged, 2, DRIVER, env=settings) == [21805, 0]
    settings = with_nccl(2)
    settings[1]["LIGHTCC_FAKE_CUDA"] = settings[0]["LIGHTCC_FAKE_CUDA"]
    assert spawn_ranks(gpu_nccl.ranks_of_one_gpu_are_staged, 2, DRIVER, env=settings) == [
        21805,
        21805,
    ]
