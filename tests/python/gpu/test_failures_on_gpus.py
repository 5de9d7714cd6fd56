"""What ranks are told where a GPU fails: `make test-gpu`. Two ranks may share one.

A GPU that has failed is of no use any more, so each test has ranks of its own.
"""

from __future__ import annotations

import ctypes
import re
from typing import Any

import gpu_nccl
import numpy as np
import pytest
from arrays import check_same
from gpu_arrays import DRIVER, Gpu, GpuArray, on_host, use_gpu

import lightcc as hvd
from lightcc.testing import spawn_ranks

pytestmark = pytest.mark.gpu

#: A kernel that writes to the address that it is given. The fake driver knows it by its name.
WRITE_NOWHERE = b"""
.version 7.0
.target sm_70
.address_size 64

.visible .entry write_nowhere(
    .param .u64 write_nowhere_param_0
)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;

    ld.param.u64 %rd1, [write_nowhere_param_0];
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
""".lstrip()


def write_nowhere(gpu: Gpu) -> None:
    """Launches that kernel on the GPU's stream. The driver tells of it at some later call."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    gpu.call("cuModuleLoadDataEx", ctypes.byref(module), WRITE_NOWHERE, 0, None, None)
    gpu.call("cuModuleGetFunction", ctypes.byref(function), module, b"write_nowhere")
    address = ctypes.c_uint64(0)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(address))
    stream = ctypes.c_void_p(gpu.stream)
    gpu.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, None)


def reduce_until_an_error(array: Any) -> str:
    """Reduces an array again and again; returns what this rank is told at last."""
    try:
        for step in range(1000):
            hvd.allreduce(array, op=hvd.Sum, name=f"after {step}")
    except (hvd.HorovodInternalError, ValueError) as error:
        return str(error)
    return "no error"


def a_kernel_writes_nowhere(victim: int) -> str:
    """Has a kernel of one rank make an illegal access, behind which its stream has an array."""
    gpu = use_gpu(DRIVER)
    hvd.init()
    x = np.arange(1000, dtype=np.float32)
    array: Any = GpuArray(x, stream=gpu.stream)
    check_same(on_host(hvd.allreduce(array, op=hvd.Sum, name="before")), hvd.size() * x)
    if hvd.rank() == victim:
        write_nowhere(gpu)
    return reduce_until_an_error(array)


@pytest.mark.parametrize(("victim", "by_nccl"), [(0, False), (1, False), (1, True)])
def test_an_illegal_access_is_named_on_all_ranks(victim: int, by_nccl: bool) -> None:
    try:
        environments = gpu_nccl.with_nccl(gpu_nccl.visible_gpus(), 2) if by_nccl else None
    except NotImplementedError as error:
        pytest.skip(str(error))
    told = spawn_ranks(a_kernel_writes_nowhere, 2, victim, env=environments, fresh=True)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in told[victim], told
    # An error that the rank gets where it hands an array over is its own. Then its end ends the
    # others.
    for text in told:
        assert f"rank {victim}" in text or text is told[victim], told


def memory_runs_out(victim: int) -> str:
    """Takes all memory of one rank's GPU, and gathers what has no place there any more."""
    gpu = use_gpu(DRIVER)
    hvd.init()
    array: Any = GpuArray(np.ones(1 << 19, np.float32))
    kept = hvd.allgather(array, name="before")  # Else its memory would serve once more.
    if hvd.rank() == victim:
        take_all_memory(gpu)
    hvd.barrier()
    try:
        hvd.allgather(array, name="after")
        hvd.barrier()  # This rank's output may be there before another rank fails.
    except hvd.HorovodInternalError as error:
        return str(error)
    del kept
    return "no error"


def take_all_memory(gpu: Gpu) -> None:
    """Allocates until there is no place for 4 KiB."""
    out_of_memory = 2
    size = 1 << 40
    while size >= 4096:
        address = ctypes.c_uint64()
        code = gpu.driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
        assert code in (0, out_of_memory), code
        if code == out_of_memory:
            size //= 2


def test_a_gpu_without_memory_for_an_output_is_named_on_all_ranks() -> None:
    for told in spawn_ranks(memory_runs_out, 2, 1, fresh=True):
        assert re.search(
            r"rank \d: cannot allocate \d+ bytes for the output of 'allgather", told
        ), told
        assert "cuMemAllocAsync: CUDA_ERROR_OUT_OF_MEMORY" in told
