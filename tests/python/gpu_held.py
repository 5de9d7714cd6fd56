"""Whether the host of a rank goes on while its GPU does nothing: on the fakes, or on a real GPU."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING

from gpu_arrays import use_gpu

if TYPE_CHECKING:
    from collections.abc import Callable


class HeldGpu:
    """Holds the default stream of the first GPU: it waits for a word of the host.

    The driver's own calls do that, so no time is guessed.
    """

    def __init__(self, driver: str) -> None:
        gpu, word = use_gpu(driver), ctypes.c_void_p()
        gpu.call("cuMemHostAlloc", ctypes.byref(word), ctypes.c_size_t(4), 0)
        assert word.value is not None
        self._word = ctypes.c_uint32.from_address(word.value)
        self._word.value = 0
        default_stream, at_least = None, 0
        address = ctypes.c_uint64(word.value)
        gpu.call("cuStreamWaitValue32_v2", default_stream, address, 1, at_least)

    def release(self) -> None:
        """Lets the stream go on."""
        self._word.value = 1


def comes_through(call: Callable[[], object], driver: str, patience_s: float) -> bool:
    """Returns whether `call` ends while the GPU is held; it is let go after `patience_s` s."""
    gpu = HeldGpu(driver)
    gave_up = threading.Event()

    def give_up() -> None:
        gave_up.set()
        gpu.release()

    timer = threading.Timer(patience_s, give_up)
    timer.start()
    try:
        call()
    finally:
        timer.cancel()
        gpu.release()
    return not gave_up.is_set()


def steps_while_the_gpu_is_held(driver: str, patience_s: float) -> bool:
    """Trains by NCCL; returns whether this rank makes two steps while its GPU is held."""
    import gpu_training
    import torch

    import lightcc.torch as hvd

    hvd.init()
    device = gpu_training.use_gpu()
    model = gpu_training.make_network(device)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters()
    )
    images, labels = gpu_training.make_batch(0, device)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    for _ in range(3):  # The first steps load kernels and allocate memory.
        step()
    torch.cuda.synchronize()
    hvd.barrier()

    def two_steps() -> None:
        step()
        step()

    result = comes_through(two_steps, driver, patience_s)
    torch.cuda.synchronize()
    hvd.shutdown()
    return result
