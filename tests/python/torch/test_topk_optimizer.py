"""DistributedOptimizer with compression, on 2 x 2 ranks: its state, momentum and scale."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from two_by_two import TWO_BY_TWO, batch, make_model, sgd, train, weights

import lightcc.torch as hvd
from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.multiproc


def distributed(model: nn.Module, inner: Any = None, **options: Any) -> Any:
    options.setdefault("compression", hvd.Compression.topk(0.05))
    return hvd.DistributedOptimizer(inner or sgd(model), model.named_parameters(), **options)


def run(program: Callable[..., Any], *arguments: Any, ranks: int = 4, **env: str) -> list[Any]:
    return spawn_ranks(program, ranks, *arguments, env={**TWO_BY_TWO, **env})


# -- Saving and loading ---------------------------------------------------------------------------


def resume_by_each_way(folder: str) -> list[list[float]]:
    ways = [
        hvd.Compression.topk(0.05, warmup_steps=6),
        hvd.Compression.topk(0.05, momentum_correction=True),
        hvd.Compression.int8,
        hvd.Compression.int4,
    ]
    return [resume(f"{folder}/{i}", way) for i, way in enumerate(ways)]


def resume(folder: str, compression: Any) -> list[float]:
    """Trains 8 steps; then 4, saves, forgets everything, loads, and 4 more."""
    hvd.init()
    model = make_model()
    train(model, distributed(model, compression=compression), range(8))
    expected = weights(model)
    hvd.shutdown()

    hvd.init()
    model = make_model()
    optimizer = distributed(model, compression=compression)
    train(model, optimizer, range(4))
    hvd.save_compression_state(folder)
    by_optimizer = pickle.dumps(optimizer.compression_state_dict())
    checkpoint = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    assert set(optimizer.state_dict()) == {"state", "param_groups"}  # As without compression.
    hvd.shutdown()

    for source in ("folder", "optimizer"):
        hvd.init()
        model = make_model()
        optimizer = distributed(model, compression=compression)
        model.load_state_dict(checkpoint[0])
        optimizer.load_state_dict(copy.deepcopy(checkpoint[1]))
        if source == "folder":
            assert hvd.load_compression_state(folder) == 4
        else:
            optimizer.load_compression_state_dict(pickle.loads(by_optimizer))
        train(model, optimizer, range(4, 8))
        assert torch.equal(weights(model), expected), source
        hvd.shutdown()
    return [float(value) for value in expected]


def test_training_resumes_with_the_same_bits(tmp_path: Path) -> None:
    results = run(resume_by_each_way, str(tmp_path))
    assert all(result == results[0] for result in results)


def what_is_kept_back_by_each(folder: str, step: str) -> list[Any]:
    return [
        what_is_kept_back(f"{folder}/{i}", step, compression)
        for i, compression in enumerate(COMPRESSIONS)
    ]


def what_is_kept_back(folder: str, step: str, compression: Any) -> Any:
    hvd.init()
    found = kept_back(folder, step, compression)
    hvd.barrier()
    hvd.shutdown()
    return found


def kept_back(folder: str, step: str, compression: Any) -> Any:
    x = torch.arange(1.0, 1001.0) * (hvd.rank() + 1)
    if step == "save":
        sent = hvd.allreduce(x, name="x", op=hvd.Sum, compression=compression)
        hvd.save_compression_state(folder)
        return sent.tolist()
    loaded = hvd.load_compression_state(folder)
    rest = hvd.allreduce(
        torch.zeros(1000), name="x", op=hvd.Sum, compression=hvd.Compression.topk(1.0)
    )
    return loaded, rest.tolist()


COMPRESSIONS = [hvd.Compression.topk(0.05), hvd.Compression.int8(), hvd.Compression.int4()]


def test_another_number_of_ranks_per_host_divides_what_was_kept_back_anew(tmp_path: Path) -> None:
    before, after = [0, 0, 1, 1], [0, 0, 0, 1, 1, 1]
    env = {"LIGHT_TOPK_THRESHOLD": "0"}
    folder = str(tmp_path)
    call = what_is_kept_back_by_each
    sent_by_each = spawn_ranks(call, 4, folder, "save", env=env, hosts=before)[0]
    put_in = (torch.arange(1.0, 1001.0) * 10).tolist()
    for results in spawn_ranks(call, 6, folder, "load", env=env, hosts=after):
        for sent, (loaded, rest) in zip(sent_by_each, results, strict=True):
            assert loaded == 1
            assert [a + b for a, b in zip(sent, rest, strict=True)] == put_in


def test_another_number_of_hosts_divides_what_was_kept_back_anew(tmp_path: Path) -> None:
    before, after = [0, 1, 2, 3], [0, 1]
    env = {"LIGHT_TOPK_THRESHOLD": "0"}
    compression = hvd.Compression.topk(0.05)
    call = (what_is_kept_back, 4, str(tmp_path), "save", compression)
    sent = spawn_ranks(*call, env=env, hosts=before)[0]
    call = (what_is_kept_back, len(after), str(tmp_path), "load", compression)
    put_in = (torch.arange(1.0, 1001.0) * 10).tolist()
    for loaded, rest in spawn_ranks(*call, env=env, hosts=after):
        assert loaded == 1
        assert [a + b for a, b in zip(sent, rest, strict=True)] == put_in
    (tmp_path / "compression-3.zip").unlink()
    for loaded, rest in spawn_ranks(*call, env=env, hosts=after):
        assert loaded == 0
        assert not any(rest)


def broadcast_state_and_rank_zero_checkpoints_are_horovods() -> None:
    hvd.init()
    model = make_model()
    optimizer = distributed(model)
    train(model, optimizer, range(3))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    train(model, optimizer, range(3, 6))
    assert hvd.stats()["compressed_tensors"] == 6 * 4


# -- Momentum -------------------------------------------------------------------------------------


def what_is_sent_takes_its_velocity_along() -> None:
    """With a ratio of 1 there is no residual, nor velocity: each step is one of plain SGD."""
    hvd.init()
    corrected, plain = make_model(), make_model()
    topk = hvd.Compression.topk(1.0, momentum_correction=True)
    optimizer = distributed(corrected, compression=topk)
    groups = [{**group} for group in optimizer.param_groups]
    train(corrected, optimizer, range(6))
    assert optimizer.param_groups == groups
    train(plain, distributed(plain, sgd(plain, 0.0), compression=hvd.Compression.none), range(6))
    assert torch.equal(weights(corrected), weights(plain))


def small_parameters_keep_their_momentum() -> None:
    """Biases are below the threshold here, so the optimizer's momentum is theirs."""
    hvd.init()
    model = make_model()
    topk = hvd.Compression.topk(0.05, momentum_correction=True)
    optimizer = distributed(model, compression=topk)
    train(model, optimizer, range(3))
    for name, p in model.named_parameters():
        has_momentum = "momentum_buffer" in optimizer.state[p]
        assert has_momentum == (p.numel() * 4 < 1024), name


def test_momentum_of_what_is_not_compressed_stays_the_optimizers() -> None:
    run(small_parameters_keep_their_momentum, LIGHT_TOPK_THRESHOLD="1024")


def weights_decay_as_much() -> None:
    """There are no gradients, so weights decay only, which the momentum of SGD adds up."""
    hvd.init()
    moved: list[float] = []
    for topk in (hvd.Compression.topk(1.0, momentum_correction=True), hvd.Compression.none):
        p = nn.Parameter(torch.ones(64))
        inner = torch.optim.SGD([p], lr=1e-3, momentum=0.9, weight_decay=0.1)
        optimizer = hvd.DistributedOptimizer(inner, [(f"{len(moved)}", p)], compression=topk)
        before = p.detach().clone()
        for step in range(100):
            optimizer.zero_grad()
            (p * 0.0).sum().backward()
            if step == 50:  # Momentum is there by now.
                before = p.detach().clone()
            optimizer.step()
        moved.append(float((before - p.detach()).mean()))
    assert abs(moved[0] / moved[1] - 1.0) < 0.03, moved  # Without that: 0.1.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), "the same momentum in all parameter groups"),
        (lambda p: torch.optim.Adam(p, lr=0.1), "the same momentum in all parameter groups"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), "without nesterov"),
    ],
)
def test_momentum_correction_refuses_what_it_cannot_replace(make: Any, message: str) -> None:
    hvd.init()
    model = make_model()
    topk = hvd.Compression.topk(momentum_correction=True)
    with pytest.raises(ValueError, match=message):
        hvd.DistributedOptimizer(make(model.parameters()), compression=topk)
    hvd.shutdown()


def test_topk_needs_a_sum() -> None:
    hvd.init()
    model = make_model()
    for op in (hvd.Adasum, hvd.Min):
        for compression in (hvd.Compression.topk, hvd.Compression.int4):
            with pytest.raises(ValueError, match="needs op=Average or op=Sum"):
                hvd.DistributedOptimizer(sgd(model), compression=compression, op=op)
    hvd.shutdown()


# -- The scale of gradients -----------------------------------------------------------------------


def scaled_training(growth_interval: int, compression: Any) -> list[float]:
    """Scales are powers of two, so a scaled training is the same as one without, bit for bit."""
    hvd.init()
    plain = make_model()
    train(plain, distributed(plain, compression=compression), range(9))
    expected = weights(plain)
    hvd.shutdown()

    hvd.init()
    model = make_model()
    optimizer = distributed(model, compression=compression)
    scaler = hvd.GradScaler("cpu", init_scale=2.0**10, growth_interval=growth_interval)
    step = 0
    overflows = [3, 7]
    while step < 9:
        x, y = batch(step)
        optimizer.zero_grad()
        loss = scaler.scale(nn.functional.mse_loss(model(x), y))
        if step in overflows and hvd.rank() == 3:
            loss = loss * float("inf")
        loss.backward()
        before = weights(model)
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if step in overflows:
            # Void on all ranks, and done again with the scale halved.
            assert torch.equal(weights(model), before)
            assert scaler.get_scale() == scale / 2
            overflows.remove(step)
        else:
            step += 1
    assert torch.equal(weights(model), expected)
    hvd.shutdown()
    return [float(value) for value in expected]


def scaled_trainings() -> list[list[float]]:
    found = [scaled_training(2, compression) for compression in COMPRESSIONS]
    return [*found, scaled_training(1000, COMPRESSIONS[0])]


def test_overflows_and_changes_of_scale_leave_no_trace() -> None:
    results = run(scaled_trainings)
    assert all(result == results[0] for result in results)


def test_a_scale_that_is_none_is_refused() -> None:
    hvd.init()
    model = make_model()
    optimizer = distributed(model)
    for scale in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="scale is"):
            optimizer.set_gradient_scale(scale)
    hvd.shutdown()


def a_scaler_that_comes_late_is_refused() -> None:
    hvd.init()
    model = make_model()
    optimizer = distributed(model)
    x, y = batch(0)
    for scale, is_reported in ((4.0, True), (8.0, True), (16.0, False)):
        scaler = hvd.GradScaler("cpu", init_scale=scale)
        if is_reported:
            optimizer.set_gradient_scale(scale)
        optimizer.zero_grad()
        scaler.scale(nn.functional.mse_loss(model(x), y)).backward()
        if is_reported:
            scaler.step(optimizer)
            scaler.update()
            continue
        with pytest.raises(ValueError, match=r"multiplied by 16, .* have the scale 8"):
            scaler.step(optimizer)
    optimizer.synchronize()


# -- Groups and passes ----------------------------------------------------------------------------


def groups_have_the_same_bits(groups: Any) -> list[float]:
    hvd.init()
    model = make_model()
    if groups == "lists":
        parameters = list(model.parameters())
        groups = [parameters[:2], parameters[2:]]
    train(model, distributed(model, groups=groups), range(5))
    return [float(value) for value in weights(model)]


def groups_change_no_bit() -> None:
    results = []
    for groups in (None, 2, "lists"):
        results.append(groups_have_the_same_bits(groups))
        hvd.shutdown()
    assert results[0] == results[1] == results[2]


CHECKS: list[Callable[[], None]] = [
    broadcast_state_and_rank_zero_checkpoints_are_horovods,
    what_is_sent_takes_its_velocity_along,
    weights_decay_as_much,
    a_scaler_that_comes_late_is_refused,
    groups_change_no_bit,
]


def check_in_turn() -> None:
    for check in CHECKS:
        check()
        if hvd.is_initialized():
            hvd.barrier()  # Nobody leaves while others are on their way backwards.
            hvd.shutdown()


def test_momentum_scale_and_groups_on_the_same_ranks() -> None:
    run(check_in_turn)


# -- Fusion ---------------------------------------------------------------------------------------


#: A rule and a plan.
FUSED = ("none", "piecewise_fusion")

EVERYWHERE = {"LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_TOPK_RATIO": "0.05"}


def train_under_strategies() -> list[list[float]]:
    topk = hvd.Compression.none
    results = []
    for strategy in FUSED:
        hvd.init()
        model = make_model()
        train(model, distributed(model, compression=topk, fusion_type=strategy), range(4))
        assert hvd.stats()["compressed_tensors"] == 4 * len(list(model.parameters()))
        results.append(weights(model).tolist())
        hvd.shutdown()
    return results


def test_fusion_changes_no_bit_and_compresses_nothing_of_its_own() -> None:
    for results in spawn_ranks(train_under_strategies, 4, env={**TWO_BY_TWO, **EVERYWHERE}):
        assert results == [results[0]] * len(FUSED)
