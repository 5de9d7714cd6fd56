"""The communication hook for DistributedDataParallel, on 2 x 2 ranks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from two_by_two import TWO_BY_TWO, batch, make_model, sgd, train, weights

import lightcc.torch as hvd
from lightcc import _world
from lightcc.testing import spawn_ranks
from lightcc.torch import ddp_hooks

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.multiproc


#: Compression by a hook, and the same of an optimizer.
WAYS: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
    "top-k": (
        lambda model: ddp_hooks.TopKState(model, 0.05, exact=True),
        ddp_hooks.topk_2d_hook,
        hvd.Compression.topk(0.05, exact=True),
    ),
    "all elements": (
        lambda model: ddp_hooks.TopKState(model, 1.0, exact=True),
        ddp_hooks.topk_2d_hook,
        hvd.Compression.topk(1.0, exact=True),
    ),
    "int8": (ddp_hooks.QuantizedState, ddp_hooks.quantized_2d_hook, hvd.Compression.int8),
    "int4": (
        lambda model: ddp_hooks.QuantizedState(model, 4),
        ddp_hooks.quantized_2d_hook,
        hvd.Compression.int4,
    ),
}


def the_hook_trains_as_the_optimizer_does(store: str) -> list[list[float]]:
    return [train_by_hook(store + way, way) for way in WAYS]


def train_by_hook(store: str, way: str) -> list[float]:
    hvd.init()
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=hvd.rank(), world_size=hvd.size()
    )
    model = DistributedDataParallel(make_model(), bucket_cap_mb=0.002)
    make_state, hook, compression = WAYS[way]
    model.register_comm_hook(make_state(model), hook)
    train(model, sgd(model, lr=0.1), range(6))

    reference = make_model()
    optimizer = hvd.DistributedOptimizer(
        sgd(reference, lr=0.1), reference.named_parameters(), compression=compression
    )
    train(reference, optimizer, range(6))
    hooked = weights(model)
    assert torch.equal(hooked, weights(reference))
    assert hvd.stats()["compressed_tensors"] > 0
    dist.destroy_process_group()
    hvd.shutdown()
    return [float(value) for value in hooked]


def test_the_hook_has_the_bits_of_the_optimizer(tmp_path: Any) -> None:
    store = os.fspath(tmp_path / "store")
    results = spawn_ranks(the_hook_trains_as_the_optimizer_does, 4, store, env=TWO_BY_TWO)
    assert all(result == results[0] for result in results)


def a_failed_world_fails_the_backward_pass(store: str) -> None:
    hvd.init()
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=hvd.rank(), world_size=hvd.size()
    )
    model = DistributedDataParallel(make_model())
    model.register_comm_hook(ddp_hooks.TopKState(model), ddp_hooks.topk_2d_hook)
    x, y = batch(0)
    if hvd.rank() == 1:
        _world.current().shutdown()
        dist.destroy_process_group()
        return
    with pytest.raises(Exception, match="rank 1"):
        nn.functional.mse_loss(model(x), y).backward()


def test_a_rank_that_leaves_is_an_error_of_the_backward_pass(tmp_path: Any) -> None:
    spawn_ranks(a_failed_world_fails_the_backward_pass, 2, os.fspath(tmp_path / "store"))


def ranks_compress_differently(store: str) -> None:
    hvd.init()
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=hvd.rank(), world_size=hvd.size()
    )
    model = DistributedDataParallel(make_model())
    ratio = 0.01 * (1 + hvd.rank())
    model.register_comm_hook(ddp_hooks.TopKState(model, ratio), ddp_hooks.topk_2d_hook)
    x, y = batch(0)
    with pytest.raises(RuntimeError, match="RankMismatchError: Mismatched compression"):
        nn.functional.mse_loss(model(x), y).backward()
    dist.destroy_process_group()


def test_an_error_of_an_operation_is_one_of_the_backward_pass(tmp_path: Any) -> None:
    spawn_ranks(ranks_compress_differently, 4, os.fspath(tmp_path / "store"), env=TWO_BY_TWO)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="ratio must be above 0"):
        ddp_hooks.TopKState(make_model(), ratio=0.0)
    with pytest.raises(ValueError, match="bits is 2: expected 8 or 4"):
        ddp_hooks.QuantizedState(make_model(), bits=2)
    with pytest.raises(AttributeError, match="PowerSGDState is no longer in lightcc: use"):
        _ = ddp_hooks.PowerSGDState
