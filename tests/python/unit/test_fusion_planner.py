"""A planner on one rank: its plan, and what stats() tells of it."""

from __future__ import annotations

import pytest

import lightcc as hvd
from lightcc.fusion import Gradient, Planner, Rule, choose_fusion

pytestmark = pytest.mark.usefixtures("world")

GRADIENTS = [Gradient(name, 100, "float32") for name in "abcd"]


def make_planner(strategy: str) -> Planner:
    choice = choose_fusion(strategy, None, "2", "a")
    return Planner(choice, GRADIENTS, hvd.global_process_set)


@pytest.mark.parametrize("strategy", ["none", "auto_fusion", "horovod"])
def test_rules_have_no_plan(strategy: str) -> None:
    assert make_planner(strategy).buckets == []


@pytest.mark.parametrize(
    ("strategy", "plan"),
    [
        ("piecewise_fusion", [["a", "b"], ["c", "d"]]),
        ("scopewise_fusion", [["a"], ["b", "c", "d"]]),
    ],
)
def test_plans_follow_from_names(strategy: str, plan: list[list[str]]) -> None:
    planner = make_planner(strategy)
    assert planner.buckets == plan
    assert planner.choice.rule == Rule.DEFAULT
    sizes = [100 * len(bucket) for bucket in plan]
    assert planner.describe() == {"strategy": strategy, "plan": plan, "plan_bytes": sizes}


def test_stats_tell_of_planners_that_live() -> None:
    planner = make_planner("piecewise_fusion")
    assert planner.describe() in hvd.stats()["fusion"]
