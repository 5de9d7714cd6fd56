"""Results on device `cuda` that come after `synchronize()`: NCCL carries them, on two ranks.

torch is a CPU build, CUDA and NCCL are fakes. Operators on tensors of `cuda` wait for the current
stream, so a stream that nobody has told to wait gives them what was there before. This module does
not import torch: its ranks do, after they have made such a device (cuda_torch.py).
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cuda_torch import build_guard, cuda_torch, problems_of, same
from gpu_arrays import FAKE_CUDA, GpuArray, needs_fake_cuda, use_gpu
from held_nccl import release_later, set_nccl

from lightcc.testing import RankProcesses, spawn_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

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


def a_handle_is_polled_until_the_gpu_has_finished() -> None:
    import torch

    import lightcc.torch as hvd

    set_nccl("behind=0")
    handle = hvd.allreduce_async(torch.ones(7).to("cuda"), op=hvd.Sum)
    while not unfinished():
        assert not hvd.poll(handle)
    assert not hvd.poll(handle)
    set_nccl("")
    while not hvd.poll(handle):
        time.sleep(0.001)
    assert same(hvd.synchronize(handle), torch.full((7,), 2.0))


def many_steps_leave_nothing_behind() -> None:
    import torch

    import lightcc.torch as hvd

    alive = []
    for _ in range(30):
        x = torch.ones(10).to("cuda")
        alive.append(weakref.ref(x))
        hvd.synchronize(hvd.allreduce_async(x, op=hvd.Sum))
        del x
    hvd.barrier()
    gc.collect()
    assert unfinished() == 0
    assert not [one for one in alive if one() is not None]


def streams_of_the_caller_wait_in_operations_with_gradients() -> None:
    import torch

    import lightcc.torch as hvd

    results = []
    for device in ("cpu", "cuda"):
        x = (torch.arange(12.0).reshape(4, 3) + hvd.rank()).to(device).requires_grad_()
        parts = [hvd.allreduce(x), hvd.allgather(x), hvd.alltoall(x), hvd.reducescatter(x)]
        parts += [hvd.broadcast(x, 0), hvd.allreduce(x, op=hvd.Adasum)]
        parts += [hvd.grouped_allreduce([x, 2 * x], op=hvd.Max)[1]]
        parts += [hvd.alltoall(x, splits=[1, 3])[0]]
        torch.stack([part.square().sum() for part in parts[:5]]).sum().backward()
        results.append([*(part.detach() for part in parts), x.grad])
    for ours, host in zip(results[1], results[0], strict=True):
        assert same(ours, host)


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


def arrays_are_waited_for_on_the_host() -> None:
    import lightcc as hvd

    array = GpuArray(np.full(100, 1.0, np.float32))
    released = threading.Event()
    set_nccl("behind=0")
    handle = hvd.allreduce_async_(array, op=hvd.Sum)
    thread = release_later(released)
    hvd.synchronize(handle)
    assert released.is_set()
    thread.join()
    values = np.zeros(100, np.float32)
    use_gpu().read(array.address, values)
    assert values.tolist() == [2.0] * 100


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
    def train(state: Any) -> bool:
        del state
        set_nccl("behind=0")
        x = torch.ones(3).to("cuda")
        released = threading.Event()
        thread = release_later(released)
        hvd.allreduce_(x)
        is_released = released.is_set()
        thread.join()
        return is_released

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

    store = os.environ["TEST_STORE"]
    where: dict[str, Any] = {
        "init_method": f"file://{store}",
        "rank": hvd.rank(),
        "world_size": hvd.size(),
    }
    dist.init_process_group("lightcc", timeout=timedelta(seconds=60), **where)
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
    model = torch.nn.Linear(8, 1).to("cuda")
    replica = torch.nn.parallel.DistributedDataParallel(model)
    replica(torch.full((4, 8), hvd.rank() + 1.0).to("cuda")).sum().backward()
    gradient = model.weight.grad
    assert same(gradient, torch.full((1, 8), 6.0))
    dist.barrier()
    dist.destroy_process_group()


CHECKS = [
    the_host_goes_on_and_tensors_stay,
    a_handle_is_polled_until_the_gpu_has_finished,
    many_steps_leave_nothing_behind,
    streams_of_the_caller_wait_in_operations_with_gradients,
    a_side_stream_waits_and_no_other,
    arrays_are_waited_for_on_the_host,
    a_barrier_and_rolling_forward_wait,
    groups_of_torch_wait_on_streams,
]


def environments(size: int, **more: str) -> list[dict[str, str]]:
    return [
        {
            "HOROVOD_GPU_OPERATIONS": "NCCL",
            "LIGHT_NCCL_LIBRARY": str(FAKE_CUDA.parent / "libnccl.so.2"),
            "LIGHTCC_FAKE_CUDA": f"unified=1,delay_us=100,bus={rank + 1}",
            **more,
        }
        for rank in range(size)
    ]


def run_checks(guard: str) -> dict[str, str]:
    cuda_torch(guard)
    import lightcc.torch as hvd

    hvd.init()
    problems = problems_of(CHECKS)
    hvd.shutdown()
    return problems


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """What each rank found."""
    store = tmp_path_factory.mktemp("store") / "store"
    env = environments(2, TEST_STORE=str(store))
    return spawn_ranks(run_checks, 2, build_guard(), env=env, timeout_s=110)


@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_on_cuda(problems: list[dict[str, str]], name: str) -> None:
    for found in problems:
        assert found.get(name, "did not run: an earlier check failed") == ""


class Weights:
    """A tensor on `cuda` with a state in host memory: this torch copies no storage of `cuda`."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def state_dict(self) -> Any:
        return self.tensor.cpu()

    def load_state_dict(self, state: Any) -> None:
        self.tensor.copy_(state)


def commit_after_a_rank_was_killed(guard: str) -> tuple[str, str, float]:
    """Returns what commit and the next operation say, and what the last commit has."""
    torch = cuda_torch(guard)
    import lightcc.torch as hvd
    from lightcc.torch.elastic.state import StateHandler, get_handler_registry

    hvd.init()
    get_handler_registry().append((Weights, StateHandler))
    weights = torch.ones(3).to("cuda")
    state: Any = hvd.elastic.TorchState(weights=Weights(weights), batch=0)
    state.commit()
    set_nccl("behind=0")
    hvd.allreduce_(weights, op=hvd.Sum, name="weights")
    state.batch = 1
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(hvd.HorovodInternalError) as failed:
        state.commit()
    with pytest.raises(hvd.HorovodInternalError) as next_one:
        hvd.allreduce(torch.ones(1).to("cuda"))
    weights.fill_(7.0)  # As a step would that uses what never came.
    state.restore()
    assert state.batch == 0
    return str(failed.value), str(next_one.value), weights.cpu().sum().item()


def test_a_commit_is_refused_where_a_rank_was_killed_after_the_host_went_on() -> None:
    with RankProcesses(
        commit_after_a_rank_was_killed, 3, build_guard(), env=environments(3)
    ) as ranks:
        results = ranks.wait(60)
    for rank in (0, 2):
        found = results[rank].value
        assert found is not None, results[rank].describe()
        told, next_one, weight = found
        assert "rank 1" in told
        assert "rank 1" in next_one
        assert weight == 3.0
