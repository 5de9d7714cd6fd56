"""State that all ranks must start from: parameters, optimizer state, Python objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lightcc import _world
from lightcc._adapter import put_together, take_apart
from lightcc._ops.exchanges import broadcast_async_
from lightcc._ops.functions import allgather_object, broadcast_object
from lightcc._ops.waiting import synchronize
from lightcc.torch._loading import load_in_place

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Gives every rank the root's parameters, in place.

    Collective: every rank must call it with parameters of the same names, dtypes and shapes.

    Args:
        params: A dictionary of tensors, such as `model.state_dict()`; or a list of tensors or of
            (name, tensor) pairs, such as `list(model.named_parameters())`. Of any layout. Read on
            the root, overwritten elsewhere, whether they require a gradient or not.
        root_rank: World rank of the root.

    Raises:
        ValueError: `params` is neither, or this rank's call is wrong; see `lightcc`.
        TypeError: An entry is no tensor, such as a module's extra state; nothing is sent.
        HorovodInternalError: On all ranks; see `lightcc`.

    Example:
        >>> import torch
        >>> import lightcc.torch as hvd
        >>> hvd.init()
        >>> model = torch.nn.Linear(4, 1)
        >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    """
    if isinstance(params, dict):
        named = sorted(params.items())
    elif isinstance(params, list):
        named = [item if isinstance(item, tuple) else (None, item) for item in params]
    else:
        msg = f"invalid params of type: {type(params)}"
        raise ValueError(msg)  # noqa: TRY004  Horovod's error
    for name, tensor in named:
        if not isinstance(tensor, torch.Tensor):
            msg = (
                f"the entry '{name}' of params is a {type(tensor).__name__}: expected a tensor; "
                "leave it out, and give it to broadcast_object()"
            )
            raise TypeError(msg)
    _broadcast_in_place(named, root_rank)


def _broadcast_in_place(named: Iterable[tuple[str | None, Any]], root_rank: int) -> None:
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []
    handles = []
    for name, tensor in named:
        sent = tensor
        if isinstance(tensor, torch.Tensor) and (not tensor.is_contiguous() or tensor.is_neg()):
            sent = tensor.detach().contiguous().resolve_neg()
            copies.append((_without_repeats(tensor, tensor), _without_repeats(sent, tensor)))
        handles.append(broadcast_async_(sent, root_rank, name))
    for handle in handles:
        synchronize(handle)
    with torch.no_grad():
        for tensor, sent in copies:
            tensor.copy_(sent)


def _without_repeats(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Returns a view with one of the elements that an expanded dimension of `like` repeats."""
    for dim, (size, stride) in enumerate(zip(like.shape, like.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Gives every rank the root's optimizer state and options (learning rates, betas, ...).

    Any optimizer whose `state_dict()` can be pickled will do, also nested state such as L-BFGS's.
    Other ranks load what they receive with `load_state_dict()`, but in place: parameter groups
    stay the same objects, as a learning-rate scheduler holds them, and tensors have the root's
    dtypes. What state they had is replaced, and gone where the root has none yet.

    As with Horovod, parameters that require a gradient and have none get zeros for one where the
    root's optimizer has no state yet.

    Collective: every rank must call it with an optimizer of the same class and parameters.

    Args:
        optimizer: Any torch optimizer, wrapped by `DistributedOptimizer` or not.
        root_rank: World rank of the root.
        model: Ignored; nothing beside the optimizer is needed.

    Raises:
        ValueError: The parameter groups differ from the root's, on the rank where they do; or
            this rank's call is wrong; see `lightcc`.
        HorovodInternalError: On all ranks; see `lightcc`.
    """
    del model
    is_root = _world.current().rank == root_rank
    state = optimizer.state_dict()
    structure, tensors = take_apart(state, _describe) if is_root else (None, [])
    structure = broadcast_object(structure, root_rank, "optimizer_state")
    if not is_root:
        state, tensors = put_together(structure, _make)
    parts = [(f"optimizer_state.{i}", as_bytes(tensor)) for i, tensor in enumerate(tensors)]
    _broadcast_in_place(parts, root_rank)
    if not is_root:
        load_in_place(optimizer, state)
    fill_gradients(optimizer, state)


def fill_gradients(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Gives parameters without a gradient zeros for one, where the root has no state yet.

    Args:
        optimizer: This rank's.
        state: The `state_dict()` of the root's.
    """
    if state.get("state", True) or isinstance(optimizer, torch.optim.SparseAdam):
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


def _describe(obj: Any) -> tuple[torch.dtype, tuple[int, ...]] | None:
    return (obj.dtype, tuple(obj.shape)) if isinstance(obj, torch.Tensor) else None


def _make(description: tuple[torch.dtype, tuple[int, ...]]) -> torch.Tensor:
    dtype, shape = description
    return torch.empty(shape, dtype=dtype)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor's elements as bytes in CPU memory, so that every dtype travels.

    It is a view if it can be. The bytes of a conjugate or negative view are not those of its
    elements, so it is copied.
    """
    plain = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()
    return plain.view(-1).view(torch.uint8)
