"""Outer steps of LocalSteps: where workers started, and how what they have done is combined.

    delta = mean over workers of (start - weights), by the steps that each makes in a round
    momentum = outer_momentum * momentum + delta
    start = start - outer_lr * (delta + outer_momentum * momentum)

The exchange may go on beside the next inner step. What a worker has done meanwhile is added to the
new start.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from lightcc import _world
from lightcc._ops.reductions import Sum
from lightcc.compression import compress_each, engine_spec
from lightcc.exceptions import HorovodInternalError
from lightcc.fusion import digest_of
from lightcc.process_sets import set_id
from lightcc.torch import mpi_ops
from lightcc.torch._rows import join, parts_of
from lightcc.torch.compression import Compression

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightcc.process_sets import ProcessSet

    Tensors = dict[torch.Tensor, torch.Tensor]  # By parameter.
    Names = dict[torch.Tensor, str]

#: A worker makes at most so many times as many steps in a round as another one.
_MAX_RATIO = 4


@dataclass
class _Flight:
    """An exchange under way."""

    steps: int  # Handle of the sum of the steps of workers that take part.
    unit: float  # So many of these steps weigh 1.
    rows: int  # Handle of the sums of deltas.
    restore: Callable[[Any], list[torch.Tensor]]  # Makes rows of what has travelled.
    parts: list[list[torch.Tensor]]  # The parameters of each row.
    count: int  # Steps that it is of.
    left: Tensors  # Weights from which the worker went on; none, where it waits.


class OuterSteps:
    """What LocalSteps keeps beside the optimizers that it was given.

    Attributes:
        count: Steps since the last outer one.
        starts: Where workers started, by parameter.
        momenta: Of outer steps, by parameter.
    """

    def __init__(
        self, lr: float, momentum: float, compression: Any, every: int, ranks: ProcessSet
    ) -> None:
        """Has started nowhere yet."""
        self.count = 0
        self.starts: Tensors = {}
        self.momenta: Tensors = {}
        self._lr, self._momentum = lr, momentum
        self._compression = compression
        self._every = every
        self._ranks = ranks
        self._mean_every = 1.0  # The mean over workers,
        self._epoch = -1  # which was asked for in this world.
        self._flight: _Flight | None = None

    def note_starts(self, names: Names) -> None:
        """Notes the weights of parameters that have not been stepped yet."""
        for p in names:
            if p not in self.starts:
                self.starts[p] = _wide(own_part(p))

    @torch.no_grad()
    def begin(self, names: Names, *, goes_on: bool) -> None:
        """Starts to combine what workers have done. Collective.

        Args:
            names: All parameters that are trained.
            goes_on: Whether the worker makes a step before it calls `finish()`.

        Raises:
            HorovodInternalError: A rank failed. On all ranks.
            ValueError: Workers make too different numbers of steps. On all ranks.
        """
        self._agree_on_mean(names)
        moved = {p: self._moved(p) for p in names}
        left = {p: own_part(p).clone() for p in names} if goes_on else {}
        self._flight = self._exchange(
            moved, names, self._every, self._mean_every, self._compression, left
        )

    @torch.no_grad()
    def finish(self) -> None:
        """Waits for what `begin()` has started, if anything, and makes the outer step.

        Raises:
            HorovodInternalError: A rank failed; nothing has changed. On all ranks.
        """
        flight, self._flight = self._flight, None
        if flight is None:
            return
        weight, sums = self._sums(flight)
        has_gone_on = self.count > flight.count
        for p, delta in sums.items():
            start, own = self.starts[p], own_part(p)
            if weight:
                self._move(p, start, delta.div_(weight))
            if has_gone_on:
                own.add_(start.to(own.dtype) - flight.left[p])
            else:
                own.copy_(start)
        self.count -= flight.count

    def _move(self, p: torch.Tensor, start: torch.Tensor, delta: torch.Tensor) -> None:
        if self._momentum > 0:
            momentum = self.momenta.setdefault(p, torch.zeros_like(delta))
            momentum.mul_(self._momentum).add_(delta)
            delta.add_(momentum, alpha=self._momentum)
        start.sub_(delta, alpha=self._lr)

    def drop(self) -> None:
        """Forgets an exchange under way: what it is of counts as not combined."""
        flight, self._flight = self._flight, None
        if flight is not None:
            for handle in (flight.steps, flight.rows):
                with contextlib.suppress(HorovodInternalError, ValueError):
                    mpi_ops.synchronize(handle)

    @torch.no_grad()
    def take_over(self, own: OuterSteps, names: Names) -> None:
        """Goes on from these starts, with what workers have done since in a world before.

        Nothing is compressed: what had to wait as a residual would be lost.

        Collective: every rank must call it with the same starts and momenta.

        Args:
            own: Where this rank's worker was; it has done nothing where it is new.
            names: All parameters that are trained.

        Raises:
            HorovodInternalError: A rank failed. On all ranks.
        """
        moved = {p: own._moved(p) if own.count else torch.zeros_like(self.starts[p]) for p in names}
        self._flight = self._exchange(moved, names, own.count, 1.0, Compression.none, {})
        self.finish()
        self.count = 0

    def _moved(self, p: torch.Tensor) -> torch.Tensor:
        """Returns how far `p` has come from where the worker began: the start in its dtype."""
        start = self.starts[p]
        return (start.to(p.dtype).to(start.dtype) - own_part(p)).contiguous()

    def _agree_on_mean(self, names: Names) -> None:
        """Finds out, once in each world, how many steps workers make in a round. Collective."""
        if self._epoch == _world.epoch():
            return
        every = torch.zeros(self._ranks.size() or 1, dtype=torch.int64)
        every[self._ranks.rank() or 0] = self._every
        name = f"LocalSteps.{digest_of(names.values())}.every"
        every = mpi_ops.allreduce(every, name=name, op=Sum, process_set=self._ranks)
        present = every[every > 0]  # A rank that has joined brings nothing.
        if present.max() > _MAX_RATIO * present.min():
            msg = (
                f"LocalSteps: `every` is from {int(present.min())} to {int(present.max())} on these"
                f" ranks; one worker may make at most {_MAX_RATIO} times as many steps as another"
            )
            raise ValueError(msg)
        self._mean_every = float(present.double().mean())
        self._epoch = _world.epoch()

    def _exchange(
        self,
        moved: Tensors,
        names: Names,
        steps: int,
        unit: float,
        compression: Any,
        left: Tensors,
    ) -> _Flight:
        """Starts to add up deltas, each with the weight of its worker's steps."""
        rows: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for p, delta in moved.items():
            rows.setdefault((delta.dtype, delta.device), []).append(p)
        name = f"LocalSteps.{digest_of(names.values())}"
        of_steps = mpi_ops.allreduce_async(
            torch.tensor([steps]),  # Which nothing compresses.
            name=f"{name}.steps",
            op=Sum,
            process_set=self._ranks,
        )
        joined = [join([moved[p] for p in row]) for row in rows.values()]
        if steps != unit:
            for row in joined:
                row.mul_(steps / unit)
        sent, restore = compress_each(compression, joined)
        of_rows = _world.current().allreduce_each(
            sent,
            [f"{name}_{i}of{len(sent)}" for i in range(len(sent))],
            Sum,
            1.0,
            1.0,
            set_id(self._ranks),
            together=True,
            compression=engine_spec(compression),
        )
        return _Flight(of_steps, unit, of_rows, restore, list(rows.values()), self.count, left)

    def _sums(self, flight: _Flight) -> tuple[float, Tensors]:
        """Waits for an exchange; returns the sums of weights, and of what workers have done."""
        weight = int(mpi_ops.synchronize(flight.steps)) / flight.unit
        sums: Tensors = {}
        rows = flight.restore(mpi_ops.synchronize(flight.rows))
        for row, parameters in zip(rows, flight.parts, strict=True):
            cut = parts_of(row, [self.starts[p] for p in parameters])
            sums |= dict(zip(parameters, cut, strict=True))
        return weight, sums


def own_part(p: torch.Tensor) -> torch.Tensor:
    """Returns what this rank has of a parameter: its shard, or all of it."""
    shard: torch.Tensor = p.to_local() if hasattr(p, "to_local") else p  # A DTensor has it.
    return shard


def _wide(p: torch.Tensor) -> torch.Tensor:
    """Returns a copy, in float32 where `p` has fewer bits, so that small outer steps count."""
    dtype = torch.float32 if p.element_size() < 4 else p.dtype
    return p.detach().to(dtype, copy=True, memory_format=torch.contiguous_format)
