"""The operations as torch records them: what runs forward, and which collective its gradient is.

Each class is Horovod's, with its rule for the gradient:

| forward | backward |
|---|---|
| allreduce | the same allreduce of the gradient |
| allgather | allreduce(Average), then this rank's rows |
| broadcast | allreduce(Average) on the root, zeros elsewhere |
| alltoall | alltoall with the received splits: the rows go back |
| reducescatter | allgather, scaled by the factors, and by the number of members after a Sum |

Backward collectives are unnamed, so all ranks must run them in the same order: the graphs must be
the same. Gradients arrive in any layout and are made contiguous.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lightcc._ops import basics, exchanges, reductions
from lightcc._ops.reductions import Average, Sum
from lightcc._ops.waiting import synchronize
from lightcc.compression import Compression

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightcc.process_sets import ProcessSet

__all__ = [
    "HorovodAllgather",
    "HorovodAllreduce",
    "HorovodAlltoall",
    "HorovodBroadcast",
    "HorovodGroupedAllgather",
    "HorovodGroupedAllreduce",
    "HorovodGroupedReducescatter",
    "HorovodReducescatter",
]


def records(*tensors: Any) -> bool:
    """Returns whether torch would record an operation on `tensors`."""
    if torch.is_grad_enabled():
        for tensor in tensors:  # any() of a generator takes twice as long.
            if getattr(tensor, "requires_grad", False):
                return True
    return False


class _Function(torch.autograd.Function):
    if TYPE_CHECKING:  # torch gives it no types.

        @classmethod
        def apply(cls, *arguments: Any) -> Any: ...


class HorovodAllreduce(_Function):
    """allreduce."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        """Returns the combined tensor."""
        op = reductions.choose_op(average, op)
        ctx.how = (op, prescale_factor, postscale_factor, process_set)
        return reductions.allreduce(
            tensor, None, name, Compression.none, op, prescale_factor, postscale_factor, process_set
        )

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        """Combines the gradients in the same way."""
        return HorovodAllreduce.apply(grad_output.contiguous(), None, None, *ctx.how), *[None] * 6


class HorovodGroupedAllreduce(_Function):
    """grouped_allreduce."""

    @staticmethod
    def forward(
        ctx: Any,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Returns the combined tensors."""
        op = reductions.choose_op(average, op)
        ctx.how = (op, prescale_factor, postscale_factor, process_set)
        return tuple(reductions.grouped_allreduce(tensors, None, name, Compression.none, *ctx.how))

    @staticmethod
    def backward(ctx: Any, *grad_output: torch.Tensor) -> Any:
        """Combines the gradients in the same way, as one group."""
        grads = [grad.contiguous() for grad in grad_output]
        return *[None] * 6, *HorovodGroupedAllreduce.apply(None, None, *ctx.how, *grads)


class HorovodAllgather(_Function):
    """allgather."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        """Returns the rows of all ranks."""
        output = exchanges.allgather(tensor, name, process_set)
        ctx.process_set = process_set
        ctx.rows = tensor.shape[:1]
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        """Averages the gradient and keeps the rows that were this rank's."""
        (grad,) = own_rows([grad_output], ctx.rows, ctx.process_set)
        return grad, None, None


class HorovodGroupedAllgather(_Function):
    """grouped_allgather."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Returns the rows of all ranks, for each tensor."""
        outputs = exchanges.grouped_allgather(tensors, name, process_set)
        ctx.process_set = process_set
        ctx.rows = [tensor.shape[0] for tensor in tensors]
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grad_output: torch.Tensor) -> Any:
        """Averages the gradients and keeps the rows that were this rank's."""
        return None, None, *own_rows(grad_output, ctx.rows, ctx.process_set)


def own_rows(
    grads: Sequence[torch.Tensor], rows: Sequence[int], process_set: ProcessSet
) -> list[torch.Tensor]:
    """Averages `grads` and returns those `rows` of each that this rank had gathered."""
    own = torch.tensor([list(rows)], dtype=torch.int64)
    everybody = exchanges.allgather_async(own, None, process_set)
    reduced = HorovodGroupedAllreduce.apply(
        None, None, Average, 1.0, 1.0, process_set, *[grad.contiguous() for grad in grads]
    )
    # Shape (members, tensors): the rows of lower ranks come before this rank's.
    starts = synchronize(everybody)[: process_set.rank()].sum(dim=0).tolist()
    return [
        grad.narrow(0, start, count)
        for grad, start, count in zip(reduced, starts, rows, strict=True)
    ]


class HorovodBroadcast(_Function):
    """broadcast."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        """Returns the root's tensor."""
        ctx.root_rank = root_rank
        ctx.process_set = process_set
        return exchanges.broadcast(tensor, root_rank, name, process_set)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        """Averages the gradient for the root; the other ranks' input had no effect."""
        grad = HorovodAllreduce.apply(
            grad_output.contiguous(), None, None, Average, 1.0, 1.0, ctx.process_set
        )
        if basics.rank() != ctx.root_rank:
            grad = torch.zeros_like(grad)
        return grad, None, None, None


class HorovodAlltoall(_Function):
    """alltoall."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        splits: torch.Tensor | Sequence[int] | None,
        name: str | None,
        process_set: ProcessSet,
    ) -> Any:
        """Returns the received rows and, where `splits` were given, the received splits."""
        output, received = synchronize(exchanges.alltoall_async(tensor, splits, name, process_set))
        ctx.process_set = process_set
        ctx.shape = tensor.shape
        ctx.received = received
        if splits is None:
            return output
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor, *dead_gradients: Any) -> Any:  # noqa: ARG004
        """Sends the gradient's rows back to where the rows came from."""
        grad, _ = HorovodAlltoall.apply(
            grad_output.contiguous(), ctx.received, None, ctx.process_set
        )
        kept = ctx.shape[0] - grad.shape[0]
        if kept:  # The splits left rows at the end unsent.
            grad = torch.cat([grad, grad.new_zeros((kept, *ctx.shape[1:]))])
        return grad, None, None, None


class HorovodReducescatter(_Function):
    """reducescatter."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
    ) -> torch.Tensor:
        """Returns this rank's rows of the combined tensor."""
        ctx.process_set = process_set
        ctx.factor = _gathered_factor(op, prescale_factor * postscale_factor, process_set)
        return reductions.reducescatter(
            tensor, name, Compression.none, op, process_set, prescale_factor, postscale_factor
        )

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        """Gathers the scaled gradients of all rows."""
        scaled = _scaled(grad_output, ctx.factor)
        return HorovodAllgather.apply(scaled, None, ctx.process_set), *[None] * 5


class HorovodGroupedReducescatter(_Function):
    """grouped_reducescatter."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Returns this rank's rows of the combined tensors."""
        ctx.process_set = process_set
        ctx.factor = _gathered_factor(op, prescale_factor * postscale_factor, process_set)
        how = (op, process_set, prescale_factor, postscale_factor)
        return tuple(reductions.grouped_reducescatter(tensors, name, Compression.none, *how))

    @staticmethod
    def backward(ctx: Any, *grad_output: torch.Tensor) -> Any:
        """Gathers the scaled gradients of all rows, as one group."""
        scaled = [_scaled(grad, ctx.factor) for grad in grad_output]
        return *[None] * 5, *HorovodGroupedAllgather.apply(None, ctx.process_set, *scaled)


def _gathered_factor(op: int, factor: float, process_set: ProcessSet) -> float:
    members = process_set.size() if op == Sum else 1
    return factor * (members or 1)


def _scaled(grad: torch.Tensor, factor: float) -> torch.Tensor:
    return (grad if factor == 1.0 else grad * factor).contiguous()
