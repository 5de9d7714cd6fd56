"""Arrays in CUDA memory by NCCL, through `import lightcc`: a fake NCCL on the fake driver."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import gpu_nccl
import pytest
from gpu_arrays import FAKE_CUDA, needs_fake_cuda, use_gpu

import lightcc as hvd
from lightcc.testing import RankProcesses, spawn_ranks

if TYPE_CHECKING:
    from pathlib import Path

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
    settings = with_nccl(size, "version=22703", LIGHT_NUM_STREAMS="2", LIGHT_NCCL_BUFFER="1M")
    spawn_ranks(every_collective_goes_by_nccl, size, env=settings)


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_floats_in_rank_order_have_the_hosts_bits(size: int, tmp_path: Path) -> None:
    # The fake adds in the reverse order where it is let.
    path = tmp_path / "timeline.json"
    more = {"LIGHT_NCCL_RANK_ORDER": "1", "LIGHT_GPU_CHUNK": "64K", "HOROVOD_TIMELINE": str(path)}
    settings = with_nccl(size, "backwards=1", **more)
    spawn_ranks(gpu_nccl.floats_in_rank_order_have_the_hosts_bits, size, DRIVER, env=settings)
    assert "NCCL_KERNEL" in path.read_text()


def test_ranks_that_differ_in_the_order_are_named() -> None:
    settings = with_nccl(2, LIGHT_NCCL_RANK_ORDER="1")
    settings[1]["LIGHT_NCCL_RANK_ORDER"] = "0"
    for told in spawn_ranks(init_fails, 2, env=settings):
        assert "LIGHT_NCCL_RANK_ORDER" in told


def test_lists_of_topk_go_by_nccl_with_the_hosts_bits() -> None:
    settings = with_nccl(2, LIGHT_NCCL_TOPK="1", LIGHT_TOPK_THRESHOLD="1")
    function = gpu_nccl.lists_of_topk_have_the_hosts_bits
    spawn_ranks(function, 2, DRIVER, False, env=settings, hosts=[0, 1])


def test_two_levels_have_nccl_between_hosts_too() -> None:
    settings = with_nccl(
        4,
        "version=22602",
        LIGHT_2D_ALLREDUCE="1",
        LIGHT_2D_CHUNK="64K",
        LIGHT_2D_INTER="nccl",
        NCCL_LAUNCH_ORDER_IMPLICIT="1",
    )
    function = gpu_nccl.chunks_go_by_nccl_between_hosts
    spawn_ranks(function, 4, DRIVER, env=settings, hosts=[0, 0, 1, 1])


@pytest.mark.parametrize(
    ("hosts", "inter"),
    [([0, 0, 0], "host"), ([0, 0, 1], "host"), ([0, 0, 1, 1], "host"), ([0, 0, 1, 1], "nccl")],
)
def test_a_killed_rank_is_named_and_nobody_hangs(hosts: list[int], inter: str) -> None:
    size = len(hosts)
    # Hosts that are alike make two levels.
    settings = with_nccl(size, LIGHT_2D_ALLREDUCE="1", LIGHT_2D_CHUNK="4096", LIGHT_2D_INTER=inter)
    with RankProcesses(
        gpu_nccl.reduce_until_an_error, size, DRIVER, 1, env=settings, hosts=hosts
    ) as ranks:
        results = ranks.wait(60)
    for rank in set(range(size)) - {1}:
        assert "rank 1" in str(results[rank].value)


def test_a_rank_that_is_killed_while_lists_go_by_nccl_is_named() -> None:
    settings = with_nccl(3, LIGHT_NCCL_TOPK="1", LIGHT_TOPK_THRESHOLD="1")
    with RankProcesses(
        gpu_nccl.compress_until_an_error, 3, DRIVER, 1, env=settings, hosts=[0, 1, 2]
    ) as ranks:
        results = ranks.wait(60)
    for rank in (0, 2):
        assert "rank 1" in str(results[rank].value)


def test_an_error_of_nccl_ends_the_world_on_all_ranks() -> None:
    settings = with_nccl(2)
    settings[1]["LIGHTCC_FAKE_NCCL"] = "fail=ncclAllReduce:3:7"
    for told in spawn_ranks(gpu_nccl.reduce_until_an_error, 2, DRIVER, -1, env=settings):
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
