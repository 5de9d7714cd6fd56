"""A residual network trains on device `cuda`, on four ranks as 2 x 2, whatever carries gradients.

torch is a CPU build, CUDA and NCCL are fakes. This module does not import torch: its ranks do,
after they have made such a device (cuda_torch.py).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from cuda_torch import build_guard, cuda_torch, problems_of
from gpu_arrays import FAKE_CUDA, needs_fake_cuda

from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from gpu_training import Trained

pytestmark = [pytest.mark.multiproc, needs_fake_cuda]

#: What device `cpu` gave, by settings and name.
_on_cpu: dict[tuple[str, bool], Trained] = {}
NCCL = {"HOROVOD_GPU_OPERATIONS": "NCCL"}
TWO_LEVELS = {"LIGHT_2D_ALLREDUCE": "1"}
FLAT = {"LIGHT_2D_ALLREDUCE": "0"}


def train_beside_cpu(topk: bool, settings: dict[str, str]) -> dict[str, int]:
    """Trains on `cuda` in a world of these settings; losses and parameters are those of `cpu`.

    Returns what was counted meanwhile.
    """
    import gpu_training

    import lightcc.torch as hvd

    os.environ.update(settings)
    hvd.init()
    kind = (settings["LIGHT_2D_ALLREDUCE"], topk)
    if kind not in _on_cpu:
        _on_cpu[kind] = gpu_training.train("cpu", "cpu", topk=topk)
        gpu_training.check_learns(_on_cpu[kind])
    trained = gpu_training.train("cuda", "cuda", topk=topk)
    gpu_training.check_same(trained, _on_cpu[kind])
    gpu_training.check_ranks_agree(trained)
    hvd.shutdown()
    for name in settings:
        del os.environ[name]
    return trained.counted


def dense_by_way_of_the_host() -> None:
    counted = train_beside_cpu(False, TWO_LEVELS)
    assert counted["staged_buckets"] > 0
    assert counted["nccl_buckets"] == counted["compressed_on_gpu"] == 0


def dense_by_nccl() -> None:
    counted = train_beside_cpu(False, NCCL | FLAT)
    assert counted["nccl_buckets"] > 0
    assert counted["nccl_two_level_buckets"] == counted["staged_buckets"] == 0


def dense_by_nccl_within_hosts() -> None:
    counted = train_beside_cpu(False, NCCL | TWO_LEVELS)
    assert counted["nccl_two_level_buckets"] > 0
    assert counted["staged_buckets"] == 0


def topk_by_nccl_within_hosts() -> None:
    counted = train_beside_cpu(True, NCCL | TWO_LEVELS)
    assert counted["compressed_on_gpu"] > 0
    assert counted["nccl_two_level_buckets"] > 0
    assert counted["staged_buckets"] == 0


CHECKS = [
    dense_by_way_of_the_host,
    dense_by_nccl,
    dense_by_nccl_within_hosts,
    topk_by_nccl_within_hosts,
]


def run_checks(guard: str) -> dict[str, str]:
    cuda_torch(guard)
    return problems_of(CHECKS)


@pytest.fixture(scope="module")
def problems() -> list[dict[str, str]]:
    """What each rank found."""
    from_gpus = [
        {
            "LIGHTCC_FAKE_CUDA": f"unified=1,delay_us=100,bus={rank + 1}",
            "LIGHT_NCCL_LIBRARY": str(FAKE_CUDA.parent / "libnccl.so.2"),
            "LIGHT_TOPK_THRESHOLD": "2048",
        }
        for rank in range(4)
    ]
    return spawn_ranks(
        run_checks, 4, build_guard(), env=from_gpus, hosts=[0, 0, 1, 1], timeout_s=150
    )


@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_training_on_cuda_gives_what_cpu_gives(problems: list[dict[str, str]], name: str) -> None:
    for found in problems:
        assert found.get(name, "did not run: an earlier check failed") == ""
