"""The plan of one optimizer: which of its gradients travel together.

Ranks compare names and strategy when an optimizer is made, and take the plan that the first member
of the process set made.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from lightcc import _world
from lightcc._ops import basics
from lightcc._ops.functions import allgather_object, broadcast_object
from lightcc._warnings import warn_caller
from lightcc.fusion.plans import is_within, parse_positions, parse_scopes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightcc.fusion.choice import FusionChoice
    from lightcc.fusion.plans import Gradient
    from lightcc.process_sets import ProcessSet


class Planner:
    """Says which gradients of one optimizer travel together.

    Attributes:
        buckets: The plan, gradients by name; those in none travel by the rule of `choice`.
        gradients: What is planned, by name.
        process_set: The ranks that agree.
        choice: The strategy.
    """

    def __init__(
        self, choice: FusionChoice, gradients: Iterable[Gradient], process_set: ProcessSet
    ) -> None:
        """Makes the plan.

        Collective, where the strategy is a plan: every rank of the process set must call it.

        Args:
            choice: The strategy.
            gradients: In the optimizer's order, which need not be the same on all ranks.
            process_set: The ranks that must agree; this rank is a member.

        Raises:
            ValueError: Ranks differ in the strategy or in the gradients. On all of them.
        """
        self.choice = choice
        self.process_set = process_set
        self.gradients = {gradient.name: gradient for gradient in gradients}
        self.buckets: list[list[str]] = self._agree_at_start() if choice.planned else []
        _planners.add(self)

    def describe(self) -> dict[str, Any]:
        """Returns what `lightcc.stats()` tells of this optimizer."""
        return {
            "strategy": self.choice.strategy,
            "plan": [list(bucket) for bucket in self.buckets],
            "plan_bytes": [
                sum(self.gradients[name].num_bytes for name in bucket) for bucket in self.buckets
            ],
        }

    def _agree_at_start(self) -> list[list[str]]:
        """Returns the plan of the first member of the process set."""
        rank = _world.rank()
        root = (self.process_set.ranks or [0])[0]
        mine = (self.choice, self.gradients, self._plan_of_names() if rank == root else [])
        choice, gradients, plan = broadcast_object(mine, root, "fusion.start", self.process_set)
        problem = ""
        if choice != self.choice:
            problem = (
                f"ranks fuse gradients differently: rank {root} by {_text(choice)}, "
                f"rank {rank} by {_text(self.choice)}"
            )
        elif differing := set(gradients.items()) ^ set(self.gradients.items()):
            names = sorted({name for name, _ in differing})
            problem = (
                f"{choice.strategy} needs the same parameters on all ranks; ranks {root} and "
                f"{rank} differ in: {', '.join(names)}"
            )
        for text in allgather_object(problem, "fusion.agreed", self.process_set):
            if text:
                raise ValueError(text)
        return list(plan)

    def _plan_of_names(self) -> list[list[str]]:
        names = list(self.gradients)
        if names:  # Otherwise all are in groups of the caller's.
            _warn_of_unused(self.choice, names)
        return [[names[i] for i in bucket] for bucket in self.choice.plan(names)]


def _warn_of_unused(choice: FusionChoice, names: list[str]) -> None:
    """Warns where no gradient is in a part of the schedule."""
    schedule = choice.schedule
    if choice.strategy == "piecewise_fusion":
        if parse_positions(schedule, "schedule")[-1] >= len(names):
            text = f"{schedule!r} of piecewise_fusion: there are only {len(names)} gradients."
            warn_caller(text, RuntimeWarning)
        return
    scopes = parse_scopes(schedule, "schedule")
    empty = [s for s in scopes if not any(is_within(name, s) for name in names)]
    if empty:
        warn_caller(
            f"{schedule!r} of scopewise_fusion: no parameter's name begins with "
            f"{', '.join(empty)}; names are like {', '.join(names[:3])}.",
            RuntimeWarning,
        )


def _text(choice: FusionChoice) -> str:
    schedule = f" {choice.schedule!r}" if choice.schedule else ""
    return f"{choice.strategy}{schedule} (at most {choice.threshold_bytes} bytes)"


_planners: weakref.WeakSet[Planner] = weakref.WeakSet()


def _describe_all() -> list[dict[str, Any]]:
    return [planner.describe() for planner in list(_planners)]


basics.add_statistics("fusion", _describe_all)
