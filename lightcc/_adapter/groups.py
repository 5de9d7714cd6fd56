"""All-or-nothing groups of gradients, as the caller of an optimizer or a tape asks for them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, TypeVar

from lightcc._ops.functions import broadcast_object
from lightcc.fusion import evenly

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lightcc.process_sets import ProcessSet

P = TypeVar("P")


def groups_or_number(groups: Any, num_groups: int) -> Any:
    """Returns `groups`, or `num_groups`, its older name, of which it warns the caller's caller."""
    if num_groups == 0:
        return groups
    text = "Parameter `num_groups` has been replaced by `groups` and will be removed"
    warnings.warn(text, DeprecationWarning, stacklevel=3)
    return num_groups if groups is None else groups


def check_groups(groups: Any, type_name: str, is_one: Callable[[Any], bool]) -> None:
    """Raises ValueError unless `groups` is a number or lists of different parameters.

    Args:
        groups: What the caller passed.
        type_name: What a parameter is called in the framework, for the error.
        is_one: Returns whether something is a parameter.
    """
    if isinstance(groups, int) and not isinstance(groups, bool) and groups >= 0:
        return
    if not isinstance(groups, (list, tuple)):
        msg = f"groups should be a non-negative integer or a list of list of {type_name}."
        raise ValueError(msg)  # noqa: TRY004  Horovod's class
    seen: set[int] = set()
    for group in groups:
        for p in group if isinstance(group, (list, tuple)) else [group]:
            if not isinstance(group, (list, tuple)) or not is_one(p):
                msg = f"groups must consist of {type_name}."
                raise ValueError(msg)
            if id(p) in seen:
                msg = "A parameter can only appear once in groups."
                raise ValueError(msg)
            seen.add(id(p))


def plan_groups(
    groups: int | Sequence[Sequence[P]], names: Mapping[P, str], process_set: ProcessSet
) -> list[list[P]]:
    """Divides the parameters of an optimizer into groups; those of no group are left out.

    Collective, where `groups` is a number: ranks may hold their parameters in different orders, so
    all take the order of the first member of `process_set`.

    Args:
        groups: That many groups of consecutive parameters, or the groups themselves; 0 is none.
        names: Names by parameter, of those that have gradients, in the optimizer's order.
        process_set: The ranks that must agree.

    Raises:
        ValueError: `groups` is a number, and another rank has other parameters. On the ranks that
            differ from the first member.
    """
    if not isinstance(groups, int):
        chosen = [[p for p in group if p in names] for group in groups]
        return [group for group in chosen if group]
    if groups == 0:
        return []
    root = (process_set.ranks or [0])[0]
    order = broadcast_object(list(names.values()), root, "DistributedOptimizer.groups", process_set)
    by_name = {name: p for p, name in names.items()}
    missing = sorted(set(order).symmetric_difference(by_name))
    if missing:
        msg = (
            f"groups={groups} needs the same parameter names as on rank {root}; "
            f"these are on one of the two ranks only: {', '.join(missing)}"
        )
        raise ValueError(msg)
    return [[by_name[name] for name in group] for group in evenly(order, groups)]
