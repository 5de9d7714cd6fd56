"""HSDP by `lightcc.torch.fsdp`, on two hosts of two ranks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from fsdp_models import HOSTS, SMALL, WIDTH, WORDS, Model, loss_of, sent, sharded, take_step
from groups import start
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy

import lightcc.torch as hvd
from lightcc import _world
from lightcc.testing import spawn_ranks
from lightcc.torch import Compression, fsdp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.multiproc, pytest.mark.filterwarnings("ignore::FutureWarning")]


def values(model: Any) -> torch.Tensor:
    """Returns this rank's shards as one vector."""
    parts = [p.to_local().detach().flatten() for p in model.parameters()]
    return torch.cat(parts)


def check_replicas(model: Any, row: Any) -> None:
    mine = values(model)
    others = [torch.empty_like(mine) for _ in range(row.size())]
    dist.all_gather(others, mine, group=row.get_group())
    assert all(torch.equal(mine, other) for other in others)


def gloo_mesh() -> DeviceMesh:
    """Returns a mesh of the same ranks as `host_mesh()`, for torch's own HSDP."""
    rows = torch.tensor(_world.current().hosts)
    groups = []
    for ranks in (*rows.T.tolist(), *rows.tolist()):
        group = dist.new_group(ranks, backend="gloo")
        if dist.get_rank() in ranks:
            groups.append(group)
    return DeviceMesh.from_group(groups, "cpu", rows, mesh_dim_names=("replicate", "shard"))


def plain(model: Any, step: int) -> None:
    loss_of(model, step).backward()


def twice(model: Any, step: int) -> None:
    """A pass in which each module runs, and so is reduced, two times."""
    (loss_of(model, step) + loss_of(model, step + 50)).backward()


def without_sync(model: Any, step: int) -> None:
    model.set_requires_gradient_sync(False)
    loss_of(model, step).backward()
    model.set_requires_gradient_sync(True)
    loss_of(model, step + 50).backward()


def without_all_reduce(model: Any, step: int) -> None:
    model.set_requires_all_reduce(False)
    loss_of(model, step).backward()
    loss_of(model, step + 70).backward()
    model.set_requires_all_reduce(True)
    loss_of(model, step + 50).backward()


def with_sync_each_time(model: Any, step: int) -> None:
    loss_of(model, step).backward()
    loss_of(model, step + 50).backward()


def with_factor(model: Any, step: int) -> None:
    for module in (*model.blocks, model):
        module.set_gradient_divide_factor(6.0)
        module.set_force_sum_reduction_for_comms(True)  # Gloo has no other factors.
    loss_of(model, step).backward()


def dense_steps_are_those_of_torch(store: str) -> None:
    start(store)
    mesh, native = fsdp.host_mesh(), gloo_mesh()
    assert mesh.mesh_dim_names == ("replicate", "shard")
    assert mesh.mesh.tolist() == [[0, 1], [2, 3]]
    half = {"mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)}
    cases: list[tuple[Callable[[Any, int], None], dict[str, Any], float]] = [
        (plain, {}, 1e-6),
        (plain, {"reshard_after_forward": False}, 1e-6),
        (plain, half, 4e-3),
        (twice, {}, 1e-6),
        (without_sync, {}, 1e-6),
        (without_all_reduce, {}, 1e-6),
        (without_all_reduce, half, 4e-3),
        (with_sync_each_time, {}, 1e-6),
        (with_factor, {}, 1e-6),
    ]
    for i, (backward, options, tolerance) in enumerate(cases):
        # The first replica's weights count. On gloo they are the same from the start.
        ours = sharded(mesh["shard"], seed=3 + mesh.get_local_rank(0), **options)
        fsdp.replicate(ours, mesh["replicate"], name=f"case{i}")
        theirs = sharded(native, **options)
        for model in (ours, theirs):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(3):
                optimizer.zero_grad()
                backward(model, step)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        torch.testing.assert_close(values(ours), values(theirs), atol=tolerance, rtol=0)
        assert torch.equal(ours.shift, theirs.shift)
        check_replicas(ours, mesh["replicate"])


def test_dense_steps_are_those_of_torch(tmp_path: Path) -> None:
    spawn_ranks(dense_steps_are_those_of_torch, 4, os.fspath(tmp_path / "store"), hosts=HOSTS)


def replicas_train_on_their_own(store: str) -> None:
    """As one for two steps, and then each host by itself, as if it were alone with torch's FSDP."""
    start(store)
    mesh = fsdp.host_mesh()
    model = sharded(mesh["shard"])
    replicas = fsdp.replicate(model, mesh["replicate"])
    optimizer = hvd.LocalSteps(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        every=2,
        dense_steps=2,
        outer_momentum=0.5,
        outer_lr=0.8,
        compression=hvd.Compression.none,
        workers=replicas,
    )
    other = sharded(mesh["shard"])
    alone = torch.optim.SGD(other.parameters(), lr=0.1)

    take_step(model, optimizer, 0)
    take_step(model, optimizer, 1)
    check_replicas(model, mesh["replicate"])
    with torch.no_grad():
        for mine, its in zip(other.parameters(), model.parameters(), strict=True):
            mine.copy_(its)
    starts, momentum = values(model), torch.zeros(())
    for first in (2, 4):
        for number in (first, first + 1):
            take_step(other, alone, number)
            if number == first + 1:
                saved = optimizer.state_dict()
                optimizer.load_state_dict(saved)
            take_step(model, optimizer, number)
        delta = starts - values(other)
        dist.all_reduce(delta, group=mesh["replicate"].get_group())
        delta /= 2
        momentum = 0.5 * momentum + delta
        starts = starts - 0.8 * (delta + 0.5 * momentum)
        torch.testing.assert_close(values(model), starts, atol=1e-6, rtol=0)
        check_replicas(model, mesh["replicate"])
        with torch.no_grad():
            for mine, its in zip(other.parameters(), model.parameters(), strict=True):
                mine.copy_(its)


def test_replicas_train_on_their_own(tmp_path: Path) -> None:
    spawn_ranks(replicas_train_on_their_own, 4, os.fspath(tmp_path / "store"), hosts=HOSTS)


def int4_trains(store: str) -> None:
    start(store)
    mesh = fsdp.host_mesh()
    model = sharded(mesh["shard"])
    model.blocks[0].compile(backend="eager")
    fsdp.replicate(model, mesh["replicate"], gradients="int4")
    # Halves of parameters, which two hosts send in two halves each: 4 bits, the embedding 8.
    scaled = {4: 4 / 8 + 2 / 128, 8: 1 + 2 / 128}
    expected = (2 * 2 * 16384 + WORDS * WIDTH) / 2 * scaled[4] + WORDS * WIDTH / 2 * scaled[8]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(30):
        before = sent()
        optimizer.zero_grad()
        loss = loss_of(model, step, short=step % 3 == 1)  # Then `down` has no gradient.
        loss.backward()
        assert sent() - before == expected
        optimizer.step()
        check_replicas(model, mesh["replicate"])
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


def test_int4_trains_and_sends_what_the_formula_says(tmp_path: Path) -> None:
    spawn_ranks(int4_trains, 4, os.fspath(tmp_path / "store"), hosts=HOSTS, env=SMALL)


def residuals() -> dict[Any, bytes]:
    """Returns this rank's residuals, without what counts steps at their beginning."""
    return {key: it[16:] for key, it in _world.current().save_compression().items()}


def what_is_not_finite_changes_no_residual(store: str) -> None:
    start(store)
    mesh = fsdp.host_mesh()
    for i, gradients in enumerate(("int4", "int8", Compression.topk(0.05))):
        model = sharded(mesh["shard"])
        fsdp.replicate(model, mesh["replicate"], gradients=gradients, name=f"model{i}")
        loss_of(model, 0).backward()
        before = residuals()
        assert before
        model.zero_grad()
        (loss_of(model, 1) * (float("nan") if dist.get_rank() == 2 else 1.0)).backward()
        norm: Any = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert not norm.full_tensor().isfinite()
        assert residuals() == before
        model.zero_grad()


def test_what_is_not_finite_changes_no_residual(tmp_path: Path) -> None:
    store = os.fspath(tmp_path / "store")
    spawn_ranks(what_is_not_finite_changes_no_residual, 4, store, hosts=HOSTS, env=SMALL)


def train(model: Any, optimizer: Any, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        without_all_reduce(model, step)
        optimizer.step()


def a_checkpoint_goes_on(store: str, folder: str) -> None:
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    start(store)
    dcp: Any = checkpoint
    mesh = fsdp.host_mesh()

    def begin(seed: int, name: str) -> tuple[Any, Any]:
        model = sharded(mesh["shard"], seed)
        fsdp.replicate(model, mesh["replicate"], gradients="int4", name=name)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    whole, optimizer = begin(3, "whole")
    train(whole, optimizer, range(4))

    model, optimizer = begin(3, "parts")
    train(model, optimizer, range(2))
    parts: Any = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.save(parts, checkpoint_id=folder)
    hvd.save_compression_state(folder + "/residuals")
    train(model, optimizer, range(7, 9))  # Nothing of this must be left.

    model, optimizer = begin(9, "parts")
    parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.load(parts, checkpoint_id=folder)
    set_state_dict(
        model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"]
    )
    assert hvd.load_compression_state(folder + "/residuals") > 0
    train(model, optimizer, range(2, 4))
    assert torch.equal(values(model), values(whole))


def test_a_checkpoint_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    store, folder = os.fspath(tmp_path / "store"), os.fspath(tmp_path / "saved")
    spawn_ranks(a_checkpoint_goes_on, 4, store, folder, hosts=HOSTS, env=SMALL)


def what_cannot_work_is_refused(store: str) -> None:
    with pytest.raises(ValueError, match=r"comes after torch\.distributed\.init_process_group"):
        fsdp.host_mesh()
    start(store)
    mesh = fsdp.host_mesh()
    rows = mesh["replicate"]

    def refused(model: Any, text: str, row: Any = rows, **options: Any) -> None:
        with pytest.raises((ValueError, TypeError), match=text):
            fsdp.replicate(model, row, **options)

    good = sharded(mesh["shard"])
    refused(Model(1), "no FSDP modules")
    refused(sharded(mesh), "FSDP would all-reduce by itself")
    refused(sharded(None), "only this rank may be in both")
    refused(good, "only this rank may be in both", mesh["shard"])
    refused(good, "replicate.. takes mesh", mesh)
    refused(good, "backend 'gloo': lightcc averages over a mesh", gloo_mesh()["replicate"])
    refused(good, "MixedPrecisionPolicy", gradients="fp8")
    refused(good, "auto compression is for DistributedOptimizer", gradients=Compression.auto())
    refused(
        good,
        "has int. gradients of 3 modules as .fsdp., and rank",
        gradients=f"int{(4, 8)[dist.get_rank() % 2]}",
    )
    outer = nn.Sequential(good, nn.Linear(2, 2))
    refused(outer, "in no FSDP module would differ between replicas: 1.weight, 1.bias")
    with torch.device("meta"):
        refused(sharded(mesh["shard"]), "on the meta device")

    fsdp.replicate(good, rows, gradients="int4")
    good.set_reduce_scatter_unused_params(False)
    with pytest.raises(RuntimeError, match=r"a parameter has no gradient .8384 of 16608"):
        loss_of(good, 0, short=True).backward()


def test_what_cannot_work_is_refused(tmp_path: Path) -> None:
    store = os.fspath(tmp_path / "store")
    spawn_ranks(what_cannot_work_is_refused, 4, store, hosts=HOSTS, env=SMALL)


def hosts_of_other_sizes(store: str) -> None:
    start(store)
    with pytest.raises(ValueError, match=r"have 1 \(ranks \[0\]\), 2 \(ranks \[1, 2\]\)"):
        fsdp.host_mesh()


def one_host(store: str) -> None:
    start(store)
    mesh = fsdp.host_mesh()
    assert mesh.mesh.tolist() == [[0, 1]]
    model = sharded(mesh["shard"])
    fsdp.replicate(model, mesh["replicate"], gradients="int4")
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), range(2))
    assert not residuals()


def test_hosts_of_other_sizes_and_one_host(tmp_path: Path) -> None:
    spawn_ranks(hosts_of_other_sizes, 3, os.fspath(tmp_path / "store"), hosts=[0, 1, 1])
    spawn_ranks(one_host, 2, os.fspath(tmp_path / "other"), env=SMALL)
