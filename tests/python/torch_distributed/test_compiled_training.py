"""torch.compile above the backend: compiled replicas, shards and collectives."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from groups import start
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.multiproc


def layers() -> nn.Module:
    torch.manual_seed(5)
    # A batch norm has buffers, which DDP broadcasts before each pass.
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


def train(model: Any, parameters: Any, rank: int) -> torch.Tensor:
    optimizer = torch.optim.SGD(parameters, lr=0.2)
    for step in range(3):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(10 * step + rank))
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in optimizer.param_groups[0]["params"]])


def compiled(function: Any) -> Any:
    return torch.compile(function, backend="aot_eager")


def replicas(store: str) -> None:
    rank, _ = start(store)
    model = DistributedDataParallel(layers())
    expected = train(model, model.parameters(), rank)

    model = DistributedDataParallel(layers())
    torch.testing.assert_close(train(compiled(model), model.parameters(), rank), expected)

    model = DistributedDataParallel(compiled(layers()))
    torch.testing.assert_close(train(model, model.parameters(), rank), expected)


def test_compiled_replicas_train_as_eager_ones_do(tmp_path: Path) -> None:
    spawn_ranks(replicas, 2, os.fspath(tmp_path / "store"))


def shards(store: str) -> None:
    rank, _ = start(store)
    model = layers()
    fully_shard(model)
    expected = train(model, model.parameters(), rank)

    model = layers()
    fully_shard(model)
    found = train(compiled(model), model.parameters(), rank)
    torch.testing.assert_close(found, expected)


def test_compiled_shards_train_as_eager_ones_do(tmp_path: Path) -> None:
    spawn_ranks(shards, 2, os.fspath(tmp_path / "store"))


def collectives(store: str) -> None:
    rank, size = start(store)
    pair: Any = dist.group.WORLD

    @torch.compile(backend="aot_eager", fullgraph=True)
    def combine(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = functional.all_reduce(x * 2, "sum", pair)
        parts = functional.reduce_scatter_tensor(total, "avg", 0, pair)
        everything = functional.all_gather_tensor(parts, 0, pair)
        return total + 1, everything

    @torch.compile(backend="aot_eager", fullgraph=True)
    def in_place(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x * 3

    x = torch.arange(4.0 * size) + rank
    total = 2 * (size * torch.arange(4.0 * size) + sum(range(size)))
    for _ in range(2):
        results = combine(x)
        torch.testing.assert_close(results, (total + 1, total))
    assert torch.equal(in_place(torch.full((3,), rank + 1.0)), torch.full((3,), 9.0))


def test_compiled_collectives_have_no_graph_break(tmp_path: Path) -> None:
    spawn_ranks(collectives, 2, os.fspath(tmp_path / "store"))
