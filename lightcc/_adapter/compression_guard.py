"""A warning where residuals are so large that a training may end less accurate.

The statistic is `kept_ratio` of `lightcc.stats().compression`: the norm of the residual over
the norm of what comes in with a step. It says how many steps of gradient are still unsent.
Limits come from short trainings (docs/convergence.md, "The guard").
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from lightcc import _world
from lightcc._adapter.compressed_gradients import PREFIX
from lightcc._ops.basics import stats
from lightcc.compression import CompressionWarning

if TYPE_CHECKING:
    from lightcc._adapter.compressed_gradients import CompressedGradients
    from lightcc.process_sets import ProcessSet

#: The limit for an optimizer that adds gradients up, which may arrive late.
LIMIT = 8.0
#: The limit for an optimizer that divides by squared gradients.
LIMIT_OF_SQUARES = 0.5

#: Steps between two looks, and before the first one.
_INTERVAL = 100
_MAX_NAMES = 5

_TEXT = (
    "LIGHT_TOPK_ALLREDUCE: accuracy is at stake. The residual of compression is many times what a"
    " step brings, and up to {limit:.3g} times does little harm: {names}. Send more (a larger"
    " LIGHT_TOPK_RATIO) or set LIGHT_QUANTIZE_ALLREDUCE=int4. docs/convergence.md says why."
    " Ignoring lightcc.compression.CompressionWarning silences this."
)


class CompressionGuard:
    """Looks at the statistic of some gradients from time to time, and warns once.

    Only the first rank of a process set looks, at its own shards.
    """

    def __init__(
        self, compressed: CompressedGradients, process_set: ProcessSet, limit: float
    ) -> None:
        """Begins to count steps.

        Args:
            compressed: The gradients.
            process_set: The ranks whose gradients are combined.
            limit: Of `kept_ratio`.
        """
        self._compressed = compressed
        self._process_set = process_set
        self._limit = limit
        self._steps = 0
        self._has_warned = False

    def count_step(self) -> None:
        """Notes that a step is over, and may warn."""
        self._steps += 1
        is_due = self._steps % _INTERVAL == 0 and not self._has_warned
        if is_due and _world.exists() and self._process_set.rank() == 0:
            self._look()

    def _look(self) -> None:
        operations = self._compressed.operations()
        found = {
            tensor.name: tensor.kept_ratio
            for tensor in stats().compression
            if tensor.process_set == self._process_set.process_set_id
            and tensor.name in operations
            and tensor.steps >= _INTERVAL
            and tensor.kept_ratio > self._limit
        }
        if not found:
            return
        self._has_warned = True
        largest = sorted(found, key=lambda name: -found[name])
        names = [
            f"{name.removeprefix(PREFIX)} ({found[name]:.3g} times)"
            for name in largest[:_MAX_NAMES]
        ]
        if len(found) > _MAX_NAMES:
            names.append(f"and {len(found) - _MAX_NAMES} more")
        text = _TEXT.format(limit=self._limit, names=", ".join(names))
        warnings.warn(text, CompressionWarning, stacklevel=4)
