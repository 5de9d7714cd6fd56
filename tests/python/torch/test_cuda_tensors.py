"""lightcc.torch on device `cuda`, with a CPU build of torch and the fake CUDA driver.

This module does not import torch: its ranks do, after they have made such a device (cuda_torch.py).
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda_torch import ENVIRONMENT, build_guard, run_checks, same
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
    grads = []
    for device in ("cuda", "cpu"):
        x = torch.arange(4.0).to(device).requires_grad_()
        (hvd.allreduce(x) * hvd.allgather(x)[:4]).sum().backward()
        grads.append(x.grad)
    assert same(*grads)


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


CHECKS = [
    operations_give_the_hosts_results,
    streams_are_waited_for,
    layers_and_other_optimizers_give_the_hosts_parameters,
]


def test_on_cuda() -> None:
    spawn_ranks(run_checks, 2, build_guard(), CHECKS, env=ENVIRONMENT, hosts=[0, 1], timeout_s=110)
