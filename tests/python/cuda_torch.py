"""A CPU build of torch with a device `cuda`, whose streams are those of the fake CUDA driver.

Tensors lie in host memory, which the fake driver takes for its own (`unified=1`). A library that is
built here registers what torch asks of a device. One fallback runs every operator of the device on
CPU tensors over the same memory. So `lightcc.torch` sees what it sees on a GPU: tensors that are on
`cuda`, the exchange table with a stream, hooks, gradients and optimizers.

It has to come before torch. So ranks of modules that use this file are forked from a process that
has such a torch (`warm_cuda_torch`, conftest.py). They call `cuda_torch()` for their GPU. With
`fresh=True` they start without, and import torch after that call.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib.metadata
import importlib.util
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_arrays import FAKE_CUDA, use_gpu

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: The fake GPU takes its time, so that what nobody waits for is seen.
ENVIRONMENT = {"LIGHTCC_FAKE_CUDA": "unified=1,delay_us=500"}

_CPU, _CUDA = 1, 2


def _torch_folder() -> Path:
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def build_guard() -> str:
    """Returns where the library is; compiles it, in some seconds, where no test has done so."""
    torch, source = _torch_folder(), Path(__file__).parent / "cuda_guard.cpp"
    library = FAKE_CUDA.parent / f"libcuda_guard-torch-{importlib.metadata.version('torch')}.so"
    made = library.with_suffix(".partial")
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O0", "-shared", "-fPIC"]
    command += [f"-I{torch}/include", f"-L{torch}/lib", str(source)]
    with library.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # It takes long: other pytest processes wait for it.
        if not library.exists() or library.stat().st_mtime < source.stat().st_mtime:
            subprocess.run([*command, "-lc10", "-ltorch_cpu", "-ldl", "-o", str(made)], check=True)
            made.replace(library)
    return str(library)


def cuda_torch(guard: str) -> Any:
    """Returns torch, which has a device `cuda` in this process from now on."""
    use_gpu()
    load_guard(guard)
    import torch

    finish(torch)
    return torch


def load_guard(guard: str) -> None:
    """Loads what torch looks for while it is imported. `guard`: of build_guard()."""
    folder = _torch_folder() / "lib"
    for file in (folder / "libc10.so", folder / "libtorch_cpu.so", Path(guard)):
        ctypes.CDLL(str(file), ctypes.RTLD_GLOBAL)  # Before torch looks for its hooks.


def finish(torch: Any) -> None:
    """Has torch, which has been imported, find one GPU, and compute on it."""
    if _libraries:
        return
    torch.cuda._lazy_init = lambda: None
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.get_device_capability = lambda _=None: (8, 6)
    torch.cuda.set_device = lambda _device: None
    torch.cuda.synchronize = lambda _device=None: None  # Its operators run at once.
    _run_operators_on_the_host(torch)


def run_checks(guard: str, checks: Sequence[Callable[[], None]]) -> None:
    """Makes checks in a world whose torch has a GPU: importing torch anew for each takes long."""
    cuda_torch(guard)
    import lightcc.torch as hvd

    hvd.init()
    for check in checks:
        check()
    hvd.shutdown()


def same(actual: Any, expected: Any) -> bool:
    """Whether a tensor on `cuda` has the dtype, shape and bits of one in host memory."""
    import torch

    assert actual.device == torch.device("cuda:0")
    host = actual.detach().cpu()
    return host.dtype == expected.dtype and torch.equal(host, expected.detach())


def _with_device(torch: Any, tensor: Any, device_type: int) -> Any:
    """Returns a tensor of the other device over the same memory."""
    capsule = torch._C._to_dlpack(tensor.detach())
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    # In a DLManagedTensor the device's type lies behind the address of the data.
    ctypes.c_int32.from_address(pointer(capsule, b"dltensor") + 8).value = device_type
    return torch._C._from_dlpack(capsule)


def _run_operators_on_the_host(torch: Any) -> None:
    from torch.utils._pytree import tree_map

    wait_for_stream = ctypes.CDLL(None).cuda_guard_wait

    def host(value: Any) -> Any:
        on_cuda = isinstance(value, torch.Tensor) and value.is_cuda
        if (
            on_cuda and os.environ.get("HOROVOD_GPU_OPERATIONS") == "NCCL"
        ):  # Results of NCCL come later.
            wait_for_stream()
        return _with_device(torch, value, _CPU) if on_cuda else value

    def cuda(value: Any) -> Any:
        on_host = isinstance(value, torch.Tensor) and not value.is_cuda
        return _with_device(torch, value, _CUDA) if on_host else value

    def fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None:
            kwargs["device"] = "cpu"
        result = op(*tree_map(host, args), **tree_map(host, kwargs))
        given = dict(zip([argument.name for argument in op._schema.arguments], args, strict=False))
        given |= kwargs
        written = [
            given[argument.name]
            for argument in op._schema.arguments
            if argument.alias_info is not None
            and argument.alias_info.is_write
            and argument.name in given
        ]
        if written and len(written) == len(op._schema.returns):  # In place, or `out`.
            return written[0] if len(written) == 1 else tuple(written)
        return tree_map(cuda, result)

    def to_copy(
        x: Any, *, dtype: Any = None, device: Any = None, layout: Any = None, **_: Any
    ) -> Any:
        del layout
        copy = host(x).clone() if dtype is None else host(x).to(dtype, copy=True)
        return copy if device is not None and torch.device(device).type == "cpu" else cuda(copy)

    def copy_(to: Any, source: Any, non_blocking: bool = False) -> Any:
        del non_blocking
        host(to).copy_(host(source))
        return to

    def empty(size: Any, dtype: Any = None, **_: Any) -> Any:
        return cuda(torch.empty(size, dtype=dtype))

    def empty_strided(size: Any, stride: Any, dtype: Any = None, **_: Any) -> Any:
        return cuda(torch.empty_strided(size, stride, dtype=dtype))

    def convolution(*args: Any) -> Any:
        return fallback(torch.ops.aten.convolution.default, *args)

    def convolution_backward(*args: Any) -> Any:
        return fallback(torch.ops.aten.convolution_backward.default, *args)

    every, aten = (torch.library.Library(name, "IMPL") for name in ("_", "aten"))
    every.fallback(fallback, "CUDA")
    for name, function in (
        ("_to_copy", to_copy),
        ("copy_", copy_),
        ("empty.memory_format", empty),
        ("empty_strided", empty_strided),
        # torch would choose kernels of its own for a GPU, and the host has better ones.
        ("convolution", convolution),
        ("convolution_backward", convolution_backward),
    ):
        aten.impl(name, function, "CUDA")
    _libraries.extend([every, aten])


#: What is registered ends with the library's object.
_libraries: list[Any] = []
