"""State that an optimizer loads where its old state lies.

torch's `load_state_dict()` makes new parameter groups, and gives state the dtype of its parameter.
Whoever holds the groups, as a learning-rate scheduler does, then changes groups that no step reads.
And state of another dtype is rounded on the ranks that load it, but not on the rank that it is of.
Here groups, their list and the state of each parameter stay the same objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def load_in_place(
    optimizer: Any, state: Mapping[str, Any], load: Callable[[Any], object] | None = None
) -> None:
    """Loads what `state_dict()` of another replica's optimizer returned, or of this one before.

    Args:
        optimizer: Any optimizer of torch.
        state: It is copied into tensors that are alike. Its other tensors become the optimizer's.
        load: The `load_state_dict()` of a class that the optimizer's inherits from. Tensors are
            then torch's to choose, but keep their dtype where one of that dtype was there before.
            `None`: the optimizer's own, and all keep their dtypes.

    Raises:
        ValueError: The parameter groups are others.
    """
    if "optimizers" in state:  # LocalSteps has several, and loads each in place.
        optimizer.load_state_dict(state)
        return
    groups, states = optimizer.param_groups, optimizer.state
    old_groups = [dict(group) for group in groups]
    old_states = {p: dict(its) if isinstance(its, dict) else its for p, its in states.items()}
    (load or optimizer.load_state_dict)(state)
    taken: set[int] | None = set() if load is None else None
    saved = _by_parameter(state, optimizer.param_groups)
    found = dict(optimizer.state)
    for p, new in found.items():
        if isinstance(new, dict):
            own, old = states.get(p), old_states.get(p, {})
            settled = _settle(old, new, saved.get(p, new), taken)
            found[p] = _replace(own if isinstance(own, dict) else {}, settled)
    _replace(states, found)
    if optimizer.state is not states:
        optimizer.state = states
    for group, old, new in zip(groups, old_groups, optimizer.param_groups, strict=True):
        parameters = {"params": new["params"]}
        _replace(group, _settle(old, new | {"params": None}, new, taken) | parameters)
    if optimizer.param_groups is not groups:
        optimizer.param_groups = groups


def _by_parameter(state: Mapping[str, Any], groups: Any) -> dict[Any, Any]:
    """Returns the saved state of each parameter that has one in torch's format."""
    return {
        p: state["state"][number]
        for saved, group in zip(state.get("param_groups", ()), groups, strict=False)
        for number, p in zip(saved["params"], group["params"], strict=True)
        if isinstance(state["state"].get(number), dict)
    }


def _replace(own: Any, new: dict[Any, Any]) -> Any:
    """Returns `own`, a dictionary, with what `new` has."""
    own.clear()
    own.update(new)
    return own


def _settle(there: Any, value: Any, source: Any, taken: set[int] | None) -> Any:
    """Returns a loaded value in the tensors that were there, where they fit.

    Args:
        there: What was in its place.
        value: It.
        source: What it was made of.
        taken: Addresses of storages that have received values. `None`: no tensor is to be copied.
    """
    if isinstance(value, torch.Tensor):
        keeps = taken is not None or _dtype_of(there) == _dtype_of(source)
        if keeps and value.dtype != _dtype_of(source) is not None and value.shape == source.shape:
            value = source.to(value.device)
        if taken is None or not _is_alike(there, value):
            return value
        address = there.untyped_storage().data_ptr() if there.layout is torch.strided else 0
        if address in taken:  # Two values that lay in one storage may be two tensors now.
            return value
        taken.add(address)
        with torch.no_grad():
            return there.copy_(value)
    if isinstance(value, dict):
        olds, sources = (it if isinstance(it, dict) else {} for it in (there, source))
        return {
            key: _settle(olds.get(key), it, sources.get(key, it), taken)
            for key, it in value.items()
        }
    if type(value) in (list, tuple) and type(source) is type(value) and len(source) == len(value):
        is_like = type(there) is type(value) and len(there) == len(value)
        parts = zip(there if is_like else [None] * len(value), value, source, strict=True)
        return type(value)(_settle(*part, taken) for part in parts)
    return value


def _dtype_of(value: Any) -> torch.dtype | None:
    return value.dtype if isinstance(value, torch.Tensor) else None


def _is_alike(there: Any, value: torch.Tensor) -> bool:
    return (
        isinstance(there, torch.Tensor)
        and there is not value
        and (there.dtype, there.shape, there.device, there.layout)
        == (value.dtype, value.shape, value.device, value.layout)
    )
