"""Gradients of emulated steps as DistributedOptimizer hands them over where a fusion plan is made.

The plan is `lightcc.fusion`'s own, made or learnt in real time from the emulated steps, so a run
needs as many steps of warm-up as it takes to learn (40 for model). A gradient's name begins with
the model's and `q0` to `q3`, the quarter of the layers that it is in: what scopewise_fusion asks
for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lightcc as hvd
from lightcc import _world
from lightcc.fusion import Gradient, Planner, Rule, choose_fusion

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray


def has_plan() -> bool:
    """Returns whether the environment asks for a strategy that makes plans."""
    return choose_fusion(None, None, None, None).planned


def names_of(model: str, layers: Sequence[Sequence[int]]) -> list[str]:
    """Returns a name for each gradient; `layers` come in the order of back-propagation."""
    names: list[str] = []
    for number, layer in enumerate(layers):
        quarter = 3 - 4 * number // len(layers)
        names += [f"{model}.q{quarter}.{len(names) + i}" for i in range(len(layer))]
    return names


class PlannedLayers:
    """Each bucket of the plan when its last gradient comes; gradients in none at once.

    Attributes:
        op: How gradients are combined from now on.
    """

    def __init__(self, names: Sequence[str], gradients: Sequence[NDArray[np.float32]]) -> None:
        """Makes the plan, or begins to learn it. Collective.

        Args:
            names: Of the gradients.
            gradients: Each reduced in place; shape [n].
        """
        self.op = hvd.Average
        self._names = names
        self._gradients = gradients
        self._planner = Planner(
            choose_fusion(None, None, None, None),
            # As an optimizer knows them, which is not in the order in which they come.
            [Gradient(n, g.nbytes, "float32") for n, g in zip(names, gradients, strict=True)][::-1],
            hvd.global_process_set,
        )
        self._handles: list[Any] = []
        self._begun = False
        self._regroup()

    def ready(self, index: int) -> None:
        """Takes a gradient; the call does not wait for other ranks."""
        if not self._begun:
            self._begin()
        if self._planner.watching:
            self._planner.arrived(self._names[index])
        bucket = self._bucket_of.get(index)
        if bucket is None:
            self._start([index], *self._planner.rule, together=False)
            return
        self._missing[bucket] -= 1
        if self._missing[bucket] == 0:
            self._start(self._buckets[bucket], Rule.PLANNED, 0, together=True)

    def finish(self) -> None:
        """Returns when all gradients are reduced."""
        for handle in self._handles:
            hvd.synchronize(handle)
        self._handles.clear()
        self._planner.end_step()
        self._begun = False

    def _begin(self) -> None:
        self._begun = True
        if self._planner.begin_step():
            self._regroup()
        self._missing = [len(bucket) for bucket in self._buckets]

    def _regroup(self) -> None:
        position = {name: index for index, name in enumerate(self._names)}
        self._buckets = [[position[name] for name in bucket] for bucket in self._planner.buckets]
        self._bucket_of = {i: b for b, bucket in enumerate(self._buckets) for i in bucket}
        self._missing = [len(bucket) for bucket in self._buckets]

    def _start(self, indices: Sequence[int], rule: int, limit: int, *, together: bool) -> None:
        self._handles.append(
            _world.current().allreduce_each(
                [self._gradients[i] for i in indices],
                [self._names[i] for i in indices],
                self.op,
                1.0,
                1.0,
                hvd.global_process_set.process_set_id,
                together,
                rule,
                limit,
            )
        )
