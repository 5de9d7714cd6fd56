"""`Compression.auto(momentum_correction=True)`: top-k applies momentum in the optimizer's place."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from two_by_two import TWO_BY_TWO, make_model, sgd, train, weights

import lightcc.torch as hvd
from lightcc._adapter import compression_tuner
from lightcc.testing import spawn_ranks
from lightcc.torch._momentum import momentum_to_correct, take_out_of_momentum

MOMENTUM = 0.5


# -- The optimizer's part -------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"maximize": True}])
def test_what_comes_with_momentum_in_it_moves_weights_as_the_optimizer_would(
    options: dict[str, Any],
) -> None:
    torch.manual_seed(1)
    expected, found = (nn.Parameter(torch.ones(10, dtype=torch.float64)) for _ in range(2))
    plain, corrected = (
        torch.optim.SGD([p], lr=0.1, momentum=MOMENTUM, **options) for p in (expected, found)
    )
    velocity = torch.zeros(10, dtype=torch.float64)
    for step in range(20):
        gradient = torch.randn(10, dtype=torch.float64)
        expected.grad, found.grad = gradient, gradient
        is_corrected = 5 <= step < 15  # What was before goes on in the optimizer's momentum.
        if is_corrected:
            velocity = MOMENTUM * velocity + gradient
            found.grad = velocity
        elif step == 15:
            found.grad = gradient + MOMENTUM * velocity  # As the engine gives it back.
        plain.step()
        corrected.step()
        if is_corrected:
            take_out_of_momentum(corrected, [found])
        torch.testing.assert_close(found.detach(), expected.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("cls", "options", "expected"),
    [
        (torch.optim.SGD, {"momentum": 0.9}, 0.9),
        (torch.optim.SGD, {}, 0.0),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}, None),
        (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1}, None),
        (torch.optim.SGD, {"momentum": 0.9, "fused": True}, None),
        (torch.optim.RMSprop, {"momentum": 0.9}, None),
    ],
)
def test_plain_momentum_can_be_corrected(
    cls: Any, options: dict[str, Any], expected: float | None
) -> None:
    optimizer = cls(nn.Linear(2, 2).parameters(), lr=0.1, **options)
    assert momentum_to_correct(lambda: optimizer, cls) == expected
    assert momentum_to_correct(lambda: None, cls) is None


# -- All of it ------------------------------------------------------------------------------------


class Given(nn.Module):
    """A parameter whose gradient of each step is known."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1000, dtype=torch.float64))

    def step(self, optimizer: Any, gradient: torch.Tensor) -> None:
        optimizer.zero_grad()
        (self.weight * gradient).sum().backward()
        optimizer.step()


#: Whether top-k sends an element: it sends those alone that are large in all steps. The momentum of
#: what it sends it drops, as Deep Gradient Compression does.
LARGE = torch.arange(1000) % 500 < 30


def gradient_of(step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    gradient = torch.randn(1000, generator=generator, dtype=torch.float64)
    return torch.where(LARGE, 1e3 * (2.0 + gradient.abs()), gradient)


def make_optimizer(model: nn.Module, **options: Any) -> Any:
    inner = torch.optim.SGD(model.parameters(), lr=1.0, momentum=MOMENTUM)
    return hvd.DistributedOptimizer(
        inner,
        model.named_parameters(),
        compression=hvd.Compression.auto(momentum_correction=True, **options),
        op=hvd.Sum,
    )


def check_sum(model: Given, steps: int) -> None:
    """Compares what arrived of elements that top-k did not send, when momentum has ended."""
    each = torch.stack([gradient_of(step, rank) for step in range(steps) for rank in range(4)])
    expected = -each.sum(0) / (1.0 - MOMENTUM)
    torch.testing.assert_close(
        model.weight.detach()[~LARGE], expected[~LARGE], rtol=1e-6, atol=1e-6
    )
    mine = weights(model)
    assert torch.equal(hvd.broadcast(mine, 0), mine)


def momentum_of_every_way(way: str) -> set[str]:
    """Goes from int8 to top-k with momentum correction, and then another way; returns all."""
    hvd.init()
    compression_tuner.DESCENT_STEPS, compression_tuner.TOPK_WARMUP_STEPS = 2, 0
    model = Given()
    optimizer = make_optimizer(model, budget=0.02, warmup_steps=3)
    tuner = optimizer._tuner
    ways: list[str] = []
    for step in range(40):
        ways += optimizer.compression_choices().values()
        (slot,) = tuner._tuned.slots
        has_momentum = slot.spec.momentum == MOMENTUM
        assert has_momentum == ways[-1].startswith("top-k") == (tuner.corrected == [slot])
        model.step(optimizer, gradient_of(step, hvd.rank()))
    level = next(i for i, known in enumerate(tuner._ways) if known.label == way)
    tuner._take_at_most(level)
    tuner._apply()
    for _ in range(60):
        model.step(optimizer, torch.zeros(1000, dtype=torch.float64))
    tuner._take_at_most(0)  # What int8 and int4 keep back is sent, too.
    tuner._apply()
    for _ in range(60):
        model.step(optimizer, torch.zeros(1000, dtype=torch.float64))
    assert set(optimizer.compression_choices().values()) == {"uncompressed"}
    check_sum(model, 40)
    return set(ways)


@pytest.mark.multiproc
@pytest.mark.parametrize("way", ["int4", "uncompressed"])
def test_no_gradient_counts_twice_or_is_lost_where_ways_change(way: str) -> None:
    for ways in spawn_ranks(momentum_of_every_way, 4, way, env=TWO_BY_TWO):
        assert ways == {"int8", "int4", "top-k at 0.01"}


def goes_on_from_a_checkpoint() -> None:
    hvd.init()
    compression_tuner.DESCENT_STEPS, compression_tuner.TOPK_WARMUP_STEPS = 2, 0
    model = Given()
    optimizer = make_optimizer(model, budget=0.02, warmup_steps=3)
    for step in range(40):
        model.step(optimizer, gradient_of(step, hvd.rank()))
    assert optimizer._tuner.corrected
    kept, state = optimizer.compression_state_dict(), optimizer.state_dict()
    del optimizer
    other = make_optimizer(model, warmup_steps=1000)
    other.load_state_dict(state)
    other.load_compression_state_dict(kept)
    for _ in range(60):
        model.step(other, torch.zeros(1000, dtype=torch.float64))
    assert set(other.compression_choices().values()) == {"int8"}
    other._tuner._take_at_most(0)
    other._tuner._apply()
    for _ in range(60):
        model.step(other, torch.zeros(1000, dtype=torch.float64))
    check_sum(model, 40)


@pytest.mark.multiproc
def test_an_optimizer_that_begins_anew_takes_over_what_top_k_kept_back() -> None:
    spawn_ranks(goes_on_from_a_checkpoint, 4, env=TWO_BY_TWO)


def limits() -> None:
    hvd.init()
    model = make_model()
    for is_corrected, at_topk in ((False, 8.0), (True, 32.0)):
        optimizer: Any = hvd.DistributedOptimizer(
            sgd(model, momentum=0.75),
            model.named_parameters(),
            hvd.Compression.auto(momentum_correction=is_corrected),
        )
        tuner = optimizer._tuner
        labels = [way.label for way in tuner._ways]
        assert tuner._limit_at(labels.index("top-k at 0.01")) == at_topk
        assert tuner._limit_at(labels.index("int4")) == 8.0
    others: list[dict[str, Any]] = [{}, {"momentum": 0.9, "nesterov": True}]
    for options in others:
        inner = torch.optim.SGD(model.parameters(), lr=0.1, **options)
        with pytest.raises(ValueError, match=r"momentum_correction of auto .* torch\.optim\.SGD"):
            hvd.DistributedOptimizer(
                inner, compression=hvd.Compression.auto(momentum_correction=True)
            )


def momentum_that_changes() -> None:
    hvd.init()
    compression_tuner.DESCENT_STEPS, compression_tuner.TOPK_WARMUP_STEPS = 2, 0
    model = make_model()
    optimizer: Any = hvd.DistributedOptimizer(
        sgd(model),
        model.named_parameters(),
        hvd.Compression.auto(budget=0.02, warmup_steps=0, momentum_correction=True),
    )
    train(model, optimizer, range(17))
    slots = optimizer._tuner._tuned.slots
    assert {slot.spec.momentum for slot in slots} == {0.9}
    for options, expected in (({"momentum": 0.8}, 0.8), ({"nesterov": True}, 0.0)):
        optimizer.param_groups[0].update(options)
        train(model, optimizer, range(17, 19))
        assert {slot.spec.momentum for slot in slots} == {expected}
        assert bool(optimizer._tuner.corrected) == (expected != 0.0)
        mine = weights(model)
        assert torch.equal(hvd.broadcast(mine, 0), mine)
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None, "hooks of parameters keep the optimizer"


def both() -> None:
    limits()
    momentum_that_changes()


@pytest.mark.multiproc
def test_momentum_is_the_optimizers_in_each_step_and_limits_depend_on_it() -> None:
    spawn_ranks(both, 4, env=TWO_BY_TWO)


def same_as_topk() -> None:
    """Lets `Compression.auto` begin with its trial of top-k, beside top-k by hand."""
    hvd.init()
    models = [make_model(), make_model()]
    compressions = [
        hvd.Compression.auto(budget=0.02, warmup_steps=0, momentum_correction=True),
        hvd.Compression.topk(0.01, momentum_correction=True),
    ]
    optimizers: list[Any] = [
        hvd.DistributedOptimizer(
            sgd(model),
            [(f"{i}.{name}", p) for name, p in model.named_parameters()],
            compression,
        )
        for i, (model, compression) in enumerate(zip(models, compressions, strict=True))
    ]
    for step in range(6):
        for model, optimizer in zip(models, optimizers, strict=True):
            train(model, optimizer, range(step, step + 1))
        torch.testing.assert_close(*map(weights, models), rtol=1e-5, atol=1e-6)
    assert set(optimizers[0].compression_choices().values()) == {"top-k at 0.01"}


@pytest.mark.multiproc
def test_what_is_corrected_moves_weights_as_top_k_by_hand_does() -> None:
    spawn_ranks(same_as_topk, 4, env=TWO_BY_TWO)
