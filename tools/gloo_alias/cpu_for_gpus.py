"""A plugin of pytest: the CPU stands for the GPUs that torch's tests of FSDP2 ask for.

They run on CPUs what they say of `cuda`, with as many devices as the tests want ranks. What needs
streams, events or memory counters of a GPU fails there, on any backend.
"""

from __future__ import annotations

import unittest
from typing import Any

RANKS = 4


def on_cpu(value: Any) -> Any:
    """Returns the CPU for a device of CUDA, and anything else as it is."""
    name = value if isinstance(value, str) else getattr(value, "type", None)
    is_cuda = isinstance(name, str) and name.partition(":")[0] == "cuda"
    return "cpu" if is_cuda else value


def moved(made: Any) -> Any:
    """Returns a function that calls `made` with the CPU for each device of CUDA."""

    def call(*args: Any, **named: Any) -> Any:
        return made(*map(on_cpu, args), **{name: on_cpu(value) for name, value in named.items()})

    return call


def pytest_configure() -> None:
    """Changes torch in this process, from which ranks are forked."""
    import torch
    import torch.distributed as dist
    from torch.distributed import _tensor, device_mesh, tensor
    from torch.overrides import TorchFunctionMode
    from torch.testing._internal import common_distributed, common_fsdp

    class OnCpu(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function is torch.Tensor.cuda:
                return args[0]
            return moved(function)(*args, **(kwargs or {}))

    def enough(count: int, **_: Any) -> Any:
        return unittest.skipIf(count > RANKS, f"has {RANKS} devices")

    cuda: Any = torch.cuda
    accelerator: Any = torch.accelerator
    cuda.device_count = accelerator.device_count = lambda: RANKS
    accelerator.current_accelerator = lambda *_, **__: torch.device("cpu")
    cuda.current_device = lambda: 0
    cuda.set_device = cuda.synchronize = cuda.manual_seed = lambda *_: None
    distributed: Any = common_distributed
    distributed.skip_if_lt_x_gpu = enough
    of_fsdp: Any = common_fsdp
    of_fsdp.DEVICE_COUNT = RANKS
    # Later versions lack it; the tests that it makes do not compile without it.
    of_fsdp.test_compiled_fsdp = lambda **_: lambda test: test
    mesh: Any = device_mesh.DeviceMesh
    mesh.__init__ = moved(mesh.__init__)
    make_mesh = moved(device_mesh.init_device_mesh)
    modules: Any = (device_mesh, dist, tensor, _tensor)
    for module in modules:
        module.init_device_mesh = make_mesh
    ddp: Any = torch.nn.parallel.DistributedDataParallel
    wrap = ddp.__init__
    ddp.__init__ = lambda self, *args, device_ids=None, **named: wrap(self, *args, **named)  # noqa: ARG005
    mode: Any = OnCpu()
    mode.__enter__()
