"""Arrays for tests: every dtype, and small integers that every dtype can add without rounding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Array = NDArray[Any]

FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64")]
try:
    import ml_dtypes
except ImportError:  # As may be on a machine for `make test-gpu`. No array has it then.
    BFLOAT16 = np.dtype("V2")
else:
    BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
    FLOATS.append(BFLOAT16)
INTEGERS = [np.dtype(name) for name in ("uint8", "int8", "uint16", "int16", "int32", "int64")]
NUMBERS = INTEGERS + FLOATS
BOOL = np.dtype("bool")
DTYPES = [*NUMBERS, BOOL]

#: None, few, odd, 0-dimensional, a zero in the middle, and around the size of a page.
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (17,), (3, 0, 2), (5, 7), (4096,), (4099,)]


def pattern(dtype: np.dtype[Any], shape: Sequence[int], rank: int = 0, limit: int = 6) -> Array:
    """Integers 0 .. limit-1 in an order that differs between ranks and positions."""
    count = int(np.prod(shape, dtype=np.int64))
    values = (np.arange(count) * 7 + np.arange(count) // 5 + rank * 3) % limit
    if dtype == BOOL:
        values = values % 2
    return values.astype(dtype).reshape(tuple(shape))


def check_same(actual: Array, expected: Array, what: object = "") -> None:
    """Raises AssertionError unless dtype, shape and every bit agree."""
    assert isinstance(actual, np.ndarray), (what, type(actual))
    assert actual.dtype == expected.dtype, (what, actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (what, actual.shape, expected.shape)
    if actual.tobytes() != expected.tobytes():
        different = np.flatnonzero(actual.ravel() != expected.ravel())[:5]
        text = [(int(i), actual.flat[int(i)], expected.flat[int(i)]) for i in different]
        raise AssertionError(f"{what}: (index, actual, expected) {text}")


def _accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which lightcc adds and scales: float32 for the small floats."""
    return np.dtype("float32") if dtype in (np.dtype("float16"), BFLOAT16) else dtype


def summed(inputs: Sequence[Array], factor: float = 1.0) -> Array:
    """The sum of `inputs`, times `factor`; integers are scaled in float64 and truncated."""
    dtype = inputs[0].dtype
    wide = _accumulator(dtype)
    total = inputs[0].astype(wide)
    for x in inputs[1:]:
        total = total + x.astype(wide)
    if factor != 1.0 and dtype in INTEGERS:
        return np.asarray(np.trunc(total.astype(np.float64) * factor)).astype(dtype)
    if factor != 1.0:
        total = total * wide.type(factor)
    return np.asarray(total).astype(dtype)


def averaged(inputs: Sequence[Array]) -> Array:
    """What op=Average gives: the sum divided by the number of ranks."""
    return summed(inputs, 1.0 / len(inputs))


def elementwise(function: Callable[[Array, Array], Array], inputs: Sequence[Array]) -> Array:
    """`inputs` combined by a numpy function of two arrays, in their order, in their dtype."""
    result = inputs[0]
    for x in inputs[1:]:
        result = np.asarray(function(result, x)).astype(x.dtype)
    return result
