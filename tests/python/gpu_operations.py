"""Every operation on arrays in CUDA memory, beside the same in host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from arrays import BFLOAT16, BOOL, DTYPES, check_same, pattern
from gpu_arrays import GpuArray, on_host, use_gpu

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
IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "allreduce_": lambda x: hvd.allreduce_(x, name="r", op=hvd.Max),
    "grouped_allreduce_": lambda x: hvd.grouped_allreduce_([x], name="g", op=hvd.Min)[0],
    "broadcast_": lambda x: hvd.broadcast_(x, hvd.size() - 1, name="b"),
}


def check_equal(actual: Any, expected: Any, what: object) -> None:
    """Raises AssertionError unless arrays, or lists and tuples of them, have the same bits."""
    if isinstance(expected, np.ndarray):
        check_same(actual, expected, what)
        return
    assert len(actual) == len(expected), what
    for one, other in zip(actual, expected, strict=True):
        check_equal(one, other, what)


def every_operation_gives_what_it_gives_for_host_memory(driver: str) -> None:
    """Compares them on this rank, for dtypes and shapes; `driver`: the CUDA driver's file."""
    use_gpu(driver)
    hvd.init()
    shapes: list[tuple[int, ...]] = [(5, 7), (4098,), (4, 0, 2)]
    for dtype, shape in [
        *((dtype, (6,)) for dtype in DTYPES if dtype != BFLOAT16),  # Which has no typestr.
        *((np.dtype("float32"), shape) for shape in shapes),
    ]:
        x = pattern(dtype, shape, hvd.rank())
        what = (dtype, shape, hvd.rank())
        for name, start in (ASYNCHRONOUS | (NUMBERS_ALONE if dtype != BOOL else {})).items():
            if shape == (5, 7) and name == "alltoall":
                continue  # Five rows do not go evenly to two ranks.
            given = GpuArray(x)
            expected = hvd.synchronize(start(x.copy()))
            result = hvd.synchronize(start(given))
            check_equal(on_host(result), expected, (name, *what))
            check_same(on_host(given), x, (name, *what))
        for name, run in IN_PLACE.items():
            given = GpuArray(x)
            assert run(given) is given
            check_same(on_host(given), run(x.copy()), (name, *what))
