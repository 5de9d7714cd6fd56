"""A backend's operations on values: numbers, arrays, and tensors of the framework below Keras."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Values:
    """Operations of a module on whatever becomes a tensor of it."""

    def __init__(
        self,
        hvd: Any,
        take: Callable[[Any], Any],
        give: Callable[[Any], Any] = lambda result: result,
    ) -> None:
        """Takes the module that has the operations.

        Args:
            hvd: `lightcc` or one of its frontends.
            take: Returns the tensor of the module for a value.
            give: Returns what the caller gets for a result.
        """
        self._hvd = hvd
        self._take = take
        self._give = give

    def allreduce(
        self,
        value: Any,
        name: str | None,
        average: bool | None,
        factors: tuple[float, float],
        op: int | None,
        compression: Any,
    ) -> Any:
        """Combines a value over all ranks."""
        return self._give(
            self._hvd.allreduce(
                self._take(value),
                average=average,
                name=name,
                compression=compression,
                op=op,
                prescale_factor=factors[0],
                postscale_factor=factors[1],
            )
        )

    def allgather(self, value: Any, name: str | None) -> Any:
        """Concatenates values of all ranks."""
        return self._give(self._hvd.allgather(self._take(value), name=name))

    def broadcast(self, value: Any, root_rank: int, name: str | None) -> Any:
        """Returns the root's value."""
        return self._give(self._hvd.broadcast(self._take(value), root_rank, name=name))

    def reducescatter(self, value: Any, name: str | None, op: int) -> Any:
        """Combines values and returns this rank's rows."""
        return self._give(self._hvd.reducescatter(self._take(value), name=name, op=op))
