"""What ranks are told where a real GPU fails: `make test-gpu`. Two ranks may share one."""

from __future__ import annotations

import gpu_failures
import gpu_nccl
import pytest

from lightcc.testing import spawn_ranks

pytestmark = pytest.mark.gpu

DRIVER = "libcuda.so.1"


@pytest.mark.parametrize("victim", [0, 1])
def test_an_illegal_access_is_named_on_all_ranks(victim: int) -> None:
    function = gpu_failures.a_kernel_writes_nowhere
    gpu_failures.check_illegal_access(spawn_ranks(function, 2, DRIVER, victim, fresh=True), victim)


def test_an_illegal_access_beside_nccl_is_named_on_all_ranks() -> None:
    try:
        environments = gpu_nccl.with_nccl(gpu_nccl.visible_gpus(), 2)
    except NotImplementedError as error:
        pytest.skip(str(error))
    function = gpu_failures.a_kernel_writes_nowhere
    told = spawn_ranks(function, 2, DRIVER, 1, env=environments, fresh=True)
    gpu_failures.check_illegal_access(told, 1)


def test_a_gpu_without_memory_for_an_output_is_named_on_all_ranks() -> None:
    for told in spawn_ranks(gpu_failures.memory_runs_out, 2, DRIVER, 1, fresh=True):
        gpu_failures.check_out_of_memory(told)
