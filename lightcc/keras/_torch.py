"""torch below Keras: what lightcc's Keras core needs of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import lightcc.torch as hvd
from lightcc.keras._stream import EagerAggregation, StreamBackend, StreamExchange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightcc._keras import Aggregation, Exchange, Settings
    from lightcc.process_sets import ProcessSet


class TorchBackend(StreamBackend):
    """The operations of `lightcc.torch`, for Keras 3 on torch; torch.compile() leaves them out."""

    def __init__(self) -> None:
        """Takes nothing."""
        super().__init__(hvd, _tensor)

    def exchange(self, name: str, settings: Settings) -> Exchange:
        """Returns what combines gradients, in place."""
        return StreamExchange(name, settings, _to_send(settings), torch.zeros_like)

    def aggregation(
        self,
        passes: int,
        reduce: Callable[[list[Any]], list[Any]],
        *,
        average: bool,
        name: str,  # noqa: ARG002
    ) -> Aggregation:
        """Returns what adds gradients up."""
        return EagerAggregation(passes, reduce, average=average)

    def all_true(self, flag: Any, process_set: ProcessSet) -> Any:
        """Returns whether the flag is true on all ranks."""
        if not process_set.included():
            return flag
        number = torch.as_tensor(flag).to(torch.int32)
        lowest = hvd.allreduce(number, name="all_ranks_finite", op=hvd.Min, process_set=process_set)
        return lowest.bool()

    def outside_compilation(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function so that torch.compile() runs it as it is."""
        left_out: Callable[..., Any] = torch.compiler.disable(function)
        return left_out

    def broadcast_variables(self, variables: Sequence[Any], root_rank: int) -> None:
        """Gives variables of every rank the root's values."""
        with torch.no_grad():
            hvd.broadcast_parameters(
                [(f"{i}.{v.path}", v.value.detach()) for i, v in enumerate(variables)], root_rank
            )


def _to_send(settings: Settings) -> Callable[[torch.Tensor], torch.Tensor]:
    def to_send(gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.detach()
        if gradient.is_sparse:
            if not settings.sparse_as_dense:
                msg = (
                    "a gradient is sparse, which lightcc.keras does not combine on torch: use"
                    " sparse_as_dense=True"
                )
                raise ValueError(msg)
            gradient = gradient.to_dense()
        return gradient.contiguous().resolve_neg()

    return to_send


def _tensor(value: Any) -> torch.Tensor:
    inner = getattr(value, "value", value)  # A keras.Variable holds its tensor here.
    return torch.as_tensor(value if callable(inner) else inner)


BACKEND = TorchBackend()
