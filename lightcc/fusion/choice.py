"""Which fusion strategy an optimizer follows, from its arguments and the environment."""

from __future__ import annotations

import enum
import os
from typing import TYPE_CHECKING, NamedTuple

from lightcc import _world
from lightcc._warnings import say_once
from lightcc.fusion.plans import parse_positions, parse_scopes, piecewise, scopewise

if TYPE_CHECKING:
    from collections.abc import Sequence

STRATEGIES = ("none", "auto_fusion", "piecewise_fusion", "scopewise_fusion", "horovod")
#: Those that are lists of gradients.
PLANNED = ("piecewise_fusion", "scopewise_fusion")
#: What earlier versions had, and learnt from steps.
_GONE = ("arrival", "model")
_OF_HOROVOD = ("HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME")


class Rule(enum.IntEnum):
    """What an all-reduce may share its bucket with; the engine's FusionRule."""

    DEFAULT = 0  # As LIGHT_FUSION_STRATEGY says.
    NONE = 1
    AUTO = 2
    HOROVOD = 3
    PLANNED = 4


class FusionChoice(NamedTuple):
    """A strategy with its argument; the same on all ranks.

    Attributes:
        strategy: One of `STRATEGIES`.
        schedule: Of piecewise_fusion and scopewise_fusion; parses. Otherwise empty.
        threshold_bytes: The most that auto_fusion puts into one bucket.
        rule: What gradients that are in no planned bucket ask of the sequencer.
        limit_bytes: Of `rule`.
    """

    strategy: str
    schedule: str
    threshold_bytes: int
    rule: Rule
    limit_bytes: int

    @property
    def planned(self) -> bool:
        """Whether ranks must agree on plans."""
        return self.strategy in PLANNED

    def plan(self, names: Sequence[str]) -> list[list[int]]:
        """Returns the planned buckets, positions in `names`; without a plan there is none."""
        if self.strategy == "piecewise_fusion":
            return piecewise(len(names), parse_positions(self.schedule, "schedule"))
        if self.strategy == "scopewise_fusion":
            return scopewise(names, parse_scopes(self.schedule, "schedule"))
        return []


def choose_fusion(
    fusion_type: str | None = None,
    auto_fusion_threshold: int | None = None,
    piecewise_fusion_schedule: str | None = None,
    scopewise_fusion_schedule: str | None = None,
    *,
    allreduce_type: str | None = None,
) -> FusionChoice:
    """Returns the strategy in force; a variable of the environment counts before an argument.

    Args:
        fusion_type: One of `STRATEGIES`; `None` is auto_fusion. Before it: LIGHT_FUSION_STRATEGY.
        auto_fusion_threshold: Bytes, at least 0. Before it: LIGHT_FUSION_THRESHOLD.
        piecewise_fusion_schedule: As "2;6"; `None` is "0", one bucket. Before it:
            LIGHT_FUSION_SCHEDULE.
        scopewise_fusion_schedule: As "encoder;decoder". Before it: LIGHT_FUSION_SCHEDULE.
        allreduce_type: "fusion", or "normal", which is the strategy none.

    Raises:
        ValueError: An argument or variable is not allowed, or lightcc is not initialized.
    """
    if allreduce_type not in (None, "fusion", "normal"):
        msg = f"allreduce_type is {allreduce_type!r}: expected 'fusion' or 'normal'"
        raise ValueError(msg)
    if allreduce_type == "normal":
        fusion_type = "none"
    if fusion_type in _GONE:
        msg = (
            f"fusion_type is {fusion_type!r}, which is gone because it ended no step earlier than "
            f"auto_fusion: use auto_fusion, or another of {', '.join(STRATEGIES)}"
        )
        raise ValueError(msg)
    if fusion_type is not None and fusion_type not in STRATEGIES:
        msg = f"fusion_type is {fusion_type!r}: expected one of {', '.join(STRATEGIES)}"
        raise ValueError(msg)
    knobs = _world.current().fusion_knobs()
    threshold = _check_threshold(auto_fusion_threshold)
    if threshold is None or knobs["threshold_is_given"]:
        threshold = int(knobs["threshold_bytes"])
        is_own = False
    else:
        is_own = True
    strategy = str(knobs["strategy"]) or fusion_type or "auto_fusion"
    is_own = is_own or (not knobs["strategy"] and fusion_type is not None)
    schedule = ""
    if strategy == "piecewise_fusion":
        schedule = _piecewise(str(knobs["schedule"]), piecewise_fusion_schedule)
    elif strategy == "scopewise_fusion":
        schedule = _scopewise(str(knobs["schedule"]), scopewise_fusion_schedule)
    _tell_of_horovods(strategy)
    rule, limit = Rule.DEFAULT, 0
    if strategy == "none":
        rule = Rule.NONE
    elif strategy == "horovod":
        rule = Rule.HOROVOD
    elif strategy == "auto_fusion" and is_own:
        rule, limit = Rule.AUTO, threshold
    return FusionChoice(strategy, schedule, threshold, rule, limit)


def _tell_of_horovods(strategy: str) -> None:
    """Says once, on rank 0, that variables have no effect which only one strategy looks at."""
    given = [name for name in _OF_HOROVOD if os.environ.get(name)]
    if given and strategy != "horovod" and _world.size() > 1 and _world.rank() == 0:
        say_once(
            f"{' and '.join(given)} {'have' if len(given) > 1 else 'has'} no effect under the "
            f"fusion strategy {strategy}, only under LIGHT_FUSION_STRATEGY=horovod; "
            "LIGHT_FUSION_THRESHOLD is the size for auto_fusion"
        )


def _check_threshold(threshold: object) -> int | None:
    if threshold is None:
        return None
    if not isinstance(threshold, int) or isinstance(threshold, bool) or not 0 <= threshold < 2**63:
        msg = f"auto_fusion_threshold is {threshold!r}: expected bytes, an integer of at least 0"
        raise ValueError(msg)
    return threshold


def _piecewise(variable: str, argument: str | None) -> str:
    if variable:
        parse_positions(variable, "LIGHT_FUSION_SCHEDULE")
        return variable
    schedule = "0" if argument is None else argument
    parse_positions(schedule, "piecewise_fusion_schedule")
    return schedule


def _scopewise(variable: str, argument: str | None) -> str:
    if variable:
        parse_scopes(variable, "LIGHT_FUSION_SCHEDULE")
        return variable
    if argument is None:
        msg = (
            "scopewise_fusion needs scopes: set scopewise_fusion_schedule or LIGHT_FUSION_SCHEDULE "
            "to prefixes of names, as in 'encoder;decoder'"
        )
        raise ValueError(msg)
    parse_scopes(argument, "scopewise_fusion_schedule")
    return argument
