"""Arrays in CUDA memory, made by the driver's own calls: of the fake driver, or of a real one.

They stand for those of any library that has `__cuda_array_interface__`. A rank calls `use_gpu()`
before it initialises lightcc, which finds the same driver then.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from arrays import BFLOAT16

if TYPE_CHECKING:
    from arrays import Array

#: That the system finds.
DRIVER = "libcuda.so.1"
FAKE_CUDA = Path(__file__).resolve().parents[2] / "build/dev/tests/cpp/lightcc_cuda/libcuda.so.1"
needs_fake_cuda = pytest.mark.skipif(
    not FAKE_CUDA.exists(), reason="the fake CUDA driver is not built"
)

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def capsule_address(capsule: Any) -> int:
    """Returns where the DLManagedTensor of a capsule lies. It begins with the data's address."""
    address: int = _capsule_pointer(capsule, b"dltensor")
    return address


class Gpu:
    """The first GPU of a driver, current on the thread that makes this, and a stream of it."""

    def __init__(self, driver: str) -> None:
        # Whoever opens "libcuda.so.1" later gets this one, as it has that name.
        self.driver = ctypes.CDLL(driver)
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)
        self.stream = self.make_stream()

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function of the driver; RuntimeError where it fails."""
        code = getattr(self.driver, name)(*arguments)
        if code != 0:
            msg = f"{name}: CUDA error {code}"
            raise RuntimeError(msg)

    def make_stream(self) -> int:
        stream = ctypes.c_void_p()
        self.call("cuStreamCreateWithPriority", ctypes.byref(stream), 1, 0)
        assert stream.value is not None
        return stream.value

    def allocate(self, num_bytes: int) -> int:
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(num_bytes, 1)))
        return address.value

    def write(self, address: int, values: Array, stream: int | None = None) -> None:
        """Copies `values` in the order of a stream, and waits until that is done.

        Of ordinary memory the driver makes a copy first, and returns before that has arrived.
        """
        self._start_writing(address, values, stream or self.stream)
        self.call("cuStreamSynchronize", ctypes.c_void_p(stream or self.stream))

    def _start_writing(self, address: int, values: Array, stream: int) -> None:
        self.call(
            "cuMemcpyHtoDAsync_v2",
            ctypes.c_uint64(address),
            ctypes.c_void_p(values.ctypes.data),
            ctypes.c_size_t(values.nbytes),
            ctypes.c_void_p(stream),
        )

    def write_later(self, address: int, values: Array, stream: int) -> None:
        """Gives a stream that copy behind ten others, and does not wait.

        A fake GPU with `delay_us` needs a while for that. Pinned memory stays for good.
        """
        pinned = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(pinned), ctypes.c_size_t(values.nbytes), 0)
        assert pinned.value is not None
        memory: Any = (ctypes.c_char * values.nbytes).from_address(pinned.value)
        held = np.frombuffer(memory, values.dtype).reshape(values.shape)
        held[...] = values
        junk = self.allocate(values.nbytes)
        for target in [junk] * 10 + [address]:
            self._start_writing(target, held, stream)

    def read(self, address: int, values: Array) -> None:
        """Fills `values` by a stream of its own, so what nobody waited for is not seen."""
        stream = ctypes.c_void_p(self.stream)
        if values.nbytes:
            self.call(
                "cuMemcpyDtoHAsync_v2",
                ctypes.c_void_p(values.ctypes.data),
                ctypes.c_uint64(address),
                ctypes.c_size_t(values.nbytes),
                stream,
            )
        self.call("cuStreamSynchronize", stream)

    def hold(self, stream: int) -> ctypes.c_uint32:
        """Has a stream wait until the word that this returns is 1."""
        pinned = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(pinned), ctypes.c_size_t(4), 0)
        assert pinned.value is not None
        word = ctypes.c_uint32.from_address(pinned.value)
        word.value, at_least = 0, 0
        address = ctypes.c_uint64(pinned.value)
        self.call("cuStreamWaitValue32_v2", ctypes.c_void_p(stream), address, 1, at_least)
        return word


_gpu: Gpu | None = None


def use_gpu(driver: str = str(FAKE_CUDA)) -> Gpu:
    """Returns this process's GPU; the first call says of which driver."""
    global _gpu
    if _gpu is None:
        _gpu = Gpu(driver)
    return _gpu


class GpuArray:
    """An array in CUDA memory, as a library's."""

    def __init__(self, values: Any, *, stream: int | None = None, **interface: Any) -> None:
        """Copies `values`. `interface`: what it says instead of what is so."""
        values = np.ascontiguousarray(values).reshape(np.shape(values))
        self._gpu = use_gpu()
        self._interface = interface
        self.dtype, self.shape, self.stream = values.dtype, values.shape, stream
        self.address = self._gpu.allocate(values.nbytes) if values.size else 0
        if values.size:
            self._gpu.write(self.address, values)

    def __del__(self) -> None:
        if self.address:
            self._gpu.call("cuMemFree_v2", ctypes.c_uint64(self.address))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "stream": self.stream,
            "version": 3,
        } | self._interface


class ByDLPack:
    """An array that has DLPack, and no array interface."""

    def __init__(self, array: Any) -> None:
        """Wraps what has both."""
        self._array = array
        self.asked: list[dict[str, Any]] = []

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def __dlpack__(self, **arguments: Any) -> Any:
        self.asked.append(arguments)
        return self._array.__dlpack__(**arguments)


def on_host(result: Any) -> Any:
    """Returns what an operation gave, with numpy arrays in the place of those in CUDA memory."""
    if isinstance(result, list | tuple):
        return type(result)(on_host(each) for each in result)
    if result is None or isinstance(result, np.ndarray):
        return result
    if isinstance(result, GpuArray):
        dtype, address = result.dtype, result.address
    else:
        dtype = BFLOAT16 if result.dtype == "bfloat16" else np.dtype(result.dtype)
        capsule = result.__dlpack__()
        address = ctypes.c_uint64.from_address(capsule_address(capsule)).value
    values = np.empty(result.shape, dtype)
    use_gpu().read(address, values)
    return values
