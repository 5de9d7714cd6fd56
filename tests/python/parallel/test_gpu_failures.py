"""What ranks are told where a GPU fails, on the fakes of the driver and of NCCL."""

from __future__ import annotations

import gpu_failures
import pytest
from gpu_arrays import FAKE_CUDA, needs_fake_cuda

from lightcc.testing import spawn_ranks

pytestmark = [pytest.mark.multiproc, needs_fake_cuda]

DRIVER = str(FAKE_CUDA)


def settings(by_nccl: bool, fake: str) -> list[dict[str, str]]:
    """Returns the environments of two ranks that have a GPU each."""
    nccl = {
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "LIGHT_NCCL_LIBRARY": str(FAKE_CUDA.parent / "libnccl.so.2"),
    }
    return [
        (nccl if by_nccl else {}) | {"LIGHTCC_FAKE_CUDA": f"{fake},bus={rank + 1}"}
        for rank in range(2)
    ]


@pytest.mark.parametrize("by_nccl", [False, True])
def test_an_illegal_access_is_named_on_all_ranks(by_nccl: bool) -> None:
    for fake in ("delay_us=0", "delay_us=2000"):  # Before the next call of the driver, and later.
        told = spawn_ranks(
            gpu_failures.a_kernel_writes_nowhere, 2, DRIVER, 1, env=settings(by_nccl, fake)
        )
        gpu_failures.check_illegal_access(told, 1)


@pytest.mark.parametrize("by_nccl", [False, True])
def test_a_gpu_without_memory_for_an_output_is_named_on_all_ranks(by_nccl: bool) -> None:
    env = settings(by_nccl, "memory_mb=64")
    for told in spawn_ranks(gpu_failures.memory_runs_out, 2, DRIVER, 1, env=env):
        gpu_failures.check_out_of_memory(told)
        assert "rank 1: " in told


def test_memory_that_was_freed_is_refused_and_the_world_goes_on() -> None:
    env = settings(False, "")
    for told in spawn_ranks(gpu_failures.memory_was_freed, 2, DRIVER, env=env):
        assert "is no GPU's" in told
