"""Compressed gathers and reduce-scatters of a process group, for trainers that shard themselves."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from fsdp_models import HOSTS, loss_of, sharded
from groups import start

import lightcc.torch as hvd
from lightcc.exceptions import RankMismatchError
from lightcc.testing import spawn_ranks
from lightcc.torch.distributed import compress_group

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.multiproc, pytest.mark.filterwarnings("ignore::FutureWarning")]

COUNT = 5000


def is_compressed(run: Callable[[], Any]) -> bool:
    before = hvd.stats()["compressed_tensors"]
    run()
    return bool(hvd.stats()["compressed_tensors"] > before)


def large_single_collectives_are_compressed(store: str) -> None:
    rank, size = start(store)
    rows = [torch.randn(COUNT, generator=torch.Generator().manual_seed(r)) for r in range(size)]
    mine, every, part = rows[rank], torch.empty(size * COUNT), torch.empty(COUNT)
    wide = torch.cat(rows[rank:] + rows[:rank])
    assert not is_compressed(lambda: dist.all_gather_into_tensor(every, mine))
    exact = every.clone()

    compress_group()
    assert is_compressed(lambda: dist.all_gather_into_tensor(every, mine))
    assert 0 < (every - exact).norm() < 0.01 * exact.norm()
    others = [torch.empty_like(every) for _ in range(size)]
    assert not is_compressed(lambda: dist.all_gather(others, every))
    assert all(torch.equal(other, every) for other in others)
    total = torch.stack([torch.cat(rows[r:] + rows[:r]) for r in range(size)]).sum(0)
    total = total[rank * COUNT : (rank + 1) * COUNT]
    for op, factor in ((dist.ReduceOp.SUM, 1), (dist.ReduceOp.AVG, 1 / size)):
        assert is_compressed(partial(dist.reduce_scatter_tensor, part, wide, op=op))
        assert 0 < (part - factor * total).norm() < 0.01 * factor * total.norm()

    small = torch.empty(size * 100)
    assert not is_compressed(lambda: dist.all_gather_into_tensor(small, mine[:100].clone()))
    whole = torch.empty(size * COUNT, dtype=torch.int64)
    assert not is_compressed(lambda: dist.all_gather_into_tensor(whole, mine.long()))
    compress_group(weights=None, gradients=None)
    assert not is_compressed(lambda: dist.all_gather_into_tensor(every, mine))
    assert torch.equal(every, exact)

    if rank % 2:
        compress_group()
    with pytest.raises(RankMismatchError, match=r"Mismatched compression: .*no compression"):
        dist.all_gather_into_tensor(every, mine)


def fsdp_trains_and_full_tensors_are_exact(store: str) -> None:
    start(store)
    model = sharded(None)
    compress_group()
    assert is_compressed(lambda: loss_of(model, 0).backward())
    for parameter in model.parameters():
        local = parameter.to_local()
        full: torch.Tensor = parameter.full_tensor()
        begin = -(-full.size(0) // dist.get_world_size()) * dist.get_rank()
        assert torch.equal(full[begin : begin + local.size(0)], local)
    assert not is_compressed(lambda: [p.full_tensor() for p in model.parameters()])


def what_is_not_possible_says_why(store: str) -> None:
    start(store)
    with pytest.raises(ValueError, match=r"gradients is 'int4'; allowed .* have no names"):
        compress_group(gradients="int4")
    gloo = dist.new_group(backend="gloo")
    with pytest.raises(TypeError, match="takes a group of the backend lightcc"):
        compress_group(gloo)


@pytest.mark.parametrize(
    "program",
    [
        large_single_collectives_are_compressed,
        fsdp_trains_and_full_tensors_are_exact,
        what_is_not_possible_says_why,
    ],
    ids=lambda program: program.__name__,
)
def test_compressed_groups(tmp_path: Path, program: Any) -> None:
    spawn_ranks(program, 4, os.fspath(tmp_path / "store"), hosts=HOSTS)
