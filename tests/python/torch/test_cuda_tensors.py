"""lightcc.torch on device `cuda`, with a CPU build of torch and the fake CUDA driver.

This module does not import torch: its ranks do, after they have made such a device (cuda_torch.py).
"""

from __future__ import annotations

import ctypes
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda_torch import ENVIRONMENT, build_guard, cuda_torch, problems_of, same
from gpu_arrays import needs_fake_cuda, use_gpu

from lightcc.testing import spawn_ranks

pytestmark = [pytest.mark.multiproc, needs_fake_cuda]


def read_by(exchange: bool, stream: int = 0) -> None:
    """Has tensors read by torch's exchange table, or by attributes, as those of an older torch."""
    import torch

    from lightcc import _core

    _core.use_torch_exchange(exchange)
    cuda: Any = torch.cuda
    cuda.current_stream = lambda device: [SimpleNamespace(cuda_stream=stream)][device]


def operations_give_the_hosts_results() -> None:
    import torch

    import lightcc.torch as hvd

    assert hvd.cuda_built()
    rank = hvd.rank()
    operations: list[Any] = [
        lambda x: hvd.allreduce(x),
        lambda x: hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16),
        lambda x: hvd.grouped_allreduce([x, 2 * x], op=hvd.Max)[1],
        lambda x: hvd.allreduce(x, op=hvd.Adasum),
        lambda x: hvd.allgather(x),
        lambda x: hvd.grouped_allgather([x])[0],
        lambda x: hvd.broadcast(x, 1),
        lambda x: hvd.alltoall(x),
        lambda x: hvd.alltoall(x, splits=[1, rank + 2])[0],
        lambda x: hvd.reducescatter(x, op=hvd.Sum),
        lambda x: hvd.grouped_reducescatter([x])[0],
        lambda x: hvd.allreduce_(x.clone(), op=hvd.Sum),
        lambda x: hvd.broadcast_(x.clone(), 0),
    ]
    for exchange in (True, False):
        read_by(exchange, 0)
        for dtype in (torch.float32, torch.bfloat16)[: 1 + exchange]:
            x = (torch.arange(24).reshape(4, 6) % 7 + rank).to(dtype)
            for index, operation in enumerate(operations):
                assert same(operation(x.to("cuda")), operation(x)), (exchange, dtype, index)
        x = torch.arange(6)
        splits = torch.tensor([2, 4], dtype=torch.int32)
        output, counts = hvd.alltoall(x.to("cuda"), splits=splits.to("cuda"))
        expected = hvd.alltoall(x, splits=splits)
        assert same(output, expected[0])
        assert same(counts, expected[1])
        assert hvd.alltoall(x.to("cuda"), splits=splits)[1].device.type == "cpu"
        empty = hvd.allgather(torch.zeros(0, 3).to("cuda"))
        assert same(empty, torch.zeros(0, 3))
    read_by(True)
    with pytest.raises(ValueError, match="required to be contiguous"):
        hvd.allreduce(torch.ones(2, 3).to("cuda").t())


def streams_are_waited_for() -> None:
    import torch

    import lightcc.torch as hvd

    gpu = use_gpu()
    handle_of = ctypes.CDLL(None).cuda_guard_stream
    handle_of.restype, handle_of.argtypes = ctypes.c_void_p, [ctypes.c_int64]
    side: Any = torch.Stream(device="cuda")
    handle = handle_of(side.stream_id)
    for step in range(4):
        values = np.full(5000, step + 1.0, np.float32)
        expected = torch.from_numpy(hvd.size() * values)
        x = torch.zeros(5000, device="cuda")
        gpu.write_later(x.data_ptr(), values, 1)
        assert same(hvd.allreduce(x, op=hvd.Sum), expected), step
        for exchange in (True, False):
            read_by(exchange, handle)
            y = torch.zeros(5000, device="cuda")
            with side:
                gpu.write_later(y.data_ptr(), values, handle)
                assert same(hvd.allreduce_(y, op=hvd.Sum), expected), (step, exchange)
        read_by(True)


def training_gives_the_hosts_parameters() -> None:
    import torch

    import lightcc.torch as hvd

    before = hvd.stats()["compressed_tensors"]

    def train(device: str) -> tuple[list[float], list[Any]]:
        torch.manual_seed(3 + hvd.rank())
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
        ).to(device)
        inner = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(
            inner,
            [(f"{device}.{name}", p) for name, p in model.named_parameters()],
            compression=hvd.Compression.topk(0.05),
        )
        losses = []
        for step in range(6):
            if step == 3:
                hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            torch.manual_seed(100 * step + hvd.rank())
            x = torch.randn(32, 8).to(device)
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert all(p.device.type == device for p in model.parameters())
        momenta = [state["momentum_buffer"] for state in optimizer.state.values()]
        assert all(momentum.device.type == device for momentum in momenta)
        return losses, [p.detach().cpu() for p in model.parameters()]

    host_losses, host_parameters = train("cpu")
    losses, parameters = train("cuda")
    assert losses == host_losses
    assert losses[-1] < losses[0]
    assert all(torch.equal(a, b) for a, b in zip(parameters, host_parameters, strict=True))
    assert hvd.stats()["compressed_tensors"] > before


def layers_and_other_optimizers_give_the_hosts_parameters() -> None:
    import torch

    import lightcc.torch as hvd

    def train(device: str, **options: Any) -> list[Any]:
        torch.manual_seed(hvd.rank())
        model = torch.nn.Sequential(torch.nn.Linear(6, 5), hvd.SyncBatchNorm(5)).to(device)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        named = [(f"{device}.{name}", p) for name, p in model.named_parameters()]
        inner = torch.optim.Adam(model.parameters(), lr=0.01)
        optimizer = hvd.DistributedOptimizer(inner, named, **options)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 6).to(device)).square().sum().backward()
            optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    choices: list[dict[str, Any]] = [{"op": hvd.Adasum}, {"compression": hvd.Compression.int4}]
    for options in choices:
        pairs = zip(train("cuda", **options), train("cpu", **options), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs), options


def ddp_hooks_take_their_buckets() -> None:
    import torch

    import lightcc.torch as hvd
    from lightcc.torch import ddp_hooks

    model = torch.nn.Linear(4, 3).to("cuda")
    buffer = torch.full((15,), float(hvd.rank())).to("cuda")
    bucket: Any = SimpleNamespace(
        gradients=lambda: [buffer[:12].view(3, 4), buffer[12:]],
        parameters=lambda: list(model.parameters()),
        buffer=lambda: buffer,
    )
    future = ddp_hooks.QuantizedState(model).reduce(bucket)
    assert future.wait() is buffer or same(future.value(), torch.full((15,), 0.5))
    assert same(buffer, torch.full((15,), 0.5))


def two_kinds_of_memory_are_told() -> None:
    import torch

    import lightcc.torch as hvd
    from lightcc import RankMismatchError

    x = torch.ones(3).to("cuda" if hvd.rank() else "cpu")
    with pytest.raises(RankMismatchError, match="memory, but another rank brought one in"):
        hvd.allreduce(x, name="mixed")


def a_captured_step_is_refused_and_the_world_goes_on() -> None:
    import torch

    import lightcc.torch as hvd

    driver = use_gpu().driver
    model = torch.nn.Linear(8, 3).to("cuda")
    named = [(f"captured.{name}", p) for name, p in model.named_parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named)
    parameters = optimizer.param_groups[0]["params"]
    before = [p.detach().cpu() for p in parameters]
    loss = model(torch.randn(16, 8).to("cuda")).square().mean()
    settings = os.environ["LIGHTCC_FAKE_CUDA"]
    driver.lightcc_fake_cuda_set(f"{settings},capturing=1".encode())
    try:
        with pytest.raises(ValueError, match="being captured into a CUDA graph"):
            loss.backward()
    finally:
        driver.lightcc_fake_cuda_set(settings.encode())
    assert all(same(p.detach(), old) for p, old in zip(parameters, before, strict=True))
    x = torch.ones(5).to("cuda")
    assert same(hvd.allreduce(x, op=hvd.Sum, name="after the capture"), torch.full((5,), 2.0))


CHECKS = [
    operations_give_the_hosts_results,
    streams_are_waited_for,
    training_gives_the_hosts_parameters,
    layers_and_other_optimizers_give_the_hosts_parameters,
    ddp_hooks_take_their_buckets,
    two_kinds_of_memory_are_told,
    a_captured_step_is_refused_and_the_world_goes_on,
]


def run_checks(guard: str) -> dict[str, str]:
    cuda_torch(guard)
    import lightcc.torch as hvd

    hvd.init()
    problems = problems_of(CHECKS)
    hvd.shutdown()
    return problems


@pytest.fixture(scope="module")
def problems() -> list[dict[str, str]]:
    """What each rank found."""
    environment = ENVIRONMENT | {"LIGHT_TOPK_THRESHOLD": "128"}
    return spawn_ranks(run_checks, 2, build_guard(), env=environment, hosts=[0, 1], timeout_s=110)


@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_on_cuda(problems: list[dict[str, str]], name: str) -> None:
    for found in problems:
        assert found.get(name, "did not run: an earlier check failed") == ""
