"""allreduce and reducescatter between ranks: operators, dtypes and odd shapes, bit for bit."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from arrays import (
    BFLOAT16,
    BOOL,
    DTYPES,
    FLOATS,
    INTEGERS,
    NUMBERS,
    SHAPES,
    averaged,
    check_same,
    elementwise,
    pattern,
    summed,
)
from grids import every_grid

import lightcc as hvd

if TYPE_CHECKING:
    from arrays import Array
    from grids import Grid

pytestmark = pytest.mark.multiproc

FLOAT32, INT64 = np.dtype("float32"), np.dtype("int64")
#: All dtypes of one shape, and all shapes of one dtype: the C++ tests have every pair.
SMALL = [(dtype, (17,)) for dtype in DTYPES] + [(FLOAT32, shape) for shape in SHAPES]
LARGE = [(dtype, (100_003,)) for dtype in (FLOAT32, BFLOAT16, INT64)] + [(FLOAT32, (513, 1025))]


def inputs_of_all(dtype: np.dtype[Any], shape: tuple[int, ...], limit: int = 6) -> list[Array]:
    return [pattern(dtype, shape, rank, limit) for rank in range(hvd.size())]


def expected_reduction(op: hvd.ReduceOp, inputs: list[Array]) -> Array:
    if op == hvd.Sum:
        return summed(inputs)
    if op == hvd.Average:
        return averaged(inputs)
    functions = {hvd.Min: np.minimum, hvd.Max: np.maximum, hvd.Product: np.multiply}
    return elementwise(functions[op], inputs)


def allreduce_has_the_exact_result() -> None:
    started = []
    for dtype, shape in SMALL:
        ops = [hvd.Min, hvd.Max, hvd.Product]
        if dtype != BOOL:
            ops += [hvd.Sum, hvd.Average]
        for op in ops:
            # Products of four ranks must fit int8.
            inputs = inputs_of_all(dtype, shape, limit=3 if op == hvd.Product else 6)
            expected = expected_reduction(op, inputs)
            x, y = inputs[hvd.rank()].copy(), inputs[hvd.rank()].copy()
            what = (op.name, str(dtype), shape)
            handles = hvd.allreduce_async(x, op=op), hvd.allreduce_async_(y, op=op)
            started.append((*handles, y, expected, what))
    for new, in_place, y, expected, what in started:
        check_same(hvd.synchronize(new), expected, what)
        assert hvd.synchronize(in_place) is y, what
        check_same(y, expected, what)


def allreduce_of_many_elements_has_the_exact_result() -> None:
    for dtype, shape in LARGE:
        inputs = inputs_of_all(dtype, shape)
        x = inputs[hvd.rank()].copy()
        check_same(hvd.allreduce(x, op=hvd.Sum), summed(inputs), (str(dtype), shape))
        check_same(x, inputs[hvd.rank()], "the input was changed")
        check_same(hvd.allreduce_(x), averaged(inputs), (str(dtype), shape))


def factors_scale_inputs_and_results() -> None:
    for dtype in NUMBERS:
        inputs = inputs_of_all(dtype, (37,))
        x = inputs[hvd.rank()]
        # Integers are truncated after each factor; 0.5 is exact for the others.
        halves = [summed([i], 0.5) for i in inputs] if dtype in INTEGERS else inputs
        half = summed(halves) if dtype in INTEGERS else summed(inputs, 0.5)
        check_same(hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5), half, str(dtype))
        check_same(hvd.allreduce(x, op=hvd.Sum, postscale_factor=2.0), summed(inputs, 2.0))
        undone = hvd.allreduce(x, op=hvd.Average, postscale_factor=hvd.size())
        check_same(undone, summed(inputs), str(dtype))


def average_of_integers_is_truncated_towards_zero() -> None:
    for value in (-7, -1, 0, 1, 7, 100):
        x = np.array([value + hvd.rank()], np.int32)
        total = sum(value + rank for rank in range(hvd.size()))
        expected = np.array([int(total * (1.0 / hvd.size()))], np.int32)
        check_same(hvd.allreduce(x), expected, value)
    for dtype, value in ((np.int8, 127), (np.int8, -128), (np.uint8, 255)):  # Sums do not fit.
        x = np.full(3, value, dtype)
        check_same(hvd.allreduce(x), x, value)
        y = np.full(3, value - np.sign(value) * (hvd.rank() == 0), dtype)
        (y,) = hvd.grouped_allreduce_([y], name="group")
        expected = np.full(3, int((hvd.size() * value - np.sign(value)) / hvd.size()), dtype)
        check_same(y, expected)
        z = np.full(3 * hvd.size(), value - np.sign(value) * (hvd.rank() == 0), dtype)
        check_same(hvd.reducescatter(z), expected)


def adasum_averages_what_is_equal_and_adds_what_is_orthogonal() -> None:
    for dtype in FLOATS:
        same = pattern(dtype, (40,)) + dtype.type(1)
        check_same(hvd.allreduce(same, op=hvd.Adasum), same, ("equal gradients", str(dtype)))
        one = np.zeros(8, dtype)
        one[hvd.rank()] = 3
        total = np.zeros(8, dtype)
        total[: hvd.size()] = 3
        check_same(hvd.allreduce(one, op=hvd.Adasum), total, ("orthogonal", str(dtype)))


def group_gives_each_member_its_result() -> None:
    shapes = [(5,), (), (0,), (70_001,), (3, 3)]
    dtypes = [np.dtype(name) for name in ("float32", "int64", "float64", "float16", "uint8")]
    inputs = [inputs_of_all(dtype, shape) for dtype, shape in zip(dtypes, shapes, strict=True)]
    mine = [of_all[hvd.rank()] for of_all in inputs]
    results = hvd.grouped_allreduce(mine, op=hvd.Sum)
    for result, of_all in zip(results, inputs, strict=True):
        check_same(result, summed(of_all))
    copies = [x.copy() for x in mine]
    for result, copy, of_all in zip(
        hvd.grouped_allreduce_(copies, name="group"), copies, inputs, strict=True
    ):
        assert result is copy
        check_same(result, averaged(of_all))


def ranks_may_start_named_operations_in_any_order() -> None:
    names = [f"g{i}" for i in range(20)]
    order = np.random.default_rng(hvd.rank()).permutation(len(names))
    handles = {}
    for i in order:
        xs = [np.full(4, int(i) + hvd.rank(), np.float32), np.full(3, int(i), np.float32)]
        handles[int(i)] = hvd.grouped_allreduce_async(xs, op=hvd.Sum, name=names[i])
    for i in range(len(names)):
        first, second = hvd.synchronize(handles[i])
        n = hvd.size()
        check_same(first, np.full(4, n * i + n * (n - 1) // 2, np.float32), i)
        check_same(second, np.full(3, n * i, np.float32), i)


def results_are_accurate_and_the_same_bits_on_all_ranks() -> None:
    digests = []
    two_levels = 1 < hvd.local_size() < hvd.size() and hvd.is_homogeneous()
    for dtype in FLOATS:
        values = [np.random.default_rng(100 + r).normal(size=50_021) for r in range(hvd.size())]
        inputs = [v.astype(dtype) for v in values]
        result = hvd.allreduce(inputs[hvd.rank()], op=hvd.Sum)
        exact = sum(i.astype(np.float64) for i in inputs)
        magnitude = sum(np.abs(i.astype(np.float64)) for i in inputs)
        # One rounding per addition in the accumulator, and one to the dtype for each sum.
        wide = np.finfo(np.float64 if dtype == np.float64 else np.float32).eps
        last = {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(dtype.name, wide)
        rounded = np.abs(exact) + (magnitude if two_levels else 0)
        bound = hvd.size() * wide * magnitude + last * rounded + 1e-30
        assert (np.abs(result.astype(np.float64) - exact) <= bound).all(), dtype
        digests.append(hashlib.sha256(result.tobytes()).hexdigest())
    assert hvd.allgather_object(digests) == [digests] * hvd.size()


def share_of(rows: int, rank: int, size: int) -> slice:
    small, extra = divmod(rows, size)
    start = rank * small + min(rank, extra)
    return slice(start, start + small + (rank < extra))


def reducescatter_gives_each_rank_its_share() -> None:
    started = []
    shapes: list[tuple[int, ...]] = [(0,), (1,), (3,), (5, 7), (4, 0)]
    cases = [(dtype, (17,)) for dtype in NUMBERS] + [(FLOAT32, shape) for shape in shapes]
    for dtype, shape in [*cases, *LARGE]:
        inputs = inputs_of_all(dtype, shape)
        mine = share_of(shape[0], hvd.rank(), hvd.size())
        for op, expected in ((hvd.Sum, summed(inputs)), (hvd.Average, averaged(inputs))):
            handle = hvd.reducescatter_async(inputs[hvd.rank()], op=op)
            started.append((handle, expected[mine], (op.name, str(dtype), shape)))
    for handle, expected, what in started:
        check_same(hvd.synchronize(handle), expected, what)


def grouped_reducescatter_gives_shares_of_each_member() -> None:
    shapes = [(5,), (4, 3), (9,)]
    inputs = [inputs_of_all(FLOAT32, shape) for shape in shapes]
    results = hvd.grouped_reducescatter([of_all[hvd.rank()] for of_all in inputs])
    for shape, of_all, result in zip(shapes, inputs, results, strict=True):
        check_same(result, averaged(of_all)[share_of(shape[0], hvd.rank(), hvd.size())], shape)


REDUCTIONS = [
    allreduce_has_the_exact_result,
    allreduce_of_many_elements_has_the_exact_result,
    factors_scale_inputs_and_results,
    average_of_integers_is_truncated_towards_zero,
    group_gives_each_member_its_result,
    ranks_may_start_named_operations_in_any_order,
    reducescatter_gives_each_rank_its_share,
    grouped_reducescatter_gives_shares_of_each_member,
]


@every_grid
def test_reductions_have_the_right_bits(grid: Grid) -> None:
    programs = [*REDUCTIONS, results_are_accurate_and_the_same_bits_on_all_ranks]
    if grid.ranks != 3:  # Adasum rounds three equal vectors.
        programs.append(adasum_averages_what_is_equal_and_adds_what_is_orthogonal)
    grid.run_all(programs)
