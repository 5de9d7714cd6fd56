"""Arrays in CUDA memory through `import lightcc`, on the fake driver: the host's results."""

from __future__ import annotations

import ctypes
import gc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from arrays import BFLOAT16, check_same
from gpu_arrays import ByDLPack, GpuArray, capsule_address, needs_fake_cuda, on_host, use_gpu

import lightcc as hvd
from lightcc import _world
from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.multiproc, needs_fake_cuda]


def what_a_stream_is_about_to_write_is_waited_for() -> None:
    gpu = use_gpu()
    interface_stream = gpu.make_stream()
    hvd.init()
    size = hvd.size()
    for step in range(3):
        late = np.full(1000, step + 1, np.float32)
        for array, writer in (
            (GpuArray(np.zeros(1000, np.float32), stream=interface_stream), interface_stream),
            (GpuArray(np.zeros(1000, np.float32), stream=1), 1),
            (GpuArray(np.zeros(1000, np.float32), version=2), 1),
        ):
            gpu.write_later(array.address, late, writer)
            result = hvd.allreduce(array, op=hvd.Sum)
            check_same(on_host(result), size * late, (step, writer))


def test_streams_of_inputs_are_waited_for() -> None:
    slow = {"LIGHTCC_FAKE_CUDA": "delay_us=2000"}
    spawn_ranks(what_a_stream_is_about_to_write_is_waited_for, 2, env=slow)


def results_are_arrays_that_others_take() -> None:
    use_gpu()
    hvd.init()
    x = np.arange(12, dtype=np.int32).reshape(3, 4)
    result: Any = hvd.allgather(GpuArray(x))
    assert (result.shape, result.dtype, result.device) == ((3, 4), "int32", 0)
    interface = result.__cuda_array_interface__
    address = interface.pop("data")[0]
    assert address != 0
    assert interface == {
        "shape": (3, 4),
        "typestr": "<i4",
        "strides": None,
        "stream": None,
        "version": 3,
    }
    assert result.__dlpack_device__() == (2, 0)
    result.__dlpack__(stream=7, max_version=(1, 0), dl_device=(2, 0), copy=False)
    for refused in ({"dl_device": (1, 0)}, {"copy": True}):
        with pytest.raises(BufferError, match="on cuda:0, and not copied"):
            result.__dlpack__(**refused)
    # By either way a result is an input again.
    by_dlpack = ByDLPack(result)
    for given in (result, by_dlpack):
        check_same(on_host(hvd.allreduce(given, op=hvd.Sum)), x)
        assert hvd.broadcast_(given, 0) is given
    assert by_dlpack.asked[0] == {"stream": 1, "max_version": (1, 0)}
    # It keeps its memory, whatever becomes of the world.
    del given
    hvd.shutdown()
    gc.collect()
    check_same(on_host(result), x)


class Interface:
    """Says what it is told to."""

    def __init__(self, said: Any) -> None:
        self.__cuda_array_interface__ = said


def wrong_arrays_are_refused() -> None:
    use_gpu()
    hvd.init()
    x = np.ones((4, 4), np.float32)
    on_the_host = np.ones(4, np.float32)
    refused: list[tuple[Any, str]] = [
        (GpuArray(x, strides=(4, 16)), "required to be contiguous"),
        (GpuArray(x, strides=(16,)), "has 2 extents and 1 strides"),
        (GpuArray(x, version=1), "has version 1; known are 2 and 3"),
        (GpuArray(x, stream=0), "stream 0, which is not allowed; the default stream is 1"),
        (GpuArray(x, typestr=">f4"), "Tensor type >f4 is not supported"),
        (GpuArray(x, typestr="<c8"), "Tensor type <c8 is not supported"),
        (GpuArray(x, mask=x), "Masked arrays are not supported"),
        (GpuArray(x, shape="wide"), "has 'shape': 'wide', which is not allowed there"),
        (GpuArray(x, data=None), "has 'data': None, which is not allowed there"),
        (Interface({"version": 3}), "has no 'typestr'"),
        (GpuArray(x, data=(on_the_host.ctypes.data, False)), "is no GPU's"),
        (GpuArray(x, data=(GpuArray(x).address + 2, False)), "aligned to its element size"),
    ]
    for array, message in refused:
        with pytest.raises(ValueError, match=message):
            hvd.allreduce(array)
    read_only = GpuArray(x)
    read_only._interface = {"data": (read_only.address, True)}
    check_same(on_host(hvd.allreduce(read_only)), x)
    with pytest.raises(ValueError, match="required to be writable"):
        hvd.allreduce_(read_only)
    with pytest.raises(TypeError, match="is a int; expected a dict"):
        hvd.allreduce(Interface(3))
    with pytest.raises(TypeError, match="array in CUDA memory with __cuda_array_interface__"):
        hvd.allreduce(object())
    with pytest.raises(ValueError, match="output tensor lies in cuda:0 memory, but the input in h"):
        _world.current().allgather(x, False, None, 0, True, GpuArray(x))


def bfloat16_comes_by_dlpack() -> None:
    use_gpu()
    hvd.init()
    x = np.arange(50, dtype=np.float32).astype(BFLOAT16)
    memory: Any = hvd.allgather(GpuArray(x.view(np.int16)))

    class Retyped(ByDLPack):
        def __dlpack__(self, **arguments: Any) -> Any:
            capsule = super().__dlpack__(**arguments)
            # In a DLManagedTensor the code of the dtype lies behind 20 bytes.
            ctypes.c_uint8.from_address(capsule_address(capsule) + 20).value = 4
            return capsule

    result: Any = hvd.allreduce(Retyped(memory))
    assert result.dtype == "bfloat16"
    assert not hasattr(result, "__cuda_array_interface__")
    check_same(on_host(result), x)


@pytest.mark.parametrize(
    "check",
    [results_are_arrays_that_others_take, wrong_arrays_are_refused, bfloat16_comes_by_dlpack],
)
def test_on_one_rank(check: Callable[[], None]) -> None:
    spawn_ranks(check, 1)


def ranks_with_other_memory_are_told() -> None:
    use_gpu()
    hvd.init()
    x = np.ones(4, np.float32)
    with pytest.raises(hvd.RankMismatchError) as told:
        hvd.allreduce(GpuArray(x) if hvd.rank() else x, name="mixed")
    assert "memory, but another rank brought one in" in str(told.value)
    check_same(on_host(hvd.allreduce(GpuArray(x))), x)
    hvd.barrier()


def test_two_kinds_of_memory_meet_on_two_ranks() -> None:
    spawn_ranks(ranks_with_other_memory_are_told, 2)
