"""How arrival and model learn their plans: each is a course, a generator that is sent every step.

A course sets the planner's `buckets` and `rule` for the next step, and ends when they are final.
All ranks go through it in step. What decides is the same on all of them: reduced over all ranks, or
the root's.

model measures when gradients become ready and what buckets take, under two rules so that there are
buckets of many sizes; makes the plan that should end first; and then lets auto_fusion and the plan
take turns. The plan is kept if its steps are faster, by the median.

Under autotune, plans have their turn after the engine has found the rule, the lanes and the chunks:
the plan that model would make, that of arrival and the rule are compared in the same way. So there
is one thing at a time that changes.
"""

from __future__ import annotations

import contextlib
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from lightcc import _world
from lightcc.functions import broadcast_object
from lightcc.fusion.choice import Rule
from lightcc.fusion.plans import CostLine, Plan, best, by_arrival, cost_of
from lightcc.reductions import Max, Min, allreduce

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from lightcc.fusion.planner import Planner

#: Steps under each rule, and in each turn, that count. One more comes before them: the first step
#: with other buckets is slower, as they are described in full.
COUNTED_STEPS = 5
#: Of auto_fusion and of the plan.
TURNS = 2
#: Of a gradient that no rank had.
_NEVER = -1.0


class Step(NamedTuple):
    """One step that all ranks took part in.

    Attributes:
        seconds: Since the end of the step before, on average over ranks; the same on all.
        ready: When gradients became ready on this rank, seconds after the first, in that order.
        tuned: Whether autotune was done with the engine's settings on all ranks.
    """

    seconds: float
    ready: dict[str, float]
    tuned: bool = True


if TYPE_CHECKING:
    Course: TypeAlias = Generator[None, Step, None]


def learn_order(planner: Planner) -> Course:
    """Takes the order in which gradients arrive in the first step."""
    step = yield
    planner.buckets = _from_root(planner, _by_order(planner, step.ready))


def learn_by_model(planner: Planner) -> Course:
    """Measures, plans, and keeps the plan if it is faster."""
    candidate = _plan(planner, (yield from _watch(planner)))
    medians = yield from _compare(planner, {"auto_fusion": [], "candidate": candidate})
    kept = medians["candidate"] < medians["auto_fusion"]
    planner.buckets = candidate if kept else []
    planner.notes["measured_seconds"] = medians
    planner.notes["kept"] = kept


def learn_by_trial(planner: Planner) -> Course:
    """Waits until the engine is tuned; then keeps the fastest of its rule and two plans."""
    step = yield
    while not step.tuned:
        step = yield
    tuning = _world.current().stats()["autotune"]
    rule = str(tuning["fusion_strategy"])
    by_order = _from_root(planner, _by_order(planner, step.ready))
    by_model = _plan(planner, (yield from _watch(planner)))
    plans: dict[str, Plan] = {rule: [], "arrival": by_order, "model": by_model}
    medians = yield from _compare(planner, plans)
    winner = min(medians, key=lambda name: medians[name])  # The rule, if no plan is faster.
    planner.buckets = plans[winner]
    planner.notes.update(measured_seconds=medians, chosen=winner)
    _log(planner, tuning, medians, winner)


def _watch(planner: Planner) -> Generator[None, Step, dict[str, list[float]]]:
    """Runs steps under two rules; returns when each gradient became ready in them."""
    default = planner.rule
    ready: dict[str, list[float]] = {}
    for rule in ((Rule.NONE, 0), default):
        planner.rule = rule
        yield
        for _ in range(COUNTED_STEPS):
            step = yield
            for name, seconds in step.ready.items():
                ready.setdefault(name, []).append(seconds)
    return ready


def _compare(
    planner: Planner, plans: Mapping[str, Plan]
) -> Generator[None, Step, dict[str, float]]:
    """Lets plans take turns; returns the median of each one's steps. No buckets: by the rule."""
    seconds: dict[str, list[float]] = {name: [] for name in plans}
    for _ in range(TURNS):
        for name, plan in plans.items():
            planner.buckets = plan
            yield
            for _ in range(COUNTED_STEPS):
                step = yield
                seconds[name].append(step.seconds)
    return {name: statistics.median(values) for name, values in seconds.items()}


def _log(
    planner: Planner, tuning: Mapping[str, Any], medians: Mapping[str, float], winner: str
) -> None:
    """Adds lines to autotune's log, which the engine began; the winner again as the last."""
    world = _world.current()
    path = world.fusion_knobs()["autotune_log"]
    if world.rank != 0 or not path:
        return
    total = sum(gradient.num_bytes for gradient in planner.gradients.values())
    lines = [
        f"{name},{tuning['tensor_fusion_threshold']},{tuning['num_streams']},"
        f"{tuning['chunk_bytes']},{total / (medians[name] * 1e6):g}\n"
        for name in (*medians, winner)
    ]
    # The engine has warned if it cannot be written.
    with contextlib.suppress(OSError), Path(path).open("a", encoding="ascii") as file:
        file.writelines(lines)


def _from_root(planner: Planner, plan: Plan) -> Plan:
    agreed: Plan = broadcast_object(plan, planner.root, "fusion.plan", planner.process_set)
    return agreed


def _by_order(planner: Planner, order: Iterable[str]) -> Plan:
    used = [name for name in order if name in planner.gradients]
    unused = [name for name in planner.gradients if name not in set(used)]
    # Nobody waits for gradients that may never come.
    return _cut(planner, used) + _cut(planner, unused)


def _cut(planner: Planner, names: Iterable[str]) -> Plan:
    gradients = (planner.gradients[name] for name in names)
    return by_arrival(gradients, planner.choice.threshold_bytes)


def _plan(planner: Planner, samples: Mapping[str, Sequence[float]]) -> Plan:
    """Makes the best plan by the measurements of all ranks."""
    import numpy as np

    # Sorted, since ranks may list their parameters in different orders.
    names = sorted(planner.gradients)
    own = np.array([statistics.median(samples.get(name, (_NEVER,))) for name in names])
    # A bucket leaves when the last rank is ready.
    latest = allreduce(own, name="fusion.ready", op=Max, process_set=planner.process_set)
    lines = _agree_on_costs(planner)
    ready = {name: float(t) for name, t in zip(names, latest, strict=True) if t != _NEVER}
    plan, seconds = best(
        [planner.gradients[name] for name in ready],
        ready,
        cost_of(lines),
        planner.choice.threshold_bytes,
    )
    plan += _cut(planner, (name for name in planner.gradients if name not in ready))
    plan = _from_root(planner, plan)
    planner.notes.update(
        costs=[line._asdict() for line in lines], candidate=plan, predicted_seconds=seconds
    )
    return plan


def _agree_on_costs(planner: Planner) -> list[CostLine]:
    """Returns the lines of two levels and of one, as far as they ran, the same on all ranks."""
    import numpy as np

    known: dict[bool, Any] = {
        cost["two_level"]: cost
        for cost in _world.current().stats()["allreduce_costs"]
        if cost["process_set"] == planner.process_set.process_set_id
    }
    own = np.full((2, 3), np.inf)
    for row, two_level in enumerate((True, False)):
        if two_level in known:
            cost = known[two_level]
            most = cost["most_bytes"] if two_level else np.inf
            own[row] = most, cost["seconds"], cost["seconds_per_byte"]
    # A rank that begins earlier waits for the others; who waits least measures best.
    least = allreduce(own, name="fusion.costs", op=Min, process_set=planner.process_set)
    lines = [CostLine(*(float(value) for value in row)) for row in least if np.isfinite(row[1])]
    if lines and np.isfinite(lines[-1].most_bytes):
        lines[-1] = lines[-1]._replace(most_bytes=float("inf"))  # Nothing else ran so far.
    return lines
