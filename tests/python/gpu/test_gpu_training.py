"""A residual network trains on real GPUs: `make test-gpu`.

Its gradients travel by way of the host and by NCCL, from two processes. These share a GPU in the
former case, and where there is one alone. Beside it the same network trains on the same GPU, and
each gradient is copied to the host and all-reduced there, as the reference. This module does not
import torch: its ranks do (`gpu_training`).
"""

from __future__ import annotations

import os

import gpu_held
import gpu_nccl
import pytest

import lightcc
from lightcc.testing import spawn_ranks

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(330)]  # Ranks import torch.

#: cuBLAS adds up in one order then. Tensors from so many bytes on are compressed.
ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "LIGHT_TOPK_THRESHOLD": "2048"}


def train_on_gpu(by_nccl: bool) -> None:
    """Trains dense, and by top-k with momentum correction."""
    import gpu_training

    import lightcc.torch as hvd

    gpu_training.prefer_one_order()
    hvd.init()
    device = gpu_training.use_gpu()
    for topk in (False, True):
        trained = gpu_training.train(device, "gpu", topk=topk)
        gpu_training.check_ranks_agree(trained)
        gpu_training.check_learns(trained)
        gpu_training.check_close(trained, gpu_training.train("cpu", "cpu", topk=topk))
        reference = gpu_training.train_by_host(device, "by host", topk=topk)
        assert reference.counted["nccl_buckets"] == reference.counted["compressed_on_gpu"] == 0
        if by_nccl:  # Which may round a sum in another way.
            gpu_training.check_close(trained, reference)
        else:
            gpu_training.check_same(trained, reference)
        assert (trained.counted["compressed_on_gpu"] > 0) == topk
        assert (trained.counted["nccl_buckets"] > 0) == by_nccl
        if not topk:
            assert (trained.counted["staged_buckets"] > 0) != by_nccl
    hvd.shutdown()


@pytest.mark.usefixtures("num_gpus")
def test_two_processes_on_one_gpu_train_as_with_copies_on_the_host() -> None:
    # Each is a host of its own, whose first GPU is the same one.
    spawn_ranks(train_on_gpu, 2, False, env=ENVIRONMENT, hosts=[0, 1], fresh=True, timeout_s=300)


@pytest.fixture(scope="module")
def gpus(num_gpus: int) -> list[str]:
    """Returns the GPUs that ranks may be given; skips where NCCL cannot use them."""
    del num_gpus
    if not lightcc.nccl_built():
        pytest.skip("there is no NCCL of use: see python -m lightcc.doctor")
    return gpu_nccl.visible_gpus()


def test_two_ranks_train_by_nccl(gpus: list[str]) -> None:
    settings = gpu_nccl.with_nccl(gpus, 2, **ENVIRONMENT)
    spawn_ranks(train_on_gpu, 2, True, env=settings, hosts=[0, 1], fresh=True, timeout_s=300)


def test_the_host_goes_on_while_the_gpu_is_held(gpus: list[str]) -> None:
    if "LIGHTCC_FAKE_CUDA" in os.environ:
        pytest.skip("operators of the fake device wait for its stream on the host")
    settings = gpu_nccl.with_nccl(gpus, 2)
    found = spawn_ranks(
        gpu_held.steps_while_the_gpu_is_held,
        2,
        "libcuda.so.1",
        60.0,
        env=settings,
        hosts=[0, 1],
        fresh=True,
        timeout_s=300,
    )
    assert found == [True] * 2
