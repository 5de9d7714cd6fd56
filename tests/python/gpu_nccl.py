"""What ranks do with arrays in CUDA memory by NCCL: on the fakes, or on real GPUs.

Each function is given the driver's file, and is called on all ranks. Results are compared with
those of host memory: small integers, so that NCCL may add in any order.
"""

from __future__ import annotations

import importlib
import os
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
from arrays import check_same, pattern
from gpu_arrays import GpuArray, on_host, use_gpu
from gpu_operations import ASYNCHRONOUS, NUMBERS_ALONE, check_equal

import lightcc as hvd
from lightcc import _core
from lightcc._nccl_file import nccl_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrays import Array

#: That NCCL reduces. The array interface has no word for bfloat16.
INTEGERS = [np.dtype(name) for name in ("uint8", "int8", "int32", "int64")]
FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64")]
ROWS = 600


def visible_gpus() -> list[str]:
    """Returns the GPUs as CUDA_VISIBLE_DEVICES names them.

    Raises:
        NotImplementedError: There is none, or no NCCL; the text says why.
    """
    count = len(_core.find_gpus()["gpus"])
    _core.find_nccl(nccl_file())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[:count] if visible else [str(index) for index in range(count)]


def with_nccl(gpus: list[str], size: int, **more: str) -> list[dict[str, str]]:
    """Returns the environments of ranks, each with a GPU that NCCL lets it have."""
    environments = []
    for rank in range(size):
        own = {"HOROVOD_GPU_OPERATIONS": "NCCL", "CUDA_VISIBLE_DEVICES": gpus[0], **more}
        if size <= len(gpus):
            own["CUDA_VISIBLE_DEVICES"] = gpus[rank]
        elif size > 1:  # By sockets: a network card might not reach itself.
            own |= {"NCCL_HOSTID": f"rank-{rank}", "NCCL_IB_DISABLE": "1"}
        environments.append(own)
    return environments


def check_by_nccl(run: Callable[[Any], Any], x: Array, what: object) -> None:
    """Raises AssertionError unless NCCL carries an operation, with the result of host memory."""
    expected = run(x.copy())
    before = hvd.stats()
    result = on_host(run(GpuArray(x)))
    after = hvd.stats()
    assert after.nccl_buckets > before.nccl_buckets, what
    assert after.staged_buckets == before.staged_buckets, what
    check_equal(result, expected, what)


def every_collective_goes_by_nccl(driver: str) -> None:
    """Compares every operation and dtype that NCCL carries, and a set of one rank."""
    use_gpu(driver)
    hvd.init(process_sets="dynamic")
    assert hvd.nccl_built() >= 22005
    for dtype in [*INTEGERS, *FLOATS]:
        # Factors are powers of two, or of sums that have few bits: nobody rounds.
        operations = ASYNCHRONOUS | NUMBERS_ALONE
        if dtype in INTEGERS:  # Means of which go by way of the host.
            del operations["average, scaled"], operations["grouped_reducescatter"]
        for name, start in operations.items():

            def run(x: Any, start: Callable[[Any], Any] = start) -> Any:
                return hvd.synchronize(start(x))

            check_by_nccl(run, pattern(dtype, (ROWS,), hvd.rank()), (name, dtype))
    x = pattern(np.dtype("float32"), (10 * (hvd.rank() + 1),), hvd.rank())
    check_by_nccl(lambda x: hvd.allgather(x, name="v"), x, "allgather, uneven")
    last = hvd.add_process_set([hvd.size() - 1]) if hvd.size() > 1 else hvd.global_process_set
    if last.included():
        check_by_nccl(lambda x: hvd.allreduce(x, name="s", process_set=last), x, "a set")
    hvd.barrier()
    hvd.shutdown()


def a_held_stream_does_not_hold_the_host(driver: str) -> None:
    """Reduces arrays of CuPy behind what the GPU waits for."""
    cupy: Any = importlib.import_module("cupy")
    gpu = use_gpu(driver)
    cupy.cuda.Device(0).use()
    hvd.init()
    x = cupy.ones(1000, "float32")
    hvd.allreduce_(x, op=hvd.Sum, name="first")
    assert (cupy.asnumpy(x) == hvd.size()).all()
    hvd.barrier()
    word = gpu.hold(cupy.cuda.get_current_stream().ptr)
    hvd.allreduce_(x, op=hvd.Sum, name="second")
    total = hvd.allreduce(x, op=hvd.Sum, name="third")
    assert hvd.stats().nccl_unfinished_buckets == 2
    word.value = 1
    assert (cupy.asnumpy(total) == hvd.size() ** 3).all()
    hvd.shutdown()


def chunks_go_by_nccl_within_hosts(driver: str) -> None:
    """Reduces on two levels: NCCL within hosts, lightcc's transport between them."""
    use_gpu(driver)
    hvd.init()
    for dtype in FLOATS:
        x = pattern(dtype, (9001,), hvd.rank())
        before = hvd.stats().nccl_two_level_buckets
        check_by_nccl(lambda x: hvd.allreduce(x, op=hvd.Sum, name="r"), x, dtype)
        assert hvd.stats().nccl_two_level_buckets > before
    hvd.shutdown()


def ranks_of_one_gpu_are_staged(driver: str) -> int:
    """Reduces by way of host memory, as NCCL would refuse; returns the NCCL that there is."""
    use_gpu(driver)
    hvd.init()
    x = np.arange(100, dtype=np.float32)
    check_same(on_host(hvd.allreduce(GpuArray(x), op=hvd.Sum)), hvd.size() * x)
    assert hvd.stats().nccl_buckets == 0
    assert hvd.stats().staged_buckets == 1
    return hvd.nccl_built()


def reduce_until_an_error(driver: str, victim: int) -> str:
    """Reduces groups by NCCL until a rank kills itself; returns what the others are told."""
    use_gpu(driver)
    hvd.init()
    arrays: list[Any] = [GpuArray(np.ones(1000, np.float32)) for _ in range(3)]
    for step in range(1000):
        if hvd.rank() == victim and step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            hvd.grouped_allreduce_(arrays, op=hvd.Sum, name=str(step))
        except hvd.HorovodInternalError as error:
            return str(error)
        assert hvd.stats().nccl_buckets == step + 1
    return "no error"
