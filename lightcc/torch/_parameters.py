"""What DistributedOptimizer calls its parameters, and which of them travel together.

Gradients of different ranks are matched by name, so names and groups must come out the same on all
ranks. Nothing here looks at a gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from lightcc.functions import broadcast_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lightcc.process_sets import ProcessSet

Groups: TypeAlias = "int | Sequence[Sequence[torch.Tensor]]"


def check_named(named_parameters: Iterable[Any]) -> dict[torch.Tensor, str]:
    """Returns the names by parameter.

    Args:
        named_parameters: Tuples (name, parameter). A parameter with several names has the last one
            in the order of the alphabet.

    Raises:
        ValueError: Something else than tuples, or one name for two parameters.
    """
    pairs = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in pairs):
        msg = (
            "named_parameters should be a sequence of tuples (name, parameter), usually produced "
            "by model.named_parameters()."
        )
        raise ValueError(msg)
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        msg = (
            "Parameter names in named_parameters must be unique. Found duplicates: "
            f"{', '.join(twice)}"
        )
        raise ValueError(msg)
    return {parameter: name for name, parameter in sorted(pairs, key=lambda pair: str(pair[0]))}


def name_parameters(
    param_groups: Sequence[Mapping[str, Any]],
    named: Mapping[torch.Tensor, str] | None,
    first_group: int = 0,
) -> dict[torch.Tensor, str]:
    """Returns the name of each parameter of an optimizer, in the optimizer's order.

    Args:
        param_groups: The optimizer's, or the last ones of them.
        named: What the caller of DistributedOptimizer named. `None`: nothing, so that the
            optimizer's own names count, or else the positions.
        first_group: The position of the first of `param_groups`.

    Raises:
        ValueError: Names were given, but not for all parameters.
    """
    if named is not None:
        parameters = [p for group in param_groups for p in group["params"]]
        unnamed = [str(id(p)) for p in parameters if p not in named]
        if unnamed:
            msg = (
                "named_parameters was specified, but one or more model parameters were not named. "
                f"Python object ids: {', '.join(unnamed)}"
            )
            raise ValueError(msg)
        return {p: named[p] for p in parameters}
    names = {}
    for g, group in enumerate(param_groups, first_group):
        # Optimizers that were given named parameters keep their names since torch 2.6.
        own = group.get("param_names")
        for i, p in enumerate(group["params"]):
            names[p] = own[i] if own else f"allreduce.noname.{g}.{i}"
    return names


def check_groups(groups: Groups) -> None:
    """Raises ValueError unless `groups` is a number or lists of different tensors."""
    if isinstance(groups, int) and not isinstance(groups, bool) and groups >= 0:
        return
    if not isinstance(groups, (list, tuple)):
        msg = "groups should be a non-negative integer or a list of list of torch.Tensor."
        raise ValueError(msg)  # noqa: TRY004  Horovod's class
    seen: set[int] = set()
    for group in groups:
        for p in group if isinstance(group, (list, tuple)) else [group]:
            if not isinstance(group, (list, tuple)) or not isinstance(p, torch.Tensor):
                msg = "groups must consist of torch.Tensor."
                raise ValueError(msg)  # noqa: TRY004  Horovod's class
            if id(p) in seen:
                msg = "A parameter can only appear once in groups."
                raise ValueError(msg)
            seen.add(id(p))


def plan_groups(
    groups: Groups, names: Mapping[torch.Tensor, str], process_set: ProcessSet
) -> list[list[torch.Tensor]]:
    """Divides the parameters of an optimizer into groups; those of no group are left out.

    Collective, where `groups` is a number: ranks may hold their parameters in different orders, so
    all take the order of the first member of `process_set`.

    Args:
        groups: That many groups of consecutive parameters, or the groups themselves; 0 is none.
        names: Of the parameters that have gradients, in the optimizer's order.
        process_set: The ranks that must agree.
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
    count = min(groups, len(order))
    ends = [len(order) * (i + 1) // count for i in range(count)]
    return [
        [by_name[name] for name in order[begin:end]]
        for begin, end in zip([0, *ends], ends, strict=False)
    ]
