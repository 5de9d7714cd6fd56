"""Copies of a DistributedOptimizer, and state that it loads.

Deep copies work as torch's, others say that they do not. Loading leaves the parameter groups.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

import torch

from lightcc.torch._loading import load_in_place

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from lightcc.torch._gradients import GradientExchange


class Copied(torch.optim.Optimizer):
    """What a DistributedOptimizer does when it is copied, pickled or loaded."""

    _exchange: GradientExchange | None = None
    _named: dict[torch.Tensor, str] | None

    _distribute: Callable[..., None]

    def _arguments(self, memo: dict[int, Any]) -> tuple[Any, ...]:
        """Returns what `_distribute()` was called with after the names, with copied parameters."""
        raise NotImplementedError

    def load_state_dict(self, state_dict: Any) -> None:
        """Loads the state, as in torch; the parameter groups stay the given optimizer's."""
        load_in_place(self, state_dict, super().load_state_dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Returns an optimizer of copied parameters, as torch's, which combines their gradients.

        Parameters have the names that the original's have, so only one of the two may have
        gradients in flight at a time.

        Collective, where the optimizer was made with a fusion plan or a number of groups: every
        rank of the process set must call it.

        Raises:
            ValueError: Gradients are on their way.
        """
        if self._exchange is not None and self._exchange.stream.active:
            msg = (
                "a DistributedOptimizer cannot be copied while gradients are on their way: copy it"
                " after step() or synchronize()"
            )
            raise ValueError(msg)
        made = object.__new__(type(self))
        memo[id(self)] = made
        # What torch copies of an optimizer: defaults, state and parameter groups.
        made.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        named = self._named
        if named is not None:
            named = {copy.deepcopy(p, memo): name for p, name in named.items()}
        pairs = None if named is None else [(name, p) for p, name in named.items()]
        made._distribute(pairs, *self._arguments(memo))
        return made

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Raises TypeError: neither pickle nor copy.copy() can make another one."""
        msg = (
            "a DistributedOptimizer can neither be pickled nor copied by copy.copy(), because it"
            " belongs to this process's world: save its state_dict() and load that into a new one,"
            " or use copy.deepcopy()"
        )
        raise TypeError(msg)
