"""Arrays in CUDA memory through `import lightcc`, on the fake driver: the host's results."""

from __future__ import annotations

import gc
import sys
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from arrays import BFLOAT16, check_same, pattern
from gpu_arrays import FAKE_CUDA, ByDLPack, GpuArray, needs_fake_cuda, on_host, use_gpu
from gpu_operations import every_operation_gives_what_it_gives_for_host_memory

import lightcc as hvd
from lightcc import _core, _world
from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.multiproc, needs_fake_cuda]

#: The fake GPU takes its time, so that what nobody waits for is seen.
SLOW = {"LIGHTCC_FAKE_CUDA": "delay_us=300"}


def test_every_operation_gives_the_hosts_bits() -> None:
    program = every_operation_gives_what_it_gives_for_host_memory
    spawn_ranks(program, 2, str(FAKE_CUDA), env=SLOW)


def messages_and_outputs_are_taken() -> None:
    use_gpu()
    hvd.init()
    rank, world = hvd.rank(), _world.current()
    x = np.arange(100, dtype=np.float32) + 1000 * rank
    given = GpuArray(x)
    if rank == 0:
        hvd.send(given, 1, "message")
    else:
        assert hvd.recv(given, 0, "message") is given
    check_same(on_host(given), x - 1000 * rank)

    both = np.concatenate([x - 1000 * rank, x + 1000 * (1 - rank)])
    output = GpuArray(np.zeros((2, 100), np.float32))
    assert _core.wait(world.allgather(GpuArray(x), False, None, 0, True, output)) is output
    check_same(on_host(output), both.reshape(2, 100))
    output = GpuArray(np.zeros(50, np.float32))
    handle = world.reducescatter(GpuArray(x), False, None, hvd.Sum, 1.0, 1.0, 0, True, output)
    assert _core.wait(handle) is output
    output = GpuArray(np.zeros(100, np.float32))
    result, splits = _core.wait(world.alltoall(GpuArray(x), None, None, 0, True, output))
    assert result is output
    assert splits.tolist() == [50, 50]
    with pytest.raises(ValueError, match="output tensor lies in host memory, but the input in cu"):
        world.allgather(GpuArray(x), False, None, 0, True, np.zeros(200, np.float32))
    hvd.barrier()


def what_a_stream_is_about_to_write_is_waited_for() -> None:
    gpu = use_gpu()
    stream, interface_stream = gpu.make_stream(), gpu.make_stream()
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
        # An output may still be written by its own stream.
        world, output = _world.current(), GpuArray(np.zeros(2000, np.float32), stream=stream)
        junk = np.full(2000, -1, np.float32)
        gpu.write_later(output.address, junk, stream)
        _core.wait(world.allgather(GpuArray(late), False, None, 0, True, output))
        check_same(on_host(output), np.concatenate([late] * 2))


def test_streams_of_inputs_and_outputs_are_waited_for() -> None:
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


def bfloat16_comes_by_dlpack() -> None:
    use_gpu()
    hvd.init()
    # Two bytes that the interface calls something else, and DLPack by its name.
    x = pattern(BFLOAT16, (50,), hvd.rank())

    class Both(GpuArray):
        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

        def __dlpack__(self, **arguments: Any) -> Any:
            memory: Any = hvd.allgather(GpuArray(x.view(np.int16)))
            return retyped(memory.__dlpack__(**arguments))

    result: Any = hvd.allreduce(Both(x.view(np.int16), typestr="<V2"))
    assert result.dtype == "bfloat16"
    assert not hasattr(result, "__cuda_array_interface__")
    check_same(on_host(result), x)
    check_same(on_host(hvd.allreduce(result)), x)


def retyped(capsule: Any) -> Any:
    """Makes bfloat16 of int16 in a DLManagedTensor: its dtype lies behind 20 bytes."""
    import ctypes

    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = pointer(capsule, b"dltensor")
    code = ctypes.c_uint8.from_address(address + 20)
    assert code.value == 0
    code.value = 4
    return capsule


def cupy_gets_its_own_arrays() -> None:
    use_gpu()

    class NdArray(GpuArray):
        pass

    # CuPy itself needs more of a GPU than the fake has.
    cupy: Any = types.ModuleType("cupy")
    cupy.ndarray = NdArray
    cupy.asarray = lambda array: NdArray(on_host(array))
    sys.modules["cupy"] = cupy
    hvd.init()
    x = np.arange(6, dtype=np.float64)
    for result in (
        hvd.allreduce(NdArray(x)),
        hvd.allgather(NdArray(x)),
        hvd.grouped_allreduce([NdArray(x)])[0],
    ):
        assert type(result) is NdArray
        check_same(on_host(result), x)
    other: Any = hvd.allreduce(GpuArray(x))
    assert type(other) is _core.CudaArray


class Interface:
    """Says what it is told to."""

    def __init__(self, said: Any) -> None:
        self.__cuda_array_interface__ = said


def wrong_arrays_are_refused() -> None:
    gpu = use_gpu()
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
    assert gpu.live() > 0


ONE_RANK = [
    results_are_arrays_that_others_take,
    bfloat16_comes_by_dlpack,
    wrong_arrays_are_refused,
    cupy_gets_its_own_arrays,  # The last one, as it leaves a module behind.
]


def each_in_a_world(programs: list[Callable[[], None]]) -> None:
    for program in programs:
        program()
        hvd.shutdown()


def test_arrays_are_taken_given_and_refused_on_one_rank() -> None:
    spawn_ranks(each_in_a_world, 1, ONE_RANK)


def ranks_with_other_memory_are_told() -> None:
    use_gpu()
    hvd.init()
    x = np.ones(4, np.float32)
    with pytest.raises(hvd.RankMismatchError) as told:
        hvd.allreduce(GpuArray(x) if hvd.rank() else x, name="mixed")
    assert "memory, but another rank brought one in" in str(told.value)
    check_same(on_host(hvd.allreduce(GpuArray(x))), x)
    hvd.barrier()


def test_messages_outputs_and_two_kinds_of_memory_meet_on_two_ranks() -> None:
    spawn_ranks(
        each_in_a_world, 2, [messages_and_outputs_are_taken, ranks_with_other_memory_are_told]
    )


def without_a_driver_there_is_a_reason(driver: str) -> str:
    hvd.init()
    # An empty array needs no memory, and a GPU all the same.
    empty = {"shape": (0,), "typestr": "<f4", "data": (0, False), "version": 3, "stream": 1}
    texts = set()
    for given in (empty, empty | {"shape": (1,), "data": (4096, False)}):
        with pytest.raises(ValueError, match=driver) as told:
            hvd.allreduce(Interface(given))
        texts.add(str(told.value))
    check_same(hvd.allreduce(np.ones(3)), np.ones(3))
    (text,) = texts
    return text


def test_a_driver_that_cannot_be_used_is_told() -> None:
    environment = {"LD_LIBRARY_PATH": str(FAKE_CUDA.parent), "LIGHTCC_FAKE_CUDA": "version=10020"}
    text = spawn_ranks(
        without_a_driver_there_is_a_reason, 1, "libcuda", env=environment, fresh=True
    )[0]
    assert text == (
        "Tensor lies in CUDA memory, which lightcc cannot use here: the CUDA driver libcuda.so.1 "
        "is for CUDA 10.2; needed is one for CUDA 11.2 (version 460) or newer."
    )
