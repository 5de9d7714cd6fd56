"""`Compression.auto` in TensorFlow: what it says of a step is a tensor, in graphs as well.

A graph is made once, and what it says of compression in attributes stays. So here the ways of a
step are an input of the operations. A step's first operation is a call of Python: it notes that the
step before is over, and returns the ways. It has no inputs, so it runs at once, and none of the
step's all-reduces begins before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from lightcc import _world
from lightcc._adapter import ways_within
from lightcc._ops.reductions import Average, Sum
from lightcc.exceptions import HorovodInternalError, RankMismatchError
from lightcc.tensorflow import _calls
from lightcc.tensorflow.util import _executing_eagerly

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightcc._adapter import TunedSteps
    from lightcc._core import CompressionSpec
    from lightcc.compression import AutoCompressor
    from lightcc.process_sets import ProcessSet


def check(compressor: AutoCompressor, op: int, *, squares: bool) -> None:
    """Raises ValueError where there is nothing to choose from, as far as that is known yet."""
    if op not in (Average, Sum):
        msg = f"{compressor.label} compression needs op=Average or op=Sum."
        raise ValueError(msg)
    if _world.exists():
        ways_within(compressor, squares=squares)


def key_of(
    compressor: AutoCompressor,
    gradients: Sequence[tuple[str, int]],
    together: Sequence[Sequence[int]],
    process_set: ProcessSet,
) -> Any:
    """Returns what tells these gradients, and what is asked for them, from others."""
    asked = (compressor.budget, compressor.error, compressor.warmup_steps)
    units = tuple(tuple(unit) for unit in together)
    return (asked, tuple(gradients), units, process_set.process_set_id)


def ways(steps: TunedSteps, counts: Sequence[int]) -> list[Any]:
    """Returns the ways of a step: a tensor of rows for each unit, of as many gradients.

    Collective now and then, where it runs: every rank of the process set must run it in each step.
    """
    ends = np.cumsum(counts)[:-1]

    def begin() -> list[Any]:
        specs: list[CompressionSpec | None] = [None] * sum(counts)
        try:
            if _world.exists():
                specs = steps.next_step()
        except RankMismatchError:
            raise
        except HorovodInternalError:
            # In a graph nobody could tell it from other errors of Python. The world has failed, and
            # the step's all-reduces say so, as they do where there is none.
            pass
        rows = np.array([_calls.way_of(spec) for spec in specs], np.float64)
        return np.split(rows, ends)

    if _executing_eagerly():
        return [tf.constant(rows) for rows in begin()]
    with tf.device("/cpu:0"):
        found = tf.numpy_function(begin, [], [tf.float64] * len(counts), stateful=True)
    tensors = list(found) if isinstance(found, (list, tuple)) else [found]
    for tensor, count in zip(tensors, counts, strict=True):
        tensor.set_shape([count, 2])
    return tensors
