"""A planner on one rank with a clock of its own: what it learns, and when it stops learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import lightcc as hvd
from lightcc import _world
from lightcc.fusion import Gradient, Planner, Rule, choose_fusion, learning
from lightcc.fusion.learning import MOST_REPLANS, PAUSE_STEPS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("world")

#: By arrival, which is not the order of the optimizer.
GRADIENTS = [Gradient(name, 100, "float32") for name in "abcd"]
ARRIVALS = {"d": 0.1, "c": 0.2, "b": 0.3, "a": 0.4}
#: Of model: settling and counted steps under two rules, then twice of auto_fusion and the plan.
MODEL_STEPS = 2 * 6 + 4 * 6
#: Of autotune, once the engine is tuned: the same, with three in the comparison.
TRIAL_STEPS = 2 * 6 + 6 * 6
BY_ARRIVAL = [["d", "c"], ["b", "a"]]


class Job:
    """Steps of a training whose clock stands still but for them."""

    def __init__(self, strategy: str, threshold: int | None = None, tuned: bool = False) -> None:
        self.now = 0.0
        choice = choose_fusion(strategy, threshold, "2", "a")._replace(tuned=tuned)
        self.planner = Planner(choice, GRADIENTS, hvd.global_process_set, clock=lambda: self.now)

    def step(self, seconds: float, arrivals: dict[str, float] = ARRIVALS) -> bool:
        begin = self.now
        for name, moment in arrivals.items():
            self.now = begin + moment
            self.planner.arrived(name)
        self.now = begin + seconds
        self.planner.end_step()
        return self.planner.begin_step()

    def watches(self) -> bool:
        return self.planner.watching

    def steps(self, count: int, seconds: Callable[[Planner], float]) -> None:
        for _ in range(count):
            self.step(seconds(self.planner))


@pytest.mark.parametrize("strategy", ["none", "auto_fusion", "horovod"])
def test_rules_have_no_plan(strategy: str) -> None:
    job = Job(strategy)
    assert not job.watches()
    assert job.planner.buckets == []
    assert not job.step(1.0)


@pytest.mark.parametrize(
    ("strategy", "plan"),
    [
        ("piecewise_fusion", [["a", "b"], ["c", "d"]]),
        ("scopewise_fusion", [["a"], ["b", "c", "d"]]),
    ],
)
def test_plans_of_names_are_final_at_once(strategy: str, plan: list[list[str]]) -> None:
    job = Job(strategy)
    assert not job.watches()
    assert job.planner.buckets == plan


def test_arrival_is_final_after_the_first_step_that_had_gradients() -> None:
    job = Job("arrival", 200)
    assert not job.step(1.0, {})
    assert job.watches()
    assert job.step(1.0, {"d": 0.1, "b": 0.2, "elsewhere": 0.3, "a": 0.4})
    assert not job.watches()
    assert job.planner.buckets == [["d", "b"], ["a"], ["c"]]
    assert not job.step(1.0)


def test_model_looks_at_two_rules_before_it_plans() -> None:
    job = Job("model")
    rules = []
    while "candidate" not in job.planner.notes:
        rules.append(job.planner.rule[0])
        assert job.planner.buckets == []
        job.step(1.0)
    assert rules == [Rule.NONE] * 6 + [Rule.DEFAULT] * 6
    assert [name for bucket in job.planner.notes["candidate"] for name in bucket] == list("dcba")


@pytest.mark.parametrize(("with_plan", "kept"), [(0.9, True), (1.1, False), (1.0, False)])
def test_model_keeps_its_plan_if_steps_were_faster_with_it(with_plan: float, kept: bool) -> None:
    job = Job("model")
    job.steps(MODEL_STEPS - 1, lambda planner: with_plan if planner.buckets else 1.0)
    assert job.watches()
    assert job.step(with_plan)
    report = job.planner.describe()
    assert report["final"]
    assert report["kept"] is kept
    assert report["plan"] == (report["candidate"] if kept else [])
    assert report["measured_seconds"]["candidate"] == pytest.approx(with_plan)
    assert report["measured_seconds"]["auto_fusion"] == pytest.approx(1.0)
    assert job.planner.rule == (Rule.DEFAULT, 0)


def test_single_slow_steps_do_not_decide() -> None:
    job = Job("model")
    number = 0

    def seconds(planner: Planner) -> float:
        nonlocal number
        number += 1
        slow = 50.0 if planner.buckets and number % 4 == 0 else 0.0
        return slow + (0.9 if planner.buckets else 1.0)

    job.steps(MODEL_STEPS, seconds)
    assert job.planner.describe()["kept"]


def test_gradients_that_never_came_are_planned_by_themselves() -> None:
    job = Job("model")
    used = {"d": 0.1, "b": 0.2}
    for _ in range(MODEL_STEPS):
        job.step(0.9 if job.planner.buckets else 1.0, used)
    plan = job.planner.describe()["plan"]
    assert [name for bucket in plan[:-1] for name in bucket] == ["d", "b"]
    assert plan[-1] == ["a", "c"]


class Tuning:
    """What the engine would tell, and the log that it began."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
        world = self.world = _world.current()
        self.rank, self.log = world.rank, log
        told = {"num_streams": 1, "chunk_bytes": 0, "tensor_fusion_threshold": 7}
        self.tuned: dict[str, Any] = {"fusion_strategy": "none", "final": False} | told
        log.write_text("what the engine wrote\n")
        monkeypatch.setattr(_world, "current", lambda: self)

    def stats(self) -> dict[str, Any]:
        return self.world.stats() | {"autotune": self.tuned}

    def fusion_knobs(self) -> dict[str, Any]:
        return self.world.fusion_knobs() | {"autotune_log": str(self.log)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world, name)


@pytest.fixture
def tuning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Tuning:
    return Tuning(monkeypatch, tmp_path / "log.csv")


@pytest.mark.parametrize(
    ("slow", "chosen"),
    [("none", "arrival"), ("none, arrival", "model"), ("arrival, model", "none")],
)
def test_autotune_keeps_the_fastest_of_rule_and_plans(
    tuning: Tuning, slow: str, chosen: str
) -> None:
    job = Job("auto_fusion", 200, tuned=True)
    seconds = {name: 2.0 if name in slow else 1.0 for name in ("none", "arrival", "model")}
    job.steps(20, lambda _: 1.0)
    assert job.planner.rule[0] is not Rule.NONE  # It waits for the engine.
    tuning.tuned["final"] = True
    job.step(1.0)
    plans: dict[str, Any] = {"none": []}
    for number in range(TRIAL_STEPS):
        assert job.watches()
        turn = "none" if number < 12 else ("none", "arrival", "model")[(number - 12) // 6 % 3]
        if number >= 12:
            assert plans.setdefault(turn, job.planner.buckets) == job.planner.buckets
        job.step(seconds[turn])
    assert not job.watches()
    assert plans["arrival"] == BY_ARRIVAL
    report = job.planner.describe()
    assert report["measured_seconds"] == pytest.approx(seconds)
    assert report["chosen"] == chosen
    assert report["plan"] == plans[chosen]
    lines = [f"{name},7,1,0,{400 / (seconds[name] * 1e6):g}" for name in seconds]
    lines.append(next(line for line in lines if line.startswith(chosen)))
    assert tuning.log.read_text().splitlines() == ["what the engine wrote", *lines]


def test_a_plan_that_is_no_faster_than_the_rule_is_not_taken(tuning: Tuning) -> None:
    job = Job("auto_fusion", 200, tuned=True)
    tuning.tuned["final"] = True
    job.steps(1 + TRIAL_STEPS, lambda _: 1.0)
    assert not job.watches()
    assert (job.planner.describe()["chosen"], job.planner.buckets) == ("none", [])


# -- Planning anew --------------------------------------------------------------------------------


class Costs:
    """What buckets cost: `per_byte` seconds, and a microsecond each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.per_byte = 1e-6
        monkeypatch.setattr(learning, "_own_lines", self.lines)

    def lines(self, _: Planner) -> Any:
        return np.array([[np.inf] * 3, [np.inf, 1e-6, self.per_byte]])


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Costs:
    return Costs(monkeypatch)


def planned(with_plan: float = 0.9) -> Job:
    job = Job("model")
    job.steps(MODEL_STEPS, lambda planner: with_plan if planner.buckets else 1.0)
    assert not job.watches()
    return job


@pytest.mark.parametrize("factor", [1 / 1.6, 1.6])
def test_model_plans_anew_when_its_buckets_cost_something_else(costs: Costs, factor: float) -> None:
    job = planned()
    before = job.planner.buckets
    costs.per_byte *= factor
    assert [job.step(0.9) for _ in range(PAUSE_STEPS)] == [False] * (PAUSE_STEPS - 1) + [True]
    assert job.watches()
    assert job.planner.buckets == []  # It measures how gradients come without a plan.
    turns = []
    for _ in range(2 * 6 + 6 * 6):
        turns.append(job.planner.buckets)
        job.step(1.0 if not job.planner.buckets else 0.9)
    assert turns[12 + 6] == turns[-12 + 5] == before
    report = job.planner.describe()
    assert (report["replans"], report["final"], report["kept"]) == (1, True, True)
    assert set(report["measured_seconds"]) == {"auto_fusion", "before", "candidate"}


def test_model_gives_a_plan_up_that_is_slower_by_now(costs: Costs) -> None:
    job = planned()
    costs.per_byte /= 2
    job.steps(PAUSE_STEPS + 2 * 6 + 6 * 6, lambda planner: 1.1 if planner.buckets else 1.0)
    report = job.planner.describe()
    assert (report["replans"], report["kept"], report["plan"]) == (1, False, [])


def test_model_keeps_quiet_while_costs_stay_and_plans_anew_three_times_at_most(
    costs: Costs,
) -> None:
    job = planned()
    costs.per_byte *= 1.4
    assert not any(job.step(0.9) for _ in range(3 * PAUSE_STEPS))
    assert job.planner.describe()["replans"] == 0
    for number in range(1, 6):
        costs.per_byte *= 2
        job.steps(PAUSE_STEPS + 2 * 6 + 6 * 6, lambda planner: 0.9 if planner.buckets else 1.0)
        assert job.planner.describe()["replans"] == min(number, MOST_REPLANS)
        assert not job.watches()


def test_a_pause_is_counted_from_where_all_ranks_began_anew(costs: Costs) -> None:
    job = planned()
    costs.per_byte *= 2
    job.steps(PAUSE_STEPS - 1, lambda _: 0.9)
    hvd.join()  # As if others had done more steps meanwhile.
    assert [job.step(0.9) for _ in range(PAUSE_STEPS)] == [False] * (PAUSE_STEPS - 1) + [True]


def test_stats_tell_of_planners_that_live() -> None:
    job = Job("arrival")
    assert job.planner.describe() in hvd.stats()["fusion"]
