"""Stands for CuPy, which needs more of a GPU than the fake driver has: what the benchmark calls.

Arrays have one dimension, and lie in memory that the host cannot read. What runs is in the order of
one stream of each GPU, as with CuPy's default.
"""

from __future__ import annotations

import ctypes
import types
from typing import Any

import numpy as np

__version__ = "14.0.0"

_driver = ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: Any) -> None:
    code = getattr(_driver, name)(*arguments)
    if code != 0:
        msg = f"{name}: CUDA error {code}"
        raise RuntimeError(msg)


_call("cuInit", 0)


class Device:
    """A GPU."""

    current: Device

    def __init__(self, index: int) -> None:
        self.index = index
        self.stream = ctypes.c_void_p()

    def use(self) -> None:
        """Makes it the current one of this thread."""
        context = ctypes.c_void_p()
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.index)
        _call("cuCtxPushCurrent_v2", context)
        _call("cuStreamCreateWithPriority", ctypes.byref(self.stream), 1, 0)
        Device.current = self

    def synchronize(self) -> None:
        """Waits for its stream."""
        _call("cuStreamSynchronize", self.stream)


class ndarray:  # noqa: N801 - CuPy's name.
    """An array, or a part of one."""

    def __init__(self, count: int, dtype: Any, address: int = 0, base: Any = None) -> None:
        self.dtype, self.size, self.shape = np.dtype(dtype), count, (count,)
        self._base = base
        self.nbytes = count * self.dtype.itemsize
        self._address = ctypes.c_uint64(address)
        if base is None:
            size = ctypes.c_size_t(max(self.nbytes, 1))
            _call("cuMemAlloc_v2", ctypes.byref(self._address), size)

    def __del__(self) -> None:
        if self._base is None:
            Device.current.synchronize()
            _call("cuMemFree_v2", self._address)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self._address.value, False),
            "strides": None,
            "stream": Device.current.stream.value,
            "version": 3,
        }

    def __getitem__(self, part: slice) -> ndarray:
        first, last, _ = part.indices(self.size)
        return ndarray(
            last - first,
            self.dtype,
            self._address.value + first * self.dtype.itemsize,
            self._base or self,
        )

    def __setitem__(self, part: Any, value: int) -> None:
        assert part is Ellipsis
        self.set(np.full(self.size, value, self.dtype))

    def set(self, values: Any) -> None:
        """Copies an array of numpy's."""
        assert values.dtype == self.dtype
        assert values.shape == self.shape
        values = np.ascontiguousarray(values)
        _call(
            "cuMemcpyHtoDAsync_v2",
            self._address,
            ctypes.c_void_p(values.ctypes.data),
            ctypes.c_size_t(self.nbytes),
            Device.current.stream,
        )


def ones(count: int, dtype: Any) -> ndarray:
    """Returns `count` ones."""
    made = ndarray(count, dtype)
    made.set(np.ones(count, dtype))
    return made


def asarray(other: Any) -> ndarray:
    """Returns an array over the memory of another one."""
    said = other.__cuda_array_interface__
    return ndarray(int(np.prod(said["shape"])), said["typestr"], said["data"][0], other)


def asnumpy(array: ndarray) -> Any:
    """Returns a copy in host memory. CuPy's takes its own arrays alone."""
    assert isinstance(array, ndarray)
    values = np.empty(array.shape, array.dtype)
    _call(
        "cuMemcpyDtoHAsync_v2",
        ctypes.c_void_p(values.ctypes.data),
        ctypes.c_uint64(array.__cuda_array_interface__["data"][0]),
        ctypes.c_size_t(array.nbytes),
        Device.current.stream,
    )
    Device.current.synchronize()
    return values


def copyto(target: ndarray, source: ndarray) -> None:
    """Copies on the GPU."""
    ends = [each.__cuda_array_interface__["data"][0] for each in (target, source)]
    size = ctypes.c_size_t(target.nbytes)
    _call("cuMemcpyDtoDAsync_v2", *map(ctypes.c_uint64, ends), size, Device.current.stream)


def _count() -> int:
    count = ctypes.c_int()
    _call("cuDeviceGetCount", ctypes.byref(count))
    return count.value


def _current_stream(device: int = -1) -> types.SimpleNamespace:
    assert device in (-1, Device.current.index)
    return types.SimpleNamespace(ptr=Device.current.stream.value)


cuda = types.SimpleNamespace(
    Device=Device,
    get_current_stream=_current_stream,
    is_available=lambda: _count() > 0,
    runtime=types.SimpleNamespace(getDeviceCount=_count),
)
