"""The plan of one optimizer: made at the start, or learnt from its first steps.

Ranks agree on everything: at the start they compare names and strategy, and take the plan that the
first member of the process set made. arrival and model learn theirs, and autotune tries both of
them after the engine's settings. Meanwhile each step ends with
a small all-reduce, which tells whether all ranks took part in the step: only such steps count, so
that all ranks count alike, also where ranks join (hvd.join()) at different times and stay away from
some steps. Nobody waits for it before the next step begins, or before joining: a rank may have
other optimizers to step first, as long as it does so before it begins another step of this one.
Once the plan is final, a step costs nothing, but for one in a few hundred where model
looks whether buckets still cost what they did when it planned. Those steps all ranks count by
themselves, from the last time on that all of them began anew (`_world.era()`).
"""

from __future__ import annotations

import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from lightcc import _world, basics
from lightcc.exceptions import ShutDownError
from lightcc.functions import allgather_object, broadcast_object
from lightcc.fusion.learning import NEXT, Step, learn_by_model, learn_by_trial, learn_order
from lightcc.fusion.plans import (
    digest_of,
    is_within,
    parse_positions,
    parse_scopes,
    piecewise,
    scopewise,
)
from lightcc.reductions import Sum, allreduce_async_
from lightcc.waiting import synchronize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np
    from numpy.typing import NDArray

    from lightcc._typing import Handle
    from lightcc.fusion.choice import FusionChoice, Rule
    from lightcc.fusion.learning import Course
    from lightcc.fusion.plans import Gradient, Plan
    from lightcc.process_sets import ProcessSet


class _Told(NamedTuple):
    """What this rank told the others at the end of a step.

    Attributes:
        world: The number of the world in which it did.
        handle: Of what all ranks told.
        arrivals: When its gradients came.
    """

    world: int
    handle: Handle[NDArray[np.int64]]
    arrivals: dict[str, float]


_LEARNT = {"arrival": learn_order, "model": learn_by_model}


class Planner:
    """Says which gradients of one optimizer travel together.

    Attributes:
        buckets: The plan in force, gradients by name; others travel by `rule`.
        rule: What gradients in no bucket ask of the sequencer: a Rule, and bytes.
        gradients: What is planned, by name.
        process_set: The ranks that agree.
        choice: The strategy.
        name: Begins the names of this planner's operations. Another optimizer's planner has
            another one, since ranks need not step their optimizers in the same order.
        notes: What else `describe()` tells.
        vote: What this rank says to the question that is asked in every step, if any.
    """

    def __init__(
        self,
        choice: FusionChoice,
        gradients: Iterable[Gradient],
        process_set: ProcessSet,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Makes the plan, or begins to learn it.

        Collective, where the strategy is a plan: every rank of the process set must call it.

        Args:
            choice: The strategy.
            gradients: In the optimizer's order, which need not be the same on all ranks.
            process_set: The ranks that must agree; this rank is a member.
            clock: Seconds.

        Raises:
            ValueError: Ranks differ in the strategy or in the gradients. On all of them.
        """
        self.choice = choice
        self.process_set = process_set
        self.gradients = {gradient.name: gradient for gradient in gradients}
        self.name = f"fusion.{digest_of(self.gradients)}"
        self.buckets: Plan = []
        self.rule: tuple[Rule, int] = (choice.rule, choice.limit_bytes)
        self.notes: dict[str, Any] = {}
        self._clock = clock
        self.vote: Callable[[], bool] = bool
        self._pause = NEXT  # Of so many steps the course is sent the last.
        self._pause_left = NEXT
        self._era = _world.era()
        self._arrivals: dict[str, float] = {}
        self._told: _Told | None = None  # At the end of the last step.
        self._changed = False
        self._last_end = clock()
        self._course: Course | None = None
        if choice.planned:
            self.buckets = self._agree_at_start()
        learn = learn_by_trial if choice.tuned else _LEARNT.get(choice.strategy)
        if self.gradients and learn is not None:
            self._course = learn(self)
            self._pause = next(self._course)
        _planners.add(self)

    @property
    def watching(self) -> bool:
        """Whether something is learnt: `arrived()` wants to be called."""
        return self._course is not None and self._pause == NEXT

    @property
    def root(self) -> int:
        """The world rank whose plan counts."""
        return (self.process_set.ranks or [0])[0]

    def arrived(self, name: str) -> None:  # hot
        """Notes that this rank has a gradient ready to travel."""
        self._arrivals[name] = self._clock()

    def begin_step(self) -> bool:
        """Learns from the step before; returns whether `buckets`, `rule` or `watching` changed.

        Collective: every rank of the process set that has not joined must call it, with no gradient
        in flight.

        Raises:
            HorovodInternalError: A rank failed. On all ranks.
        """
        self._learn()
        changed, self._changed = self._changed, False
        return changed

    def end_step(self) -> None:
        """Ends a step, without waiting for other ranks.

        Collective: every rank of the process set that has not joined must call it, with no gradient
        in flight, after `begin_step()`.

        Raises:
            HorovodInternalError: A rank failed. On all ranks.
        """
        if self._course is None or self._rests():
            return
        import numpy as np

        now = self._clock()
        arrivals, self._arrivals = self._arrivals, {}
        seconds, self._last_end = now - self._last_end, now
        # In integers, which are never compressed.
        sees = bool(arrivals) or self._pause > NEXT
        mine = np.array([1, seconds * 1e9, self.vote()] if sees else [0, 0, 0], np.int64)
        try:
            handle = allreduce_async_(
                mine, name=f"{self.name}.step", op=Sum, process_set=self.process_set
            )
        except ShutDownError:
            return  # Another rank has left after this step, which is complete here, too.
        self._told = _Told(_world.number(), handle, arrivals)

    def _learn(self) -> None:
        """Waits for what ranks told one another at the end of the last step."""
        told, self._told = self._told, None
        if told is None or self._course is None or told.world != _world.number():
            return  # The ranks of a world that is over have all heard nothing, or not all of them.
        everyone = synchronize(told.handle)
        if everyone[0] < (self.process_set.size() or 0):
            return  # A rank has joined, or saw nothing.
        arrivals = told.arrivals
        first = min(arrivals.values(), default=0.0)
        ready = {name: moment - first for name, moment in arrivals.items()}
        before = (self.buckets, self.rule, self.watching)
        mean = float(everyone[1] / everyone[0]) * 1e-9
        try:
            self._pause = self._course.send(Step(mean, ready, bool(everyone[2] == everyone[0])))
            self._pause_left = self._pause
        except StopIteration:
            self._course = None
        self._changed = self._changed or before != (self.buckets, self.rule, self.watching)

    def _rests(self) -> bool:
        """Counts a step; returns whether it is one of a pause."""
        if self._pause == NEXT:
            return False
        if self._era != _world.era():
            self._era, self._pause_left = _world.era(), self._pause
        self._pause_left -= 1
        if self._pause_left > 0:
            return True
        self._pause_left = self._pause  # If it turns out that not all ranks are here.
        return False

    def describe(self) -> dict[str, Any]:
        """Returns what `lightcc.stats()` tells of this optimizer."""
        return {
            "strategy": self.choice.strategy,
            "final": not self.watching,
            "plan": [list(bucket) for bucket in self.buckets],
            "plan_bytes": [
                sum(self.gradients[name].num_bytes for name in bucket) for bucket in self.buckets
            ],
            **self.notes,
        }

    def _agree_at_start(self) -> Plan:
        """Returns the root's plan, which has no buckets where it is still to be learnt."""
        rank = _world.rank()
        mine = (self.choice, self.gradients, self._plan_of_names() if rank == self.root else [])
        choice, gradients, plan = broadcast_object(
            mine, self.root, "fusion.start", self.process_set
        )
        problem = ""
        if choice != self.choice:
            problem = (
                f"ranks fuse gradients differently: rank {self.root} by {_text(choice)}, "
                f"rank {rank} by {_text(self.choice)}"
            )
        elif differing := set(gradients.items()) ^ set(self.gradients.items()):
            names = sorted({name for name, _ in differing})
            problem = (
                f"{choice.strategy} needs the same parameters on all ranks; ranks {self.root} and "
                f"{rank} differ in: {', '.join(names)}"
            )
        for text in allgather_object(problem, "fusion.agreed", self.process_set):
            if text:
                raise ValueError(text)
        return list(plan)

    def _plan_of_names(self) -> Plan:
        names = list(self.gradients)
        schedule = self.choice.schedule
        if not names:
            return []  # All are in groups of the caller's.
        if self.choice.strategy == "piecewise_fusion":
            positions = parse_positions(schedule, "schedule")
            if positions[-1] >= len(names):
                _warn(f"{schedule!r} of piecewise_fusion: there are only {len(names)} gradients.")
            return piecewise(names, positions)
        if self.choice.strategy == "scopewise_fusion":
            scopes = parse_scopes(schedule, "schedule")
            empty = [s for s in scopes if not any(is_within(name, s) for name in names)]
            if empty:
                _warn(
                    f"{schedule!r} of scopewise_fusion: no parameter's name begins with "
                    f"{', '.join(empty)}; names are like {', '.join(names[:3])}."
                )
            return scopewise(names, scopes)
        return []


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)


def _text(choice: FusionChoice) -> str:
    schedule = f" {choice.schedule!r}" if choice.schedule else ""
    return f"{choice.strategy}{schedule} (at most {choice.threshold_bytes} bytes)"


_planners: weakref.WeakSet[Planner] = weakref.WeakSet()


def _learn_all() -> None:
    """Lets all planners learn, in an order that is the same on all ranks."""
    for planner in sorted(
        _planners, key=lambda planner: (planner.process_set.ranks or [], planner.name)
    ):
        planner._learn()  # noqa: SLF001  of this module


def _describe_all() -> list[dict[str, Any]]:
    return [planner.describe() for planner in list(_planners)]


basics.add_statistics("fusion", _describe_all)
_world.before_join.append(_learn_all)
