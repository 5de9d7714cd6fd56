"""The backend on device `cuda`, with a CPU build of torch and the fake CUDA driver.

This module does not import torch: its ranks do, after they have made such a device (cuda_torch.py).
"""

from __future__ import annotations

import os
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from cuda_torch import ENVIRONMENT, build_guard, cuda_torch, same
from gpu_arrays import needs_fake_cuda

from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.multiproc, needs_fake_cuda]


def collectives_give_the_hosts_results() -> None:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()

    def run(device: str, turned: bool, dtype: torch.dtype) -> list[torch.Tensor]:
        def make(factor: int = 1) -> torch.Tensor:
            x = ((torch.arange(12) % 7 + rank) * factor).to(dtype).reshape(3, 4).to(device)
            return x.t() if turned else x

        results: list[torch.Tensor] = []
        pair = [make(), make(2)]
        dist.all_reduce_coalesced(pair)
        results += pair
        results.append(make())
        dist.broadcast(results[-1], 1)
        results.append(make())
        dist.reduce(results[-1], 0)
        swapped = [make(0) for _ in range(size)]
        dist.all_to_all(swapped, [make(), make(5)])
        results += swapped
        results.append(make(0))
        dist.reduce_scatter(results[-1], [make(), make(4)])
        whole, part = torch.zeros(24, dtype=dtype, device=device), make().reshape(-1)
        dist.all_gather_into_tensor(whole, part)
        dist.reduce_scatter_tensor(part, whole)
        dist.all_to_all_single(whole, whole.clone())
        results += [whole, part, make()]
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, make(6), 1 - rank),
                dist.P2POp(dist.irecv, results[-1], 1 - rank),
            ]
        )
        for work in works:
            work.wait()
        return results

    for dtype, turned in ((torch.float32, True), (torch.bfloat16, False), (torch.int64, False)):
        pairs = zip(run("cuda", turned, dtype), run("cpu", turned, dtype), strict=True)
        for index, (ours, host) in enumerate(pairs):
            assert same(ours, host), (dtype, turned, index)
    bits = torch.tensor([1 << rank, 4]).to("cuda")
    dist.all_reduce(bits, op=dist.ReduceOp.BOR)
    assert same(bits, torch.tensor([3, 4]))
    dist.barrier()


def replicas_train_as_on_the_host() -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def train(device: str, **options: Any) -> list[torch.Tensor]:
        torch.manual_seed(3)
        layers = [torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)]
        model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device), **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        for step in range(3):
            torch.manual_seed(100 * step + dist.get_rank())
            x = torch.randn(32, 8).to(device)
            optimizer.zero_grad()
            (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
        assert all(p.device.type == device for p in model.parameters())
        return [p.detach().cpu() for p in model.parameters()]

    choices: list[dict[str, Any]] = [{}, {"bucket_cap_mb": 0.0001}]
    for options in [*choices, {"gradient_as_bucket_view": True}]:
        pairs = zip(train("cuda", **options), train("cpu", **options), strict=True)
        assert all(torch.equal(ours, host) for ours, host in pairs), options


def two_devices_in_one_call_are_refused() -> None:
    import torch
    import torch.distributed as dist

    here, there = torch.zeros(2), torch.zeros(2).to("cuda")
    with pytest.raises(ValueError, match=r"tensors are on cpu and cuda:0, not on one device"):
        dist.all_gather([here, here], there)
    with pytest.raises(ValueError, match="not on one device"):
        dist.reduce_scatter_tensor(here, torch.zeros(4).to("cuda"))


def run_checks(guard: str, store: str) -> None:
    torch = cuda_torch(guard)
    import torch.distributed as dist

    torch.cuda.current_stream = lambda _=None: SimpleNamespace(cuda_stream=0)
    rank, size = int(os.environ["LIGHT_RANK"]), int(os.environ["LIGHT_SIZE"])
    where: dict[str, Any] = {"init_method": f"file://{store}", "rank": rank, "world_size": size}
    dist.init_process_group("lightcc", timeout=timedelta(seconds=60), **where)
    collectives_give_the_hosts_results()
    replicas_train_as_on_the_host()
    two_devices_in_one_call_are_refused()
    dist.destroy_process_group()


def test_on_cuda(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    spawn_ranks(run_checks, 2, build_guard(), store, env=ENVIRONMENT, timeout_s=110)
