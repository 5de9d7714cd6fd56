"""FSDP2 with compressed collectives by `lightcc.torch.fsdp.compress()`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from fsdp_models import HOSTS, WIDTH, WORDS, Model, loss_of, sent, sharded, take_step
from groups import start
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy

import lightcc.torch as hvd
from lightcc import _world
from lightcc.testing import spawn_ranks
from lightcc.torch import Compression, fsdp

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.multiproc, pytest.mark.filterwarnings("ignore::FutureWarning")]

STEPS = 12
LARGE = 2 * 2 * 16384 + WORDS * WIDTH  # Linear layers of two blocks, and the head.
WORD = WORDS * WIDTH
SCALED = {4: 4 / 8 + 2 / 128, 8: 1 + 2 / 128}


def full(model: Any) -> torch.Tensor:
    return torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])


def train(model: Any, steps: int = STEPS) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, step, short=step % 3 == 1)  # Then `down` has no gradient.
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def exact_ways_are_those_of_torch(_: Any) -> None:
    """What nobody compresses has the values of torch's own collectives."""
    cases: list[dict[str, Any]] = [
        {},
        {"reshard_after_forward": False},
        {"reshard_after_forward": 2},
        {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)},
    ]
    for i, options in enumerate(cases):
        ours, theirs = sharded(None, **options), sharded(None, **options)
        fsdp.compress(ours, weights=None, gradients=None, name=f"none{i}")
        train(ours), train(theirs)
        torch.testing.assert_close(full(ours), full(theirs), atol=1e-5, rtol=0)
    for factor in (None, 6.0):
        ours, theirs = sharded(None), sharded(None)
        fsdp.compress(ours, weights="int8", gradients="int8", name=f"factor{factor}")
        for model in (ours, theirs):
            if factor is not None:
                for module in (*model.blocks, model):
                    module.set_gradient_divide_factor(factor)
            loss_of(model, 0).backward()
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            a, b = p.grad.full_tensor(), q.grad.full_tensor()
            assert (a - b).norm() < 0.03 * b.norm(), factor


def bytes_are_those_of_the_formula(_: Any) -> None:
    """A rank sends its quarter to the other host: weights twice, or once; gradients once."""
    weights = (LARGE + WORD) / 4 * SCALED[8]
    gradients = LARGE / 4 * SCALED[4] + WORD / 4 * SCALED[8]
    exact = sum(p.numel() for p in Model(1).parameters()) - LARGE - WORD
    small = exact / 4 * 4
    cases: list[tuple[dict[str, Any], float]] = [
        ({}, 2 * weights + gradients),
        ({"reshard_after_forward": False}, weights + gradients),
        ({"reshard_after_forward": 2}, weights + gradients),
    ]
    for i, (options, expected) in enumerate(cases):
        model = sharded(None, **options)
        if not options:
            model.set_reshard_after_forward(True)  # The root as well.
        fsdp.compress(model, name=f"bytes{i}")
        before = sent()
        loss_of(model, 0).backward()
        spent = sent() - before
        gathers = 2 if not options else 1
        # Small parameters are exact, and padded to as many elements on all ranks.
        assert expected <= spent - (gathers + 1) * small <= expected + 64, (options, spent)


def int8_and_int4_train(folder: str) -> None:
    model, dense = sharded(None), sharded(None)
    model.blocks[0].compile(backend="eager")
    fsdp.compress(model)
    ours, theirs = train(model, 30), train(dense, 30)
    assert ours[-1] < 0.2 * ours[0]
    assert abs(ours[-1] - theirs[-1]) < 0.1 * theirs[0]
    everybody = [torch.empty(1)] * dist.get_world_size()
    mine = full(model)
    everybody = [torch.empty_like(mine) for _ in everybody]
    dist.all_gather(everybody, mine)
    assert all(torch.equal(mine, other) for other in everybody)
    names = {name.split("fsdp.")[1] for _, name in _world.current().save_compression()}
    assert names == {"blocks.0.gradients", "blocks.1.gradients", "root.gradients"}
    # Gathered weights have the same bits on all ranks, and those of the next gather.
    with torch.no_grad():
        model.unshard()
        gathered = model.words.weight.detach().clone()
        others = [torch.empty_like(gathered) for _ in range(dist.get_world_size())]
        dist.all_gather(others, gathered)
        assert all(torch.equal(gathered, other) for other in others)
        model.reshard()
        exact = model.words.weight.full_tensor()
        assert 0 < (gathered - exact).norm() < 0.01 * exact.norm()
    hvd.save_compression_state(folder)
    hvd.barrier()
    assert hvd.load_compression_state(folder) == 3


def differences_of_resident_weights(_: Any) -> None:
    """int4 differences are closer to the weights than int8, and the backward pass sends nothing."""
    model, dense = sharded(None), sharded(None)
    for module in (model, *model.blocks):
        module.set_modules_to_forward_prefetch([*model.blocks] if module is model else [])
    fsdp.compress(model, weights="int4", gradients=None, resident=True)

    def gathered() -> torch.Tensor:
        with torch.no_grad():
            model.unshard()
            mine: torch.Tensor = model.words.weight.detach().clone()
            model.reshard()
        others = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(others, mine)
        bits = mine.view(torch.int32)  # Those that are not numbers are equal to nothing.
        assert all(torch.equal(bits, other.view(torch.int32)) for other in others)
        return mine

    ours, theirs = (torch.optim.AdamW(it.parameters(), lr=3e-3) for it in (model, dense))
    take_step(model, ours, 0), take_step(dense, theirs, 0)
    weights = LARGE / 4 * SCALED[4] + WORD / 4 * SCALED[8]
    small = sum(p.numel() for p in model.parameters()) - LARGE - WORD
    for number in range(1, 20):
        spent = take_step(model, ours, number)
        assert weights <= spent - small <= weights + 64, spent
        take_step(dense, theirs, number)
    assert (full(model) - full(dense)).norm() < 0.02 * full(dense).norm()
    exact = model.words.weight.full_tensor()
    assert 0 < (gathered() - exact).norm() < 1e-3 * exact.norm()
    # What is not finite is not kept: the gather after the next one brings whole weights.
    saved = [p.detach().clone() for p in model.parameters()]
    take_step(model, ours, 20, float("nan"))
    assert not gathered().isfinite().all()
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), saved, strict=True):
            parameter.copy_(value)
    assert torch.equal(gathered(), exact)


def micro_batches_and_what_is_not_finite(_: Any) -> None:
    model = sharded(None)
    fsdp.compress(model, name="micro")
    model.set_requires_gradient_sync(False)
    before = sent()
    loss_of(model, 0).backward()
    gathers = sent() - before
    model.set_requires_gradient_sync(True)
    loss_of(model, 1).backward()
    assert sent() - before > 2 * gathers

    def residuals() -> list[bytes]:
        return [it[16:] for it in _world.current().save_compression().values()]

    kept = residuals()
    assert kept
    model.zero_grad()
    (loss_of(model, 1) * (float("nan") if dist.get_rank() == 2 else 1.0)).backward()
    norm: Any = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert not norm.full_tensor().isfinite()
    assert residuals() == kept


def what_cannot_work_is_refused(_: Any) -> None:
    good = sharded(None)

    def refused(text: str, model: Any = good, **options: Any) -> None:
        with pytest.raises((ValueError, TypeError), match=text):
            fsdp.compress(model, **options)

    refused("weights in int4: training lost 13%", weights="int4")
    refused("resident=True is for weights=", weights=None, resident=True)
    refused("reshards after forward", sharded(None, reshard_after_forward=2), resident=True)
    refused("weights by top-k: allowed are", weights="topk")
    refused("gradients by top-k: a reduce-scatter takes", gradients=Compression.topk(0.1))
    refused("weights is 'fp8'; allowed are None", weights="fp8")
    refused("no FSDP modules", Model(1))
    refused(
        "takes one dimension", sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b")))
    )
    turned = DeviceMesh("cpu", [3, 2, 1, 0])
    refused(r"the ranks \[3, 2, 1, 0\]", sharded(turned))
    gradients = f"int{(4, 8)[dist.get_rank() % 2]}"
    refused("has int8 weights and int. gradients of 3 modules as .fsdp., and", gradients=gradients)


PROGRAMS = (
    exact_ways_are_those_of_torch,
    bytes_are_those_of_the_formula,
    int8_and_int4_train,
    differences_of_resident_weights,
    micro_batches_and_what_is_not_finite,
    what_cannot_work_is_refused,
)


def state_of(model: Any, optimizer: Any) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def saves_a_checkpoint(folder: str) -> None:
    """Plainly, and while training goes on; what is saved are the exact shards."""
    model = sharded(None)
    fsdp.compress(model, weights="int4", resident=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    take_step(model, optimizer, 0), take_step(model, optimizer, 1)
    state = state_of(model, optimizer)
    state_dict_saver.save(state, checkpoint_id=f"{folder}/plain")
    saving: Any = state_dict_saver.async_save(
        state, checkpoint_id=f"{folder}/async", process_group=dist.new_group(backend="gloo")
    )
    weights = full(model)
    take_step(model, optimizer, 2)
    saving.result()
    if dist.get_rank() == 0:
        torch.save(weights, f"{folder}/weights")
    dist.barrier()


def loads_a_checkpoint(folder: str) -> None:
    """On fewer ranks, and goes on."""
    weights = torch.load(f"{folder}/weights")
    for i, way in enumerate(("plain", "async")):
        model = sharded(None, seed=5 + i)
        fsdp.compress(model, name=way)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        state = state_of(model, optimizer)
        state_dict_loader.load(state, checkpoint_id=f"{folder}/{way}")
        parts = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
        set_state_dict(model, optimizer, **parts)
        assert torch.equal(full(model), weights)
        before = loss_of(model, 0).item()
        for number in range(8):
            take_step(model, optimizer, number)
        assert loss_of(model, 0).item() < before


def test_checkpoints_load_on_other_ranks(tmp_path: Path) -> None:
    stores, folder = [os.fspath(tmp_path / it) for it in "ab"], os.fspath(tmp_path)
    spawn_ranks(run, 4, stores[0], folder, saves_a_checkpoint, hosts=HOSTS)
    spawn_ranks(run, 2, stores[1], folder, loads_a_checkpoint, hosts=[0, 1])


def run(store: str, folder: str, program: Any) -> None:
    start(store)
    program(folder)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_sharded_training(tmp_path: Path, program: Any) -> None:
    store, folder = os.fspath(tmp_path / "store"), os.fspath(tmp_path / "saved")
    spawn_ranks(run, 4, store, folder, program, hosts=HOSTS)
