"""Arrays of real GPUs by a real NCCL: `make test-gpu`.

Where there are fewer GPUs than ranks, all ranks share the first one, and each has an `NCCL_HOSTID`
of its own. So NCCL takes them for hosts, and sends by its network what they reduce.
"""

from __future__ import annotations

import importlib.util

import gpu_nccl
import pytest

from lightcc.testing import RankProcesses, spawn_ranks

pytestmark = pytest.mark.gpu

DRIVER = "libcuda.so.1"


@pytest.fixture(scope="module")
def gpus() -> list[str]:
    """Returns the GPUs that ranks may be given; skips where NCCL cannot use them."""
    try:
        return gpu_nccl.visible_gpus()
    except NotImplementedError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("size", [1, 2])
def test_every_collective_goes_by_nccl(gpus: list[str], size: int) -> None:
    spawn_ranks(
        gpu_nccl.every_collective_goes_by_nccl,
        size,
        DRIVER,
        env=gpu_nccl.with_nccl(gpus, size),
        fresh=True,
    )


def test_two_levels_have_nccl_within_hosts(gpus: list[str]) -> None:
    environments = gpu_nccl.with_nccl(gpus, 4, LIGHT_2D_ALLREDUCE="1")
    function = gpu_nccl.chunks_go_by_nccl_within_hosts
    spawn_ranks(function, 4, DRIVER, env=environments, hosts=[0, 0, 1, 1], fresh=True)


def test_a_held_stream_does_not_hold_the_host(gpus: list[str]) -> None:
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    function = gpu_nccl.a_held_stream_does_not_hold_the_host
    spawn_ranks(function, 2, DRIVER, env=gpu_nccl.with_nccl(gpus, 2), fresh=True)


def test_two_ranks_of_one_gpu_are_staged(gpus: list[str]) -> None:
    same = {"HOROVOD_GPU_OPERATIONS": "NCCL", "CUDA_VISIBLE_DEVICES": gpus[0]}
    function = gpu_nccl.ranks_of_one_gpu_are_staged
    assert all(spawn_ranks(function, 2, DRIVER, env=same, fresh=True))


@pytest.mark.parametrize(
    ("hosts", "more"),
    [([0, 0], {}), ([0, 0, 1, 1], {"LIGHT_2D_ALLREDUCE": "1"})],
    ids=["flat", "two levels"],
)
def test_a_killed_rank_is_named_and_nobody_hangs(
    gpus: list[str], hosts: list[int], more: dict[str, str]
) -> None:
    size = len(hosts)
    environments = gpu_nccl.with_nccl(gpus, size, **more)
    with RankProcesses(
        gpu_nccl.reduce_until_an_error, size, DRIVER, 1, env=environments, hosts=hosts, fresh=True
    ) as ranks:
        results = ranks.wait(100)
    for rank in set(range(size)) - {1}:
        assert "rank 1" in str(results[rank].value), results[rank]
