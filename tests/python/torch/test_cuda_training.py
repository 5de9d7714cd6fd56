"""A residual network trains on device `cuda`, on four ranks as 2 x 2, by NCCL within hosts.

torch is a CPU build, CUDA and NCCL are fakes. This module does not import torch: its ranks do,
after they have made such a device (cuda_torch.py). test_cuda_tensors.py trains by way of the host.
"""

from __future__ import annotations

import pytest
from cuda_torch import build_guard, cuda_torch
from gpu_arrays import FAKE_CUDA, needs_fake_cuda

from lightcc.testing import spawn_ranks

pytestmark = [pytest.mark.multiproc, needs_fake_cuda]


def train_beside_cpu(guard: str) -> dict[str, int]:
    """Trains on `cuda`; losses and parameters are those of `cpu`. Returns what was counted."""
    cuda_torch(guard)
    import gpu_training

    import lightcc.torch as hvd

    hvd.init()
    on_cpu = gpu_training.train("cpu", "cpu", topk=True)
    gpu_training.check_learns(on_cpu)
    trained = gpu_training.train("cuda", "cuda", topk=True)
    gpu_training.check_same(trained, on_cpu)
    gpu_training.check_ranks_agree(trained)
    hvd.shutdown()
    return trained.counted


def test_training_on_cuda_gives_what_cpu_gives() -> None:
    env = [
        {
            "HOROVOD_GPU_OPERATIONS": "NCCL",
            "LIGHT_NCCL_LIBRARY": str(FAKE_CUDA.parent / "libnccl.so.2"),
            "LIGHT_2D_ALLREDUCE": "1",
            "LIGHT_TOPK_THRESHOLD": "2048",
            "LIGHTCC_FAKE_CUDA": f"unified=1,delay_us=100,bus={rank + 1}",
        }
        for rank in range(4)
    ]
    for counted in spawn_ranks(
        train_beside_cpu, 4, build_guard(), env=env, hosts=[0, 0, 1, 1], timeout_s=150
    ):
        assert counted["nccl_two_level_buckets"] > 0
        assert counted["staged_buckets"] == 0
        assert counted["compressed_on_gpu"] > 0
