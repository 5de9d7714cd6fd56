"""Arrays of CuPy, for which a module over the fake driver stands: results of NCCL come later."""

from __future__ import annotations

import ctypes
import importlib
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_arrays import FAKE_CUDA, GpuArray, needs_fake_cuda
from held_nccl import release_later, set_nccl

import lightcc as hvd
from lightcc.testing import spawn_ranks

SITE = str(Path(__file__).parents[1] / "cupy_site")

pytestmark = [pytest.mark.multiproc, needs_fake_cuda]


def prepare() -> Any:
    """Returns CuPy, whose first GPU is the current one."""
    ctypes.CDLL(str(FAKE_CUDA))  # Whoever opens "libcuda.so.1" later gets this one.
    sys.path.insert(0, SITE)
    cupy = importlib.import_module("cupy")
    cupy.cuda.Device(0).use()
    hvd.init()
    return cupy


def the_current_stream_waits_and_the_host_does_not() -> None:
    cupy = prepare()
    x = cupy.ones(1000, "float32")
    set_nccl("behind=0")
    hvd.allreduce_(x, op=hvd.Sum)
    total = hvd.allreduce(x, op=hvd.Sum)
    assert hvd.stats().nccl_unfinished_buckets == 2
    assert isinstance(total, cupy.ndarray)
    copy = cupy.ndarray(1000, "float32")
    cupy.copyto(copy, total)  # In the order of the current stream.
    released = threading.Event()
    thread = release_later(released)
    values = cupy.asnumpy(copy)
    assert released.is_set()
    thread.join()
    assert (values == hvd.size() ** 2).all()
    hvd.shutdown()


def what_is_no_array_of_cupy_is_waited_for_on_the_host() -> None:
    cupy = prepare()
    x, other = cupy.ones(10, "float32"), GpuArray(np.ones(10, np.float32))
    del cupy.cuda.get_current_stream  # Nor are arrays of an old release.
    for array in (x, other):
        set_nccl("behind=0")
        released = threading.Event()
        thread = release_later(released)
        hvd.allreduce_(array, op=hvd.Sum)
        assert released.is_set()
        thread.join()
        assert hvd.stats().nccl_unfinished_buckets == 0
    hvd.shutdown()


@pytest.mark.parametrize(
    "check",
    [
        the_current_stream_waits_and_the_host_does_not,
        what_is_no_array_of_cupy_is_waited_for_on_the_host,
    ],
)
def test_cupy(check: Any) -> None:
    environments = [
        {
            "HOROVOD_GPU_OPERATIONS": "NCCL",
            "LIGHT_NCCL_LIBRARY": str(FAKE_CUDA.parent / "libnccl.so.2"),
            "LIGHTCC_FAKE_CUDA": f"bus={rank + 1}",
        }
        for rank in range(2)
    ]
    spawn_ranks(check, 2, env=environments)
