"""What DistributedOptimizer calls its parameters.

Gradients of different ranks are matched by name, so names must come out the same on all ranks.
Nothing here looks at a gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

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
