"""What ranks do with arrays in CUDA memory by NCCL: on the fakes, or on real GPUs.

Each function is given the driver's file, and is called on all ranks. Results are compared with
those of host memory: small integers, so that NCCL may add in any order.
"""

from __future__ import annotations

import ctypes
import os
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
from arrays import BFLOAT16, FLOATS, check_same, pattern
from gpu_arrays import GpuArray, on_host, use_gpu

import lightcc as hvd
from lightcc import _core
from lightcc._nccl_file import nccl_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrays import Array

#: That NCCL reduces. It has neither of the others, which go by way of the host.
INTEGERS = [np.dtype(name) for name in ("uint8", "int8", "int32", "int64")]
NOT_OF_NCCL = [np.dtype(name) for name in ("uint16", "int16", "bool")]
ROWS = 600

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class _DLManagedTensor(ctypes.Structure):
    """The struct of dlpack.h, with the tensor's members in line."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class BFloat16Array:
    """A one-dimensional array of bfloat16, for which the array interface has no word."""

    def __init__(self, values: Array) -> None:
        """Copies `values`."""
        self._memory = GpuArray(values.view(np.int16))
        self._shape = (ctypes.c_int64 * 1)(values.size)
        self._tensor = _DLManagedTensor(data=self._memory.address, device=(2, 0), ndim=1, bits=16)
        self._tensor.code = 4  # kDLBfloat
        self._tensor.lanes = 1
        self._tensor.shape = self._shape

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, **_: Any) -> Any:
        return _new_capsule(ctypes.addressof(self._tensor), b"dltensor", None)


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


def on_gpu(values: Array) -> Any:
    """Returns a copy in CUDA memory."""
    return BFloat16Array(values) if values.dtype == BFLOAT16 else GpuArray(values)


def check_by_nccl(run: Callable[[Any], Any], x: Array, what: object, by_nccl: bool = True) -> None:
    """Raises AssertionError unless NCCL carries an operation, with the result of host memory.

    Not `by_nccl`: it goes by way of the host.
    """
    expected = run(x.copy())
    before = hvd.stats()
    result = on_host(run(on_gpu(x)))
    after = hvd.stats()
    assert (after.nccl_buckets > before.nccl_buckets) == by_nccl, what
    assert (after.staged_buckets > before.staged_buckets) != by_nccl, what
    check_same(result, expected, what)


def reductions(dtype: np.dtype[Any]) -> dict[str, Callable[[Any], Any]]:
    """Returns those that NCCL does for a dtype. Averages and factors are of floats."""

    def reduced(op: int) -> Callable[[Any], Any]:
        return lambda x: hvd.allreduce(x, op=op, name="r")

    found = {
        "sum": reduced(hvd.Sum),
        "min": reduced(hvd.Min),
        "max": reduced(hvd.Max),
        "product": reduced(hvd.Product),
    }
    found["shard of the sum"] = lambda x: hvd.reducescatter(x, op=hvd.Sum, name="c")
    if dtype in FLOATS:
        # Powers of two: factors and means are rounded elsewhere than on the host.
        scales: dict[str, Any] = {"prescale_factor": 0.5, "postscale_factor": 4.0}
        found["scaled"] = lambda x: hvd.allreduce(x, op=hvd.Sum, name="f", **scales)
        found["shard, scaled"] = lambda x: hvd.reducescatter(x, op=hvd.Sum, name="g", **scales)
        if hvd.size() in (1, 2, 4):
            found["average"] = lambda x: hvd.allreduce(x, op=hvd.Average, name="m")
            found["shard of the average"] = lambda x: hvd.reducescatter(x, name="n")
    return found


def reductions_by_the_host(dtype: np.dtype[Any]) -> dict[str, Callable[[Any], Any]]:
    """Returns those of a dtype that NCCL does not do."""

    def reduced(op: int, **factors: Any) -> Callable[[Any], Any]:
        return lambda x: hvd.allreduce(x, op=op, name="k", **factors)

    found = {"min": hvd.Min, "max": hvd.Max, "product": hvd.Product}
    if dtype == np.dtype("bool"):
        return {name: reduced(op) for name, op in found.items()}
    scales: dict[str, Any] = {"prescale_factor": 1.7, "postscale_factor": 0.3}
    scaled = {f"{name}, scaled": reduced(op, **scales) for name, op in found.items()}
    if dtype in FLOATS:
        return scaled
    scaled["sum, scaled"] = reduced(hvd.Sum, **scales)
    scaled["average"] = reduced(hvd.Average)
    scaled["shard of the average"] = lambda x: hvd.reducescatter(x, name="l")
    if dtype in INTEGERS:
        return scaled
    scaled["sum"] = reduced(hvd.Sum)
    scaled["shard of the sum"] = lambda x: hvd.reducescatter(x, op=hvd.Sum, name="q")
    return scaled | {name: reduced(op) for name, op in found.items()}


def moves() -> dict[str, Callable[[Any], Any]]:
    """Returns operations that move elements, of any dtype."""
    rank, size = hvd.rank(), hvd.size()
    uneven = [10 * (rank + 1)] * (size - 1)
    uneven.append(ROWS - sum(uneven))
    return {
        "allgather": lambda x: hvd.allgather(x, name="a"),
        "broadcast": lambda x: hvd.broadcast(x, size - 1, name="b"),
        "alltoall": lambda x: hvd.alltoall(x, name="t"),
        "alltoall, uneven": lambda x: hvd.alltoall(x, uneven, name="u")[0],
    }


def every_collective_goes_by_nccl(driver: str) -> None:
    """Compares every operation and dtype that NCCL carries, groups, and a set of one rank.

    What it does not reduce, as Adasum, goes by way of host memory.
    """
    use_gpu(driver)
    hvd.init(process_sets="dynamic")
    assert hvd.nccl_built() >= 21800
    for dtype in [*INTEGERS, *FLOATS]:
        x = pattern(dtype, (ROWS,), hvd.rank())
        for name, run in (reductions(dtype) | moves()).items():
            check_by_nccl(run, x, (name, dtype))
    for dtype in [*NOT_OF_NCCL, *INTEGERS, *FLOATS]:
        x = pattern(dtype, (ROWS,), hvd.rank())
        for name, run in reductions_by_the_host(dtype).items():
            check_by_nccl(run, x, (name, dtype), by_nccl=False)
    x = pattern(np.dtype("float32"), (ROWS,), hvd.rank())
    mean = on_host(hvd.allreduce(on_gpu(x)))
    np.testing.assert_allclose(mean, hvd.allreduce(x), rtol=1e-6)
    rows = 10 * (hvd.rank() + 1)
    check_by_nccl(lambda x: hvd.allgather(x, name="v"), x[:rows], "allgather, uneven")
    groups_go_by_nccl()
    last = hvd.add_process_set([hvd.size() - 1]) if hvd.size() > 1 else hvd.global_process_set
    if last.included():
        check_by_nccl(lambda x: hvd.allreduce(x, name="s", process_set=last), x, "a set")
    before = hvd.stats()
    result = on_host(hvd.allreduce(on_gpu(x), op=hvd.Adasum, name="o"))
    check_same(result, hvd.allreduce(x, op=hvd.Adasum, name="p"))
    assert hvd.stats().nccl_buckets == before.nccl_buckets
    assert hvd.stats().staged_buckets == before.staged_buckets + 1
    hvd.shutdown()


def groups_go_by_nccl() -> None:
    """Reduces several arrays at once."""
    arrays = [pattern(np.dtype("float32"), (100 + i,), hvd.rank()) for i in range(9)]
    expected = hvd.grouped_allreduce(arrays, op=hvd.Sum, name="h")
    for _ in range(3):
        before = hvd.stats().nccl_buckets
        given: list[Any] = [GpuArray(x) for x in arrays]
        results = on_host(hvd.grouped_allreduce(given, op=hvd.Sum, name="i"))
        assert hvd.stats().nccl_buckets > before
        for one, other in zip(results, expected, strict=True):
            check_same(one, other)


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
