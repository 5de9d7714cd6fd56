"""`Compression.auto` chooses by time and statistics, alike on all ranks, and loses nothing."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn
from two_by_two import TWO_BY_TWO, collect_log, make_model, sgd, train, weights

import lightcc.torch as hvd
from lightcc._adapter import compression_tuner
from lightcc.testing import spawn_ranks

pytestmark = pytest.mark.multiproc

#: A trial has seven steps.
TRIAL_STEPS = 7


class Clock:
    """Says that steps take as long as the way in which gradients travel is told to."""

    def __init__(self, optimizer: Any, seconds: dict[str, float]) -> None:
        self._optimizer, self._seconds = optimizer, seconds
        self._now = 0.0

    def __call__(self) -> float:
        ways = set(self._optimizer.compression_choices().values())
        self._now += max(self._seconds[way] for way in ways)
        return self._now


def auto_optimizer(model: nn.Module, inner: Any, seconds: dict[str, float], **options: Any) -> Any:
    optimizer: Any = hvd.DistributedOptimizer(
        inner, model.named_parameters(), compression=hvd.Compression.auto(**options)
    )
    optimizer._tuner._clock = Clock(optimizer, seconds)
    compression_tuner.INT4_STEPS = 1
    return optimizer


def way_that_is_chosen(changed: dict[str, float], adam: bool, options: dict[str, Any]) -> str:
    hvd.init()
    seconds = TIMES | changed
    model = make_model()
    inner: Any = torch.optim.AdamW(model.parameters()) if adam else sgd(model)
    seconds = {way: each * (1.0 + 0.5 * (hvd.rank() == 3)) for way, each in seconds.items()}
    optimizer = auto_optimizer(model, inner, seconds, warmup_steps=3, **options)
    assert set(optimizer.compression_choices()) == {name for name, _ in model.named_parameters()}
    train(model, optimizer, range(3 + 5 * TRIAL_STEPS + 3))
    (way,) = set(optimizer.compression_choices().values())
    mine = weights(model)
    assert torch.equal(hvd.broadcast(mine, 0), mine)
    hvd.barrier()
    hvd.shutdown()
    return str(way)


TIMES = {"uncompressed": 1.0, "int8": 0.5, "int4": 0.3, "top-k at 0.05": 0.29, "top-k at 0.01": 0.2}
#: The ways of which SGD has each tried.
WAYS_OF_SGD = ("uncompressed", "int8", "int4", "top-k at 0.05", "top-k at 0.01")


CHOICES: list[tuple[dict[str, float], bool, dict[str, Any], str]] = [
    ({}, False, {}, "top-k at 0.01"),
    ({"top-k at 0.01": 0.295}, False, {}, "int4"),  # The mildest that is as fast.
    ({"uncompressed": 0.2}, False, {}, "uncompressed"),
    ({"int4": 0.1}, True, {}, "int4"),
    ({}, True, {}, "int4"),  # No top-k where gradients are squared.
    ({"uncompressed": 0.1}, False, {"budget": 0.2}, "top-k at 0.01"),
    ({"uncompressed": 0.1, "int4": 0.4}, True, {"budget": 0.2}, "int4"),
    ({"int4": 0.1}, False, {"budget": 0.02}, "top-k at 0.01"),
    ({}, True, {"budget": 0.13}, "int4"),
]


def ways_that_are_chosen() -> list[str]:
    return [way_that_is_chosen(changed, adam, options) for changed, adam, options, _ in CHOICES]


def test_the_mildest_way_that_is_as_fast_as_the_fastest_is_chosen() -> None:
    found = spawn_ranks(ways_that_are_chosen, 4, env=TWO_BY_TWO)
    assert found == [[expected for *_, expected in CHOICES]] * 4


class Given(nn.Module):
    """A parameter whose gradient of each step is known."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1000))
        self.other = nn.Parameter(torch.zeros(40, 5))


def gradients_of(step: int, rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randn(1000, generator=generator), torch.randn(40, 5, generator=generator)]


def nothing_is_lost(fusion: str) -> None:
    hvd.init()
    model = Given()
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    seconds = TIMES | {"uncompressed": 0.1}
    logging.getLogger("lightcc").setLevel(logging.INFO)
    said = collect_log("Compression.auto")
    optimizer: Any = hvd.DistributedOptimizer(
        inner,
        model.named_parameters(),
        compression=hvd.Compression.auto(warmup_steps=2),
        fusion_type=fusion,
        op=hvd.Sum,
    )
    optimizer._tuner._clock = Clock(optimizer, seconds)
    steps = 2 + 5 * TRIAL_STEPS + 2
    for step in range(steps):
        optimizer.zero_grad()
        pairs = zip(model.parameters(), gradients_of(step, hvd.rank()), strict=True)
        torch.stack([(p * g).sum() for p, g in pairs]).sum().backward()
        optimizer.step()
    assert set(optimizer.compression_choices().values()) == {"uncompressed"}
    each = [gradients_of(step, rank) for step in range(steps) for rank in range(4)]
    for p, *parts in zip(model.parameters(), *each, strict=True):
        torch.testing.assert_close(p.detach(), -torch.stack(parts).sum(0), rtol=1e-4, atol=1e-3)
    kept = [t for t in hvd.stats().compression if t.kept_energy > 0]
    assert kept, "there was never a residual, so this test says nothing"
    assert any("gradients travel as uncompressed" in line for line in said) == (hvd.rank() == 0)


def test_all_that_was_kept_back_arrives() -> None:
    spawn_ranks(nothing_is_lost, 4, "piecewise_fusion", env=TWO_BY_TWO)


def ways_by_step() -> list[tuple[str, int]]:
    """Returns way and bytes of each step."""
    hvd.init()
    model = make_model()
    optimizer = auto_optimizer(model, sgd(model), TIMES, warmup_steps=2)
    compression_tuner.TOPK_WARMUP_STEPS = 40
    found: list[tuple[str, int]] = []
    for step in range(2 + 5 * TRIAL_STEPS + 45):
        (way,) = set(optimizer.compression_choices().values())
        sent = hvd.stats()["compressed_sent_bytes"]
        train(model, optimizer, range(step, step + 1))
        found.append((way, hvd.stats()["compressed_sent_bytes"] - sent))
    return found


def test_the_share_of_top_k_falls_where_it_is_chosen() -> None:
    for found in spawn_ranks(ways_by_step, 4, env=TWO_BY_TWO):
        trials = [way for way in WAYS_OF_SGD for _ in range(TRIAL_STEPS)]
        assert [way for way, _ in found] == ["int8"] * 2 + trials + ["int4"] + [
            "top-k at 0.01"
        ] * 44
        in_trial = found[1 + len(trials)][1]
        after = [sent for _, sent in found[3 + len(trials) :]]
        assert after[0] > after[20] > after[-1]
        assert after[0] > 1.5 * in_trial
        assert max(after[40:]) < 1.5 * in_trial


def ways_after_looks(error: float) -> list[set[str]]:
    hvd.init()
    compression_tuner._LOOK_STEPS, compression_tuner._PATIENCE = 5, 1
    model = make_model()
    optimizer = auto_optimizer(model, sgd(model), TIMES, warmup_steps=0, error=error)
    found = []
    for step in range(20):
        train(model, optimizer, range(5 * step, 5 * step + 5))
        found.append(set(optimizer.compression_choices().values()))
    mine = weights(model)
    assert torch.equal(hvd.broadcast(mine, 0), mine)
    return found[8:]


def test_where_too_much_is_kept_back_the_next_milder_way_is_taken() -> None:
    seen = spawn_ranks(ways_after_looks, 4, 1e-9, env=TWO_BY_TWO)
    assert all(ways == seen[0] for ways in seen)
    assert {"int4"} in seen[0]
    assert seen[0][-1] == {"uncompressed"}
    for ways in spawn_ranks(ways_after_looks, 4, 1e9, env=TWO_BY_TWO):
        assert ways == [{"top-k at 0.01"}] * 12


# -- Elsewhere ------------------------------------------------------------------------------------


def ranks_of_different_numbers_of_steps() -> str:
    hvd.init()
    model = make_model()
    optimizer = auto_optimizer(model, sgd(model), TIMES, warmup_steps=3)
    train(model, optimizer, range(12 if hvd.rank() == 1 else 20))
    hvd.join()
    train(model, optimizer, range(3 + 5 * TRIAL_STEPS + 3))
    (way,) = set(optimizer.compression_choices().values())
    return str(way)


def test_after_a_join_all_ranks_begin_anew() -> None:
    found = spawn_ranks(ranks_of_different_numbers_of_steps, 4, env=TWO_BY_TWO)
    assert found == ["top-k at 0.01"] * 4


def nothing_to_choose() -> None:
    hvd.init()
    model = make_model()
    optimizer: Any = hvd.DistributedOptimizer(
        sgd(model), model.named_parameters(), compression=hvd.Compression.auto
    )
    train(model, optimizer, range(3))
    assert optimizer.compression_choices() == {}


def test_on_one_host_nothing_is_compressed() -> None:
    spawn_ranks(nothing_to_choose, 2)


def compressed_by_a_variable() -> None:
    hvd.init()
    model = make_model()
    optimizer = auto_optimizer(model, sgd(model), TIMES | {"int8": 0.1}, warmup_steps=0)
    train(model, optimizer, range(4 * TRIAL_STEPS + 1))
    assert set(optimizer.compression_choices().values()) == {"int8"}


def test_what_a_variable_compresses_is_never_uncompressed() -> None:
    spawn_ranks(compressed_by_a_variable, 4, env=TWO_BY_TWO | {"LIGHT_TOPK_ALLREDUCE": "1"})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"budget": 0.0}, "budget is 0.0: expected a share above 0, at most 1"),
        ({"budget": 1.5}, "budget is 1.5"),
        ({"error": 0.0}, "error is 0.0: expected a finite number above 0, or None"),
        ({"warmup_steps": -1}, "warmup_steps is -1: expected a number of at least 0"),
    ],
)
def test_numbers_out_of_range_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        hvd.Compression.auto(**options)


def too_small_a_budget() -> None:
    hvd.init()
    model = make_model()
    inners: list[Any] = [
        sgd(model),
        torch.optim.Adam(model.parameters()),
        torch.optim.RMSprop(model.parameters()),
    ]
    for inner, least in zip(inners, ("top-k at 0.01", "int4", "int4"), strict=True):
        with pytest.raises(ValueError, match=f"budget is 0.001: the least .* is {least}"):
            hvd.DistributedOptimizer(
                inner, model.named_parameters(), compression=hvd.Compression.auto(budget=0.001)
            )


def test_a_budget_below_all_ways_is_refused_with_the_least() -> None:
    spawn_ranks(too_small_a_budget, 2)


def test_one_operation_cannot_choose(world: None) -> None:
    del world
    with pytest.raises(ValueError, match=r"auto compression is for .*DistributedOptimizer"):
        hvd.allreduce(torch.ones(3), name="x", compression=hvd.Compression.auto())
