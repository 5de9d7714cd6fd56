"""The operations as operators of torch's compiler: one opaque call each, with shapes and gradients.

A compiled function calls `torch.ops.lightcc.*`, which does what the eager operation does, and
waits. Gradients are those of `lightcc.torch.autograd`. `_compiled` imports this module when the
compiler first meets an operation, as defining operators takes time.

The compiler must neither drop, merge nor swap collectives, as other ranks wait for each of them. So
they are operators with an effect, where torch has these. Where it has not, it may merge two unnamed
calls that are alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lightcc._ops import basics, exchanges, reductions
from lightcc._ops.reductions import Average, Sum
from lightcc._ops.waiting import synchronize
from lightcc.compression import Compression
from lightcc.process_sets import by_id
from lightcc.torch.autograd import own_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

# A CUDA graph would leave out what is agreed upon with other ranks.
_TAGS: dict[str, Any] = (
    {"tags": (torch.Tag.cudagraph_unsafe,)} if hasattr(torch.Tag, "cudagraph_unsafe") else {}
)
_HOW = "int op, float prescale, float postscale, int process_set"


def _operator(schema: str, shapes: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Makes a function an operator of its name, which has an effect.

    Args:
        schema: Its arguments and results, in torch's language.
        shapes: Takes its arguments, and returns results of the right shape and dtype.
    """

    def define(function: Callable[..., Any]) -> Any:
        made: Any = torch.library.custom_op(
            f"lightcc::{function.__name__}", function, mutates_args=(), schema=schema, **_TAGS
        )
        made.register_fake(shapes)
        if hasattr(made, "register_effect"):
            made.register_effect(torch.library.EffectType.ORDERED)  # type: ignore[attr-defined]
        else:
            torch.fx.node.has_side_effect(made._opoverload)  # noqa: SLF001  its only handle
        return made

    return define


# What the compiler knows of results: their shapes.


def _like(tensor: Tensor, *_: Any) -> Tensor:
    return tensor.new_empty(tensor.shape)


def _like_each(tensors: Sequence[Tensor], *_: Any) -> list[Tensor]:
    return [_like(tensor) for tensor in tensors]


def _of_rows(tensor: Tensor, rows: int) -> Tensor:
    return tensor.new_empty((rows, *tensor.shape[1:]))


def _each_of_rows(tensors: Sequence[Tensor], rows: Sequence[int], *_: Any) -> list[Tensor]:
    return [_of_rows(tensor, count) for tensor, count in zip(tensors, rows, strict=True)]


def _of_any_rows(tensor: Tensor, *_: Any) -> Tensor:
    """Returns a tensor of as many rows as the other ranks will send."""
    return _of_rows(tensor, torch.library.get_ctx().new_dynamic_size())  # type: ignore[arg-type]


def _each_of_any_rows(tensors: Sequence[Tensor], *_: Any) -> list[Tensor]:
    return [_of_any_rows(tensor) for tensor in tensors]


def _exchanged(tensor: Tensor, *arguments: Any) -> list[Tensor]:
    return [_of_any_rows(tensor), torch.empty(arguments[-1], dtype=torch.int32)]


def _sent_back(grad: Tensor, received: Tensor, rows: int, process_set: int) -> Tensor:
    del received, process_set
    return _of_rows(grad, rows)


def _own_share(tensor: Tensor, *arguments: Any) -> Tensor:
    members, index = arguments[-2:]
    return _of_rows(tensor, (tensor.shape[0] + members - 1 - index) // members)


def _own_shares(tensors: Sequence[Tensor], *arguments: Any) -> list[Tensor]:
    return [_own_share(tensor, *arguments) for tensor in tensors]


def _rows_of(tensors: Any) -> list[int]:
    each = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    return [tensor.shape[0] for tensor in each]


# allreduce


@_operator(f"(Tensor tensor, str? name, {_HOW}) -> Tensor", _like)
def allreduce(
    tensor: Tensor, name: str | None, op: int, prescale: float, postscale: float, process_set: int
) -> Tensor:
    """Combines a tensor over all ranks."""
    how = (op, prescale, postscale, by_id(process_set))
    return reductions.allreduce(tensor.contiguous(), None, name, Compression.none, *how)


@_operator(f"(Tensor[] tensors, str? name, {_HOW}) -> Tensor[]", _like_each)
def grouped_allreduce(
    tensors: Sequence[Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: int,
) -> list[Tensor]:
    """Combines several tensors over all ranks."""
    inputs = [tensor.contiguous() for tensor in tensors]
    how = (op, prescale, postscale, by_id(process_set))
    return reductions.grouped_allreduce(inputs, None, name, Compression.none, *how)


def _keep_how(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001  torch's form
    ctx.how = inputs[2:]


def _reduce_gradient(ctx: Any, grad: Tensor) -> Any:
    return allreduce(grad, None, *ctx.how), *[None] * 5


def _reduce_gradients(ctx: Any, grads: list[Tensor]) -> Any:
    return grouped_allreduce(grads, None, *ctx.how), *[None] * 5


allreduce.register_autograd(_reduce_gradient, setup_context=_keep_how)
grouped_allreduce.register_autograd(_reduce_gradients, setup_context=_keep_how)


# broadcast


@_operator("(Tensor tensor, int root_rank, str? name, int process_set) -> Tensor", _like)
def broadcast(tensor: Tensor, root_rank: int, name: str | None, process_set: int) -> Tensor:
    """Returns the root's tensor."""
    return exchanges.broadcast(tensor.contiguous(), root_rank, name, by_id(process_set))


@_operator("(Tensor grad, int root_rank, int process_set) -> Tensor", _like)
def broadcast_gradient(grad: Tensor, root_rank: int, process_set: int) -> Tensor:
    """Averages the gradient for the root; gives zeros to others."""
    how = (Average, 1.0, 1.0, by_id(process_set))
    mean = reductions.allreduce(grad.contiguous(), None, None, Compression.none, *how)
    return mean if basics.rank() == root_rank else torch.zeros_like(mean)


def _keep_root(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001
    _, ctx.root_rank, _, ctx.process_set = inputs


def _broadcast_backward(ctx: Any, grad: Tensor) -> Any:
    return broadcast_gradient(grad, ctx.root_rank, ctx.process_set), None, None, None


broadcast.register_autograd(_broadcast_backward, setup_context=_keep_root)


# allgather


@_operator("(Tensor tensor, str? name, int process_set) -> Tensor", _of_any_rows)
def allgather(tensor: Tensor, name: str | None, process_set: int) -> Tensor:
    """Concatenates the rows of all ranks."""
    return exchanges.allgather(tensor.contiguous(), name, by_id(process_set))


@_operator("(Tensor[] tensors, str? name, int process_set) -> Tensor[]", _each_of_any_rows)
def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None, process_set: int
) -> list[Tensor]:
    """Concatenates the rows of all ranks, of several tensors."""
    inputs = [tensor.contiguous() for tensor in tensors]
    return exchanges.grouped_allgather(inputs, name, by_id(process_set))


@_operator("(Tensor[] grads, SymInt[] rows, int process_set) -> Tensor[]", _each_of_rows)
def allgather_gradient(
    grads: Sequence[Tensor], rows: Sequence[int], process_set: int
) -> list[Tensor]:
    """Averages the gradients, and keeps the `rows` of each that were this rank's."""
    return [grad.clone() for grad in own_rows(grads, rows, by_id(process_set))]


def _keep_rows(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001
    ctx.rows, ctx.process_set = _rows_of(inputs[0]), inputs[-1]


def _allgather_backward(ctx: Any, grad: Tensor) -> Any:
    return allgather_gradient([grad], ctx.rows, ctx.process_set)[0], None, None


def _grouped_allgather_backward(ctx: Any, grads: list[Tensor]) -> Any:
    return allgather_gradient(grads, ctx.rows, ctx.process_set), None, None


allgather.register_autograd(_allgather_backward, setup_context=_keep_rows)
grouped_allgather.register_autograd(_grouped_allgather_backward, setup_context=_keep_rows)


# alltoall


# A list: torch 2.13 does not compile an operator with an effect, several results and sizes that
# are unknown until it runs.
@_operator(
    "(Tensor tensor, Tensor? splits, str? name, int process_set, SymInt members) -> Tensor[]",
    _exchanged,
)
def alltoall(
    tensor: Tensor, splits: Tensor | None, name: str | None, process_set: int, members: int
) -> list[Tensor]:
    """Sends rows to every rank; returns what came, and how many rows came from each."""
    del members
    handle = exchanges.alltoall_async(tensor.contiguous(), splits, name, by_id(process_set))
    return list(synchronize(handle))


@_operator("(Tensor grad, Tensor received, SymInt rows, int process_set) -> Tensor", _sent_back)
def alltoall_gradient(grad: Tensor, received: Tensor, rows: int, process_set: int) -> Tensor:
    """Sends the gradient's rows back to where the rows came from."""
    members = by_id(process_set)
    back, _ = synchronize(exchanges.alltoall_async(grad.contiguous(), received, None, members))
    # The splits may have left rows at the end unsent.
    unsent: Tensor = back.new_zeros((rows - back.shape[0], *back.shape[1:]))
    return torch.cat([back, unsent])


def _keep_received(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.rows, ctx.process_set = inputs[0].shape[0], inputs[3]
    ctx.save_for_backward(output[1])


def _alltoall_backward(ctx: Any, grads: list[Tensor]) -> Any:
    (received,) = ctx.saved_tensors
    return alltoall_gradient(grads[0], received, ctx.rows, ctx.process_set), *[None] * 4


alltoall.register_autograd(_alltoall_backward, setup_context=_keep_received)


# reducescatter. Its shape, and its gradient's factor, depend on members and position: compiled
# functions are specialized for arguments, but not for what an operator reads elsewhere.


@_operator(
    f"(Tensor tensor, str? name, {_HOW}, SymInt members, SymInt index) -> Tensor", _own_share
)
def reducescatter(
    tensor: Tensor,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: int,
    members: int,
    index: int,
) -> Tensor:
    """Combines a tensor over all ranks, and returns this rank's rows."""
    del members, index
    how = (op, by_id(process_set), prescale, postscale)
    return reductions.reducescatter(tensor.contiguous(), name, Compression.none, *how)


@_operator(
    f"(Tensor[] tensors, str? name, {_HOW}, SymInt members, SymInt index) -> Tensor[]", _own_shares
)
def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: int,
    members: int,
    index: int,
) -> list[Tensor]:
    """Combines several tensors over all ranks, and returns this rank's rows of each."""
    del members, index
    inputs = [tensor.contiguous() for tensor in tensors]
    how = (op, by_id(process_set), prescale, postscale)
    return reductions.grouped_reducescatter(inputs, name, Compression.none, *how)


@_operator(
    "(Tensor[] grads, SymInt[] rows, float factor, int process_set) -> Tensor[]", _each_of_rows
)
def reducescatter_gradient(
    grads: Sequence[Tensor], rows: Sequence[int], factor: float, process_set: int
) -> list[Tensor]:
    """Gathers the scaled gradients, which have `rows` together."""
    del rows
    scaled = [(grad * factor).contiguous() for grad in grads]
    return exchanges.grouped_allgather(scaled, None, by_id(process_set))


def _keep_scatter(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001
    tensors, _, op, prescale, postscale, ctx.process_set, members, _ = inputs
    ctx.rows = _rows_of(tensors)
    ctx.factor = prescale * postscale * (members if op == Sum else 1)


def _scatter_backward(ctx: Any, grad: Tensor) -> Any:
    (whole,) = reducescatter_gradient([grad], ctx.rows, ctx.factor, ctx.process_set)
    return whole, *[None] * 7


def _grouped_scatter_backward(ctx: Any, grads: list[Tensor]) -> Any:
    whole = reducescatter_gradient(grads, ctx.rows, ctx.factor, ctx.process_set)
    return whole, *[None] * 7


reducescatter.register_autograd(_scatter_backward, setup_context=_keep_scatter)
grouped_reducescatter.register_autograd(_grouped_scatter_backward, setup_context=_keep_scatter)
