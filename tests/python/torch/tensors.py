"""torch tensors for tests: every dtype, and small integers that all dtypes add without rounding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

import lightcc.torch as hvd

if TYPE_CHECKING:
    from collections.abc import Sequence

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.uint16, torch.int16, torch.int32, torch.int64]
NUMBERS = INTEGERS + FLOATS
DTYPES = [*NUMBERS, torch.bool]

#: None, few, odd, 0-dimensional, a zero in the middle, and around the size of a page.
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (17,), (3, 0, 2), (5, 7), (4099,)]


def integers(shape: Sequence[int], rank: int, limit: int = 6) -> torch.Tensor:
    """Integers 0 .. limit-1, int64, in an order that differs between ranks and positions."""
    index = torch.arange(math.prod(shape))
    return ((index * 7 + index // 5 + rank * 3) % limit).reshape(tuple(shape))


def pattern(dtype: torch.dtype, shape: Sequence[int], rank: int, limit: int = 6) -> torch.Tensor:
    """`integers()` in `dtype`."""
    return integers(shape, rank, 2 if dtype == torch.bool else limit).to(dtype)


def check_same(actual: object, expected: torch.Tensor, what: object = "") -> None:
    """Raises AssertionError unless `actual` is a tensor like `expected`, bit for bit."""
    assert type(actual) is torch.Tensor, (what, type(actual))
    assert actual.dtype == expected.dtype, (what, actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (what, actual.shape, expected.shape)
    assert actual.is_contiguous(), (what, actual.stride())
    assert torch.equal(actual.detach(), expected), (what, actual, expected)


def divided(total: torch.Tensor, dtype: torch.dtype, members: int) -> torch.Tensor:
    """The average of integers that sum to `total`, as lightcc rounds it."""
    if not dtype.is_floating_point:
        return torch.trunc(total.double() * (1 / members)).to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return (total.to(wide) * torch.tensor(1 / members, dtype=wide)).to(dtype)


def reduced(
    op: int, dtype: torch.dtype, shape: Sequence[int], ranks: Sequence[int]
) -> torch.Tensor:
    """What allreduce makes of the patterns of `ranks`."""
    limit = reduction_limit(op, dtype)
    parts = torch.stack([integers(shape, rank, limit) for rank in ranks])
    if op == hvd.Average:
        return divided(parts.sum(0), dtype, len(ranks))
    if op == hvd.Sum:
        return parts.sum(0).to(dtype)
    if op == hvd.Product:
        return parts.prod(0).to(dtype)
    return (parts.amin(0) if op == hvd.Min else parts.amax(0)).to(dtype)


def reduction_limit(op: int, dtype: torch.dtype) -> int:
    """The `limit` of patterns whose reduction fits every dtype."""
    if dtype == torch.bool:
        return 2
    return 3 if op == hvd.Product else 6


def rows_of(rows: int, rank: int, size: int) -> slice:
    """Which rows reducescatter gives to `rank`."""
    small, extra = divmod(rows, size)
    start = rank * small + min(rank, extra)
    return slice(start, start + small + (rank < extra))
