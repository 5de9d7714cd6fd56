"""How arrival and model learn their plans: each is a course, a generator that is sent every step.

A course sets the planner's `buckets` and `rule` for the next step, and ends when they are final. It
yields the number of steps of which it wants to be sent the last: 1 is every step.
All ranks go through it in step. What decides is the same on all of them: reduced over all ranks, or
the root's.

model measures when gradients become ready and what buckets take, under two rules so that there are
buckets of many sizes; makes the plan that should end first; and then lets auto_fusion and the plan
take turns. The plan is kept if its steps are faster, by the median. Should buckets cost something
else later, all this happens again, and the plan that is in force takes its turns as well.

Under autotune, plans have their turn after the engine has found the rule, the lanes and the chunks:
the plan that model would make, that of arrival and the rule are compared in the same way. So there
is one thing at a time that changes.
"""

from __future__ import annotations

import contextlib
import math
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

    import numpy as np
    from numpy.typing import NDArray

    from lightcc.fusion.planner import Planner

#: Steps under each rule, and in each turn, that count. One more comes before them: the first step
#: with other buckets is slower, as they are described in full.
COUNTED_STEPS = 5
#: Of auto_fusion and of the plan.
TURNS = 2
#: model looks so often whether what its buckets cost in all has grown or fallen by such a factor,
#: and plans anew so many times. What is slower now, its cost lines need hundreds of buckets to see.
PAUSE_STEPS = 200
MOVED_FACTOR = 1.5
MOST_REPLANS = 3
NEXT = 1
#: Of a gradient that no rank had.
_NEVER = -1.0


class Step(NamedTuple):
    """One step that all ranks took part in.

    Attributes:
        seconds: Since the end of the step before, on average over ranks; the same on all.
        ready: When gradients became ready on this rank, seconds after the first, in that order.
        agreed: Whether the planner's `vote` was a yes on all ranks.
    """

    seconds: float
    ready: dict[str, float]
    agreed: bool = False


if TYPE_CHECKING:
    Course: TypeAlias = Generator[int, Step, None]


def learn_order(planner: Planner) -> Course:
    """Takes the order in which gradients arrive in the first step."""
    step = yield NEXT
    planner.buckets = _from_root(planner, _by_order(planner, step.ready))


def learn_by_model(planner: Planner) -> Course:
    """Measures, plans, and keeps the plan if it is faster."""
    for replans in range(MOST_REPLANS + 1):
        plans: dict[str, Plan] = {"auto_fusion": []}
        if planner.buckets:
            plans["before"] = planner.buckets
        plans["candidate"] = _plan(planner, (yield from _watch(planner)))
        medians = yield from _compare(planner, plans)
        planner.buckets = plans[_fastest(medians)]
        planner.notes.update(measured_seconds=medians, kept=bool(planner.buckets), replans=replans)
        if replans < MOST_REPLANS:
            yield from _rest(planner, plans["candidate"])


def learn_by_trial(planner: Planner) -> Course:
    """Waits until the engine is tuned; then keeps the fastest of its rule and two plans."""
    planner.vote = _engine_is_tuned
    step = yield NEXT
    while not step.agreed:
        step = yield NEXT
    tuning = _world.current().stats()["autotune"]
    rule = str(tuning["fusion_strategy"])
    by_order = _from_root(planner, _by_order(planner, step.ready))
    by_model = _plan(planner, (yield from _watch(planner)))
    plans: dict[str, Plan] = {rule: [], "arrival": by_order, "model": by_model}
    medians = yield from _compare(planner, plans)
    winner = _fastest(medians)
    planner.buckets = plans[winner]
    planner.notes.update(measured_seconds=medians, chosen=winner)
    _log(planner, tuning, medians, winner)


def _watch(planner: Planner) -> Generator[int, Step, dict[str, list[float]]]:
    """Runs steps under two rules; returns when each gradient became ready in them."""
    default = planner.rule
    planner.buckets = []
    ready: dict[str, list[float]] = {}
    for rule in ((Rule.NONE, 0), default):
        planner.rule = rule
        yield NEXT
        for _ in range(COUNTED_STEPS):
            step = yield NEXT
            for name, seconds in step.ready.items():
                ready.setdefault(name, []).append(seconds)
    return ready


def _compare(planner: Planner, plans: Mapping[str, Plan]) -> Generator[int, Step, dict[str, float]]:
    """Lets plans take turns; returns the median of each one's steps. No buckets: by the rule."""
    seconds: dict[str, list[float]] = {name: [] for name in plans}
    for _ in range(TURNS):
        for name, plan in plans.items():
            planner.buckets = plan
            yield NEXT
            for _ in range(COUNTED_STEPS):
                step = yield NEXT
                seconds[name].append(step.seconds)
    return {name: statistics.median(values) for name, values in seconds.items()}


def _fastest(medians: Mapping[str, float]) -> str:
    return min(medians, key=lambda name: medians[name])  # The first one, if others are no faster.


def _rest(planner: Planner, plan: Plan) -> Generator[int, Step, None]:
    """Returns when the buckets of `plan` cost so much more or less that all ranks say so."""
    usual = _own_cost(planner, plan)

    def has_moved() -> bool:
        now = _own_cost(planner, plan)
        return now > usual * MOVED_FACTOR or now < usual / MOVED_FACTOR

    planner.vote = has_moved
    while not (yield PAUSE_STEPS).agreed:
        pass


def _own_cost(planner: Planner, plan: Plan) -> float:
    """Returns what all buckets of `plan` take by what this rank has measured."""
    import numpy as np

    sizes = [float(sum(planner.gradients[name].num_bytes for name in bucket)) for bucket in plan]
    return float(cost_of(_lines_of(_own_lines(planner)))(np.array(sizes)).sum())


def _engine_is_tuned() -> bool:
    tuning = _world.current().stats()["autotune"]
    return tuning is not None and bool(tuning["final"])


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
    agreed: Plan = broadcast_object(plan, planner.root, f"{planner.name}.plan", planner.process_set)
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
    latest = allreduce(own, name=f"{planner.name}.ready", op=Max, process_set=planner.process_set)
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
    own = _own_lines(planner)
    # A rank that begins earlier waits for the others; who waits least measures best.
    least = allreduce(own, name=f"{planner.name}.costs", op=Min, process_set=planner.process_set)
    return _lines_of(least)


def _lines_of(rows: NDArray[np.float64]) -> list[CostLine]:
    """Returns the lines that are known; the last counts for larger buckets, too: no other ran."""
    lines = [CostLine(*(float(value) for value in row)) for row in rows if math.isfinite(row[1])]
    if lines and math.isfinite(lines[-1].most_bytes):
        lines[-1] = lines[-1]._replace(most_bytes=math.inf)
    return lines


def _own_lines(planner: Planner) -> NDArray[np.float64]:
    """Returns this rank's lines, of two levels and of one: shape [2, 3]; infinite, if unknown."""
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
    return own
