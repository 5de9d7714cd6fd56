"""Operations that arrays in CUDA memory have as arrays of the host have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from arrays import check_same

import lightcc as hvd

if TYPE_CHECKING:
    from collections.abc import Callable

ASYNCHRONOUS: dict[str, Callable[[Any], Any]] = {
    "allreduce": lambda x: hvd.allreduce_async(x, name="r", op=hvd.Max),
    "grouped_allreduce": lambda x: hvd.grouped_allreduce_async([x, x], name="g", op=hvd.Min),
    "allgather": lambda x: hvd.allgather_async(x, name="a"),
    "grouped_allgather": lambda x: hvd.grouped_allgather_async([x], name="ga"),
    "broadcast": lambda x: hvd.broadcast_async(x, hvd.size() - 1, name="b"),
    "alltoall": lambda x: hvd.alltoall_async(x, name="t"),
    "alltoall, uneven": lambda x: hvd.alltoall_async(
        x, [hvd.rank() + 1, 2][-hvd.size() :], name="u"
    ),
}
NUMBERS_ALONE: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: hvd.allreduce_async(x, name="s", op=hvd.Sum),
    "average, scaled": lambda x: hvd.allreduce_async(x, name="s", prescale_factor=1.5),
    "reducescatter": lambda x: hvd.reducescatter_async(x, name="c", op=hvd.Sum),
    "grouped_reducescatter": lambda x: hvd.grouped_reducescatter_async([x, x], name="gc"),
}


def check_equal(actual: Any, expected: Any, what: object) -> None:
    """Raises AssertionError unless arrays, or lists and tuples of them, have the same bits."""
    if isinstance(expected, np.ndarray):
        check_same(actual, expected, what)
        return
    assert len(actual) == len(expected), what
    for one, other in zip(actual, expected, strict=True):
        check_equal(one, other, what)
