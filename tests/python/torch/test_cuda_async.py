"""Results on device `cuda` that come after `synchronize()`: NCCL carries them, on two ranks.

torch is a CPU build, CUDA and NCCL are fakes. Operators on tensors of `cuda` wait for the current
stream, so a stream that nobody has told to wait gives them what was there before. This module does
not import torch: its ranks do, after they have made such a device (cuda_torch.py).
"""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from cuda_torch import build_guard, run_checks, same
from gpu_arrays import FAKE_CUDA, needs_fake_cuda
from held_nccl import release_later, set_nccl

from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.multiproc, needs_fake_cuda]


def unfinished() -> int:
    import lightcc.torch as hvd

    count: int = hvd.stats().nccl_unfinished_buckets
    return count


def the_host_goes_on_and_tensors_stay() -> None:
    import torch

    import lightcc.torch as hvd

    x = torch.full((5000,), hvd.rank() + 1.0).to("cuda")
    expected = torch.full((5000,), 3.0)
    address, alive = x.data_ptr(), weakref.ref(x)
    set_nccl("behind=0")
    y = hvd.synchronize(hvd.allreduce_async(x, op=hvd.Sum))
    handle = hvd.allreduce_async_(y, op=hvd.Sum, name="y")
    del x
    gc.collect()
    while unfinished() < 2:  # The GPU waits for its input.
        assert not hvd.poll(handle)
    assert alive() is not None
    assert torch.zeros(5000).data_ptr() != address
    set_nccl("")
    assert same(hvd.synchronize(handle), 2 * expected)
    while unfinished():
        time.sleep(0.001)
    hvd.barrier()  # Each later call lets go of what is finished.
    hvd.synchronize(hvd.allreduce_async(torch.zeros(1), name="later"))
    gc.collect()
    assert alive() is None


def a_side_stream_waits_and_no_other() -> None:
    import torch

    import lightcc.torch as hvd

    x = torch.full((500,), hvd.rank() + 1.0).to("cuda")
    side: Any = torch.Stream(device="cuda")
    set_nccl("behind=0")
    with side:
        hvd.allreduce_(x, op=hvd.Sum)
    assert x[0].item() == hvd.rank() + 1.0  # By the default stream, which waits for nothing.
    set_nccl("")
    with side:
        assert same(x, torch.full((500,), 3.0))
    hvd.barrier()


def a_barrier_and_rolling_forward_wait() -> None:
    import torch

    import lightcc.torch as hvd

    def waits(call: Callable[[], object]) -> bool:
        released = threading.Event()
        thread = release_later(released)
        call()
        thread.join()
        return released.is_set() and unfinished() == 0

    set_nccl("behind=0")
    hvd.allreduce_(torch.ones(3).to("cuda"))
    assert unfinished() == 1
    assert waits(hvd.barrier)

    @hvd.elastic.run(recovery="forward")
    def train(_: Any) -> bool:
        set_nccl("behind=0")
        x = torch.ones(3).to("cuda")
        return waits(lambda: hvd.allreduce_(x))

    assert train(hvd.elastic.TorchState(batch=0))
    set_nccl("behind=0")
    hvd.allreduce_(torch.ones(3).to("cuda"))
    assert unfinished() == 1
    state = hvd.elastic.TorchState(batch=0)
    assert waits(state.save)


def groups_of_torch_wait_on_streams() -> None:
    import torch
    import torch.distributed as dist

    import lightcc.torch as hvd

    where: dict[str, Any] = {"rank": hvd.rank(), "world_size": hvd.size()}
    dist.init_process_group("lightcc", init_method=f"file://{os.environ['TEST_STORE']}", **where)
    side: Any = torch.Stream(device="cuda")
    for asks_first in (False, True):
        x = torch.full((2, 3), hvd.rank() + 1.0).to("cuda")
        expected = torch.full((2, 3), 3.0)
        set_nccl("behind=0")
        work: Any = dist.all_reduce(x, async_op=True)
        future = work.get_future() if asks_first else None
        work.wait()
        with side:
            work.wait()  # This stream waits as well.
        assert unfinished() == 1
        released = threading.Event()
        thread = release_later(released)
        with side:
            assert same(x, expected)
        assert released.is_set()
        assert same(x, expected)
        if future is not None:
            assert same(future.then(lambda done: 2 * done.value()[0]).wait(), 2 * expected)
        thread.join()
    dist.barrier()
    dist.destroy_process_group()


CHECKS = [
    the_host_goes_on_and_tensors_stay,
    a_side_stream_waits_and_no_other,
    a_barrier_and_rolling_forward_wait,
    groups_of_torch_wait_on_streams,
]


def test_on_cuda(tmp_path: Path) -> None:
    nccl = {
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "LIGHT_NCCL_LIBRARY": str(FAKE_CUDA.parent / "libnccl.so.2"),
        "TEST_STORE": str(tmp_path / "store"),
    }
    env = [{"LIGHTCC_FAKE_CUDA": f"unified=1,delay_us=100,bus={r + 1}", **nccl} for r in range(2)]
    spawn_ranks(run_checks, 2, build_guard(), CHECKS, env=env, timeout_s=110)
