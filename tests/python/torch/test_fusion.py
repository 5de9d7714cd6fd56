"""Fusion strategies of DistributedOptimizer on four ranks: what travels together, and that nothing
else depends on it."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import test_optimizer
import torch
from replicas import check_equal, check_identical, checks_of, each_on, outcomes, sgd
from torch import nn

import lightcc.torch as hvd
from lightcc.fusion import STRATEGIES

pytestmark = pytest.mark.multiproc

RANKS = 4
STEPS = 4


def deep_model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Returns the same model of 5 layers, 10 parameters, on every call and rank."""
    torch.manual_seed(11)
    layers: list[nn.Module] = []
    for width in (7, 9, 11, 13):
        layers += [nn.Linear(width, width + 2), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(15, 1)).to(dtype)


NAMES = [name for name, _ in deep_model().named_parameters()]


def rows(step: int, rank: int, width: int = 7) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(3, width, generator=generator)


def options_of(strategy: str) -> dict[str, Any]:
    schedules = {"piecewise_fusion": "2;6", "scopewise_fusion": "2;8"}
    options: dict[str, Any] = {"fusion_type": strategy}
    if strategy in schedules:
        options[f"{strategy}_schedule"] = schedules[strategy]
    return options


def wrapped(model: nn.Module, **options: Any) -> Any:
    return hvd.DistributedOptimizer(
        sgd(list(model.parameters())), model.named_parameters(), **options
    )


def do_step(model: nn.Module, optimizer: Any, step: int, passes: int = 1) -> None:
    optimizer.zero_grad()
    for i in range(passes):
        model(rows(passes * step + i, hvd.rank())).square().mean().backward()
    optimizer.step()


def trained(steps: int, **options: Any) -> nn.Module:
    model = deep_model()
    optimizer = wrapped(model, **options)
    for step in range(steps):
        do_step(model, optimizer, step)
    check_identical(model)
    return model


def reported() -> dict[str, Any]:
    """Returns what stats() tells of the only optimizer there is."""
    gc.collect()  # Those of other checks.
    (report,) = hvd.stats()["fusion"]
    assert isinstance(report, dict)
    return report


# -- Numbers --------------------------------------------------------------------------------------


def every_strategy_gives_the_same_bits() -> None:
    plain = trained(STEPS, fusion_type="none")
    for strategy in STRATEGIES:
        check_equal(trained(STEPS, **options_of(strategy)), plain, tolerance=0)


def strategies_go_with_every_other_option() -> None:
    every: tuple[dict[str, Any], ...] = (
        {"groups": 3},
        {"groups": [[4, 1], [9, 8]]},
        {"passes": 2},
        {"compression": hvd.Compression.fp16},
        {"gradient_predivide_factor": 2.0},
        {"op": hvd.Sum},
    )
    for options in every:
        results = []
        for strategy in ("auto_fusion", "none", "piecewise_fusion", "scopewise_fusion"):
            model = deep_model()
            given = dict(options)
            if isinstance(given.get("groups"), list):
                parameters = list(model.parameters())
                given["groups"] = [[parameters[i] for i in group] for group in given["groups"]]
            passes = given.pop("passes", 1)
            optimizer = wrapped(
                model, backward_passes_per_step=passes, **given, **options_of(strategy)
            )
            for step in range(2):
                do_step(model, optimizer, step, passes)
            check_identical(model)
            results.append(model)
        for model in results[1:]:
            check_equal(model, results[0], tolerance=0)


# -- Buckets --------------------------------------------------------------------------------------


def buckets_of_a_step(**options: Any) -> tuple[int, dict[str, Any]]:
    """Returns how many collectives the fourth step takes, and what stats() tells."""
    model = deep_model()
    optimizer = wrapped(model, **options)
    for step in range(3):  # The second one sends a comparison of replicas, which the third awaits.
        do_step(model, optimizer, step)
    before = hvd.stats()["buckets"]
    do_step(model, optimizer, 3)
    return hvd.stats()["buckets"] - before, reported()


def none_sends_each_gradient_alone() -> None:
    count, report = buckets_of_a_step(fusion_type="none")
    assert count == len(NAMES)
    assert report == {"strategy": "none", "plan": [], "plan_bytes": []}


def auto_fusion_of_no_bytes_merges_nothing() -> None:
    assert buckets_of_a_step(auto_fusion_threshold=0)[0] == len(NAMES)
    assert buckets_of_a_step(fusion_type="auto_fusion")[0] <= len(NAMES)


def piecewise_fusion_cuts_the_list_of_parameters() -> None:
    count, report = buckets_of_a_step(**options_of("piecewise_fusion"))
    assert report["plan"] == [NAMES[:2], NAMES[2:6], NAMES[6:]]
    assert report["plan_bytes"] == [288, 1064, 904]
    assert count == 3
    assert buckets_of_a_step(fusion_type="piecewise_fusion")[0] == 1


def scopewise_fusion_follows_the_modules() -> None:
    count, report = buckets_of_a_step(**options_of("scopewise_fusion"))
    assert report["plan"] == [
        ["2.weight", "2.bias"],
        ["8.weight", "8.bias"],
        NAMES[:2] + NAMES[4:8],
    ]
    assert count == 3


def the_strategies_of_earlier_versions_are_refused_with_what_to_use() -> None:
    for strategy in ("arrival", "model"):
        with pytest.raises(ValueError, match=f"fusion_type is '{strategy}'.*: use auto_fusion"):
            wrapped(deep_model(), fusion_type=strategy)


def costs_are_fitted_for_each_process_set() -> None:
    hvd.allreduce(torch.ones(10))
    before = {cost["process_set"]: cost for cost in hvd.stats()["allreduce_costs"]}
    # A line through noisy times may begin at 0.
    assert before[0]["seconds"] + before[0]["seconds_per_byte"] > 0
    assert not before[0]["two_level"]
    process_set = hvd.add_process_set([0, 1])
    if hvd.rank() < 2:
        hvd.allreduce(torch.ones(10), process_set=process_set)
        after = {cost["process_set"]: cost for cost in hvd.stats()["allreduce_costs"]}
        assert after[process_set.process_set_id]["samples"] == 1
        assert after[0]["samples"] == before[0]["samples"]
    hvd.barrier()
    hvd.remove_process_set(process_set)


def gradients_of_a_group_stay_in_it() -> None:
    model = deep_model()
    first, second, *_ = model.parameters()
    wrapped(model, groups=[[first, second]], **options_of("piecewise_fusion"))
    optimizer = wrapped(model, groups=[[first, second]], **options_of("piecewise_fusion"))
    assert reported()["plan"] == [NAMES[2:4], NAMES[4:8], NAMES[8:]]
    before = hvd.stats()["buckets"]
    do_step(model, optimizer, 0)
    assert hvd.stats()["buckets"] - before == 4


def ranks_may_list_their_parameters_in_different_orders() -> None:
    model = deep_model()
    parameters = list(model.parameters())
    if hvd.rank() % 2:
        parameters.reverse()
    optimizer = hvd.DistributedOptimizer(
        sgd(parameters), model.named_parameters(), **options_of("piecewise_fusion")
    )
    assert reported()["plan"] == [NAMES[:2], NAMES[2:6], NAMES[6:]]
    for step in range(2):
        do_step(model, optimizer, step)
    check_identical(model)


def schedules_that_match_nothing_are_warned_about() -> None:
    root = hvd.rank() == 0
    model = deep_model()
    for options, text in (
        ({"fusion_type": "piecewise_fusion", "piecewise_fusion_schedule": "2;60"}, "only 10"),
        ({"fusion_type": "scopewise_fusion", "scopewise_fusion_schedule": "2;head"}, "with head"),
    ):
        if root:
            with pytest.warns(RuntimeWarning, match=text):
                wrapped(model, **options)
        else:
            wrapped(model, **options)


# -- Ranks that differ ----------------------------------------------------------------------------


def bad_strings_are_refused_on_every_rank() -> None:
    model = deep_model()
    with pytest.raises(ValueError, match="fusion_type is 'best': expected one of none, auto_"):
        wrapped(model, fusion_type="best")
    with pytest.raises(ValueError, match="piecewise_fusion_schedule is '6;2': expected ascending"):
        wrapped(model, fusion_type="piecewise_fusion", piecewise_fusion_schedule="6;2")
    with pytest.raises(ValueError, match="fusion_type is 'best'"):
        wrapped(model, fusion_type="best", op=hvd.Adasum)


def ranks_that_plan_differently_are_told_so_on_every_rank() -> None:
    model = deep_model()
    last = hvd.rank() == hvd.size() - 1
    with pytest.raises(ValueError, match=r"rank 0 by piecewise_fusion '2'.*rank 3 by.*'3'"):
        wrapped(
            model, fusion_type="piecewise_fusion", piecewise_fusion_schedule="3" if last else "2"
        )
    named = [
        (f"{name}{'_' * (last and i == 4)}", p)
        for i, (name, p) in enumerate(model.named_parameters())
    ]
    with pytest.raises(ValueError, match=r"ranks 0 and 3 differ in: 4\.weight, 4\.weight_$"):
        hvd.DistributedOptimizer(
            sgd(list(model.parameters())), named, fusion_type="piecewise_fusion"
        )


def rules_that_differ_are_a_mismatch() -> None:
    model = deep_model()
    optimizer = wrapped(model, fusion_type="none" if hvd.rank() else "auto_fusion")
    model(rows(0, 0)).square().mean().backward()
    with pytest.raises(hvd.RankMismatchError, match="Mismatched fusion: One rank asked for"):
        optimizer.synchronize()
    optimizer.load_state_dict(optimizer.state_dict())


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = deep_model(), deep_model()

    def forward(self, x: Any, both: bool) -> Any:
        return self.left(x) + self.right(x) if both else self.left(x)


def gradients_that_never_come_hold_up_nothing_but_their_bucket() -> None:
    plain = None
    for strategy in STRATEGIES:
        model = Branches()
        optimizer = wrapped(model, **options_of(strategy))
        for step in range(6):
            optimizer.zero_grad()
            # No rank uses the right branch in the first steps, and only some do later.
            both = step > 2 and (step + hvd.rank()) % 2 == 0
            model(rows(step, hvd.rank()), both).square().mean().backward()
            optimizer.step()
        check_identical(model)
        plain = plain or model
        check_equal(model, plain, tolerance=0)


def sparse_gradients_leave_their_bucket() -> None:
    plain = None
    for strategy in STRATEGIES:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 4), nn.Linear(4, 1))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            model.named_parameters(),
            **options_of(strategy),
        )
        for step in range(4):
            optimizer.zero_grad()
            model(torch.tensor([hvd.rank(), step, 7])).square().sum().backward()
            optimizer.step()
            gradient: Any = model[0].weight.grad
            assert gradient.is_sparse
        check_identical(model)
        plain = plain or model
        check_equal(model, plain, tolerance=0)


def ranks_that_join_early_count_no_steps() -> None:
    for strategy in STRATEGIES:
        model = deep_model()
        optimizer = wrapped(model, **options_of(strategy))
        # Rank 0 has nothing in the first epoch and most in the last.
        for epoch, batches in enumerate((hvd.rank(), 2 - hvd.rank() // 2, STEPS)):
            for step in range(batches):
                do_step(model, optimizer, 100 * epoch + step)
            hvd.join()
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        do_step(model, optimizer, 0)
        check_identical(model)
        reports = hvd.allgather_object(reported())
        assert reports == [reports[0]] * hvd.size()


def members_of_a_set_plan_by_themselves() -> None:
    members = [1, 3]
    process_set = hvd.add_process_set(members)
    for strategy in ("piecewise_fusion", "scopewise_fusion"):
        model = deep_model()
        optimizer = wrapped(model, process_set=process_set, **options_of(strategy))
        for step in range(STEPS):
            do_step(model, optimizer, step)
        digests = hvd.allgather_object([p.tolist() for p in model.parameters()])
        assert digests[1] == digests[3]
        assert digests[0] != digests[1]
    hvd.remove_process_set(process_set)


test_fusion = each_on(RANKS, checks_of(__name__))


def test_whatever_holds_for_the_optimizer_holds_under_a_plan() -> None:
    env = {"LIGHT_FUSION_STRATEGY": "piecewise_fusion", "LIGHT_FUSION_SCHEDULE": "1;3"}
    for claim, problems in outcomes(checks_of(test_optimizer.__name__), 3, env).items():
        assert not any(problems), f"{claim}: {problems}"
