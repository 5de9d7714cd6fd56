"""Names that Horovod's DistributedOptimizer has for itself, and that programs read all the same.

They mean what they mean there. What is a dictionary or a set is made anew for each reader: changing
it changes nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from lightcc.torch._gradients import GradientExchange

T = TypeVar("T", bound="Hashable")


class PrivateNames(torch.optim.Optimizer):
    """The names, on an optimizer whose gradients `_exchange` combines."""

    _exchange: GradientExchange | None

    @staticmethod
    def find_duplicates(lst: Iterable[T]) -> set[T]:
        """Returns what `lst` has more than once."""
        return {item for item, count in Counter(lst).items() if count > 1}

    @property
    def _handles(self) -> dict[torch.Tensor, tuple[Any, Any]]:
        """Parameters that have got a gradient in this step, each with handle and context.

        Both are `None` until the gradient is on its way: passes are missing, or others of its call.
        """
        return {} if self._exchange is None else self._exchange.handles()

    @property
    def _requires_update(self) -> set[torch.Tensor]:
        """Parameters whose gradients are combined, also where this rank has none."""
        return set() if self._exchange is None else self._exchange.expected()

    def _allreduce_grad_async(self, p: torch.Tensor) -> tuple[Any, Any]:
        """Sends the gradient of a parameter now, whatever passes are missing.

        Where it is in a group or in a bucket of the plan, that is sent with its last gradient.

        Returns:
            Handle and context as in `_handles`, for `synchronize()` of the optimizer.

        Raises:
            ValueError: The optimizer has no such parameter.
        """
        return (None, None) if self._exchange is None else self._exchange.send(p)
