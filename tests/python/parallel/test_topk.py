"""Top-k compressed all-reduces on several ranks, compared with the algorithm written out in numpy.

The model below knows shards, residuals and the exact choice of elements; it is told nothing by the
engine. So a result that agrees in every bit over several steps also says what is kept back.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from arrays import FLOATS, check_same
from compressed_grids import (
    SMALL,
    compressed,
    every_grid,
    few_grids,
    gradients as some_gradients,
    shards_of,
    sum_of_block,
    two_hosts,
    wide,
)
from faults import Seen, check_death, repeat_until_error
from grids import Grid

import lightcc as hvd
from lightcc import _world

if TYPE_CHECKING:
    from arrays import Array
    from compressed_grids import Blocks

pytestmark = pytest.mark.multiproc

EXACT = {**SMALL, "LIGHT_TOPK_EXACT": "1"}
COUNT = 5003


# -- The algorithm, written out -------------------------------------------------------------------


class Model:
    """What all ranks together remember of one tensor."""

    def __init__(self, blocks: Blocks, count: int, dtype: np.dtype[Any], ratio: float) -> None:
        self.blocks = blocks
        self.dtype = dtype
        self.ratio = ratio
        self.shards = shards_of(count, len(blocks[0]), dtype.itemsize)
        self.residuals = [np.zeros(count, wide(dtype)) for _ in blocks]

    def step(self, inputs: list[Array], ratio: float | None = None) -> Array:
        """Returns the sum, and keeps back what was not sent."""
        total = np.zeros(inputs[0].size, wide(self.dtype))
        got = np.zeros(inputs[0].size, bool)
        for block, residual in zip(self.blocks, self.residuals, strict=True):
            acc = sum_of_block(inputs, block, self.dtype) + residual
            sent = self.chosen(acc, self.ratio if ratio is None else ratio)
            values = acc[sent].astype(self.dtype).astype(wide(self.dtype))
            residual[:] = acc
            residual[sent] = acc[sent] - values
            first = np.zeros_like(got)
            first[sent] = ~got[sent]
            additions = np.zeros_like(total)
            additions[sent] = values
            total = np.where(first, additions, np.where(got, total + additions, total))
            got[sent] = True
        return total.astype(self.dtype)

    def chosen(self, acc: Array, ratio: float) -> Array:
        """Indices of the largest share of each shard; of equal ones the first; no zeros."""
        indices: list[int] = []
        for begin, end in self.shards:
            k = int(np.ceil(ratio * (end - begin) * (1 - 2**-40)))
            order = np.argsort(-np.abs(acc[begin:end]), kind="stable")[:k] + begin
            indices += [int(i) for i in order if acc[i] != 0.0]
        return np.array(sorted(indices), dtype=np.int64)


def gradients(step: int, rank: int, dtype: np.dtype[Any], count: int = COUNT) -> Array:
    return some_gradients(step, rank, dtype, count)


def check_against_the_model(blocks: Blocks, ratio: float, steps: int = 4) -> list[str]:
    hvd.init()
    compression = hvd.Compression.topk(ratio, exact=True)
    digests = []
    for dtype in FLOATS:
        model = Model(blocks, COUNT, dtype, ratio)
        for step in range(steps):
            inputs = [gradients(step, rank, dtype) for rank in range(hvd.size())]
            result = hvd.allreduce(
                inputs[hvd.rank()], name=dtype.name, op=hvd.Sum, compression=compression
            )
            check_same(result, model.step(inputs), (dtype.name, step))
            digests.append(hashlib.sha256(result.tobytes()).hexdigest())
    return digests


@every_grid
@pytest.mark.parametrize("ratio", [0.01, 0.2])
def test_results_and_residuals_are_those_of_the_algorithm(
    grid: Grid, env: dict[str, str], blocks: Blocks, ratio: float
) -> None:
    results = grid.run(check_against_the_model, blocks, ratio, env={**env, **SMALL})
    assert all(result == results[0] for result in results)


# -- Without exact: about as many ----------------------------------------------------------------


def nothing_is_lost(blocks: Blocks, fp16: bool) -> list[str]:
    """What was sent and what is kept back together are what was put in."""
    hvd.init()
    compression = hvd.Compression.topk(0.05, fp16=fp16)
    digests = []
    sent = np.zeros(COUNT)
    put_in = np.zeros(COUNT)
    for step in range(12):
        # Multiples of 1/64 below 8: sums are exact in float32, and so is what float16 leaves.
        inputs = [
            np.round(gradients(step, rank, np.dtype("float32")) * 64) / 64
            for rank in range(hvd.size())
        ]
        result = hvd.allreduce(
            inputs[hvd.rank()].astype("float32"), name="x", op=hvd.Sum, compression=compression
        )
        assert 0 < np.count_nonzero(result) < 0.4 * COUNT
        sent += result
        put_in += np.sum(inputs, axis=0)
        digests.append(hashlib.sha256(result.tobytes()).hexdigest())
    # A ratio of 1 sends what is left.
    rest = hvd.allreduce(
        np.zeros(COUNT, "float32"), name="x", op=hvd.Sum, compression=hvd.Compression.topk(1.0)
    )
    np.testing.assert_array_equal(sent + rest, put_in)
    assert len(blocks) > 1
    return digests


@few_grids
@pytest.mark.parametrize("fp16", [False, True])
def test_what_was_sent_and_what_was_kept_back_are_what_was_put_in(
    grid: Grid, env: dict[str, str], blocks: Blocks, fp16: bool
) -> None:
    results = grid.run(nothing_is_lost, blocks, fp16, env={**env, **SMALL})
    assert all(result == results[0] for result in results)


def a_ratio_of_one_is_dense() -> None:
    hvd.init()
    for dtype in FLOATS:
        for op in (hvd.Sum, hvd.Average):
            x = gradients(3, hvd.rank(), dtype)
            x[::7] = -0.0
            how: dict[str, Any] = {"op": op, "prescale_factor": 0.3, "postscale_factor": 1.7}
            dense = hvd.allreduce(x, name=f"dense.{dtype.name}.{op}", **how)
            sent = hvd.allreduce(
                x,
                name=f"topk.{dtype.name}.{op}",
                compression=hvd.Compression.topk(1.0),
                **how,
            )
            np.testing.assert_array_equal(dense, sent)


@every_grid
def test_a_ratio_of_one_has_the_bits_of_a_dense_allreduce(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    if len(blocks[0]) > 1:
        env = {**env, "LIGHT_2D_ALLREDUCE": "1"}
    grid.run(a_ratio_of_one_is_dense, env={**env, **SMALL})


# -- What is compressed, and what is not ----------------------------------------------------------


def only_what_is_eligible_is_compressed() -> None:
    hvd.init()
    topk = hvd.Compression.topk(0.1)
    large, small = np.ones(2048, "float32"), np.ones(1000, "float32")
    assert compressed(lambda: hvd.allreduce(large, name="large", compression=topk))
    assert compressed(lambda: hvd.allreduce(large, name="class", compression=hvd.Compression.topk))
    assert not compressed(lambda: hvd.allreduce(large, name="dense"))
    assert not compressed(lambda: hvd.allreduce(small, name="small", compression=topk))
    integers = np.arange(4096)
    assert not compressed(lambda: hvd.allreduce(integers, name="integers", compression=topk))
    with pytest.raises(ValueError, match="with MIN cannot be top-k compressed"):
        hvd.allreduce(large, name="min", op=hvd.Min, compression=topk)
    with pytest.raises(ValueError, match="with ADASUM cannot be top-k compressed"):
        hvd.allreduce(large, name="adasum", op=hvd.Adasum, compression=topk)
    with pytest.raises(ValueError, match="needs a name"):
        hvd.allreduce(large, compression=topk)
    with pytest.raises(ValueError, match="reducescatter cannot be top-k compressed"):
        hvd.reducescatter(large, name="shares", compression=topk)
    pair = [large, large]
    assert compressed(lambda: hvd.grouped_allreduce(pair, name="pair", compression=topk))


@two_hosts
def test_only_large_floating_point_sums_with_a_name_are_compressed(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    del blocks
    grid.run(only_what_is_eligible_is_compressed, env={**env, "LIGHT_TOPK_THRESHOLD": "8192"})


def the_environment_asks_for_it() -> None:
    hvd.init()
    large = np.arange(1, 4097, dtype="float32")
    assert compressed(lambda: hvd.allreduce(large, name="large"))
    assert not compressed(lambda: hvd.allreduce(large))
    assert not compressed(lambda: hvd.allreduce(large, name="max", op=hvd.Max))
    result = hvd.allreduce(large, name="next", op=hvd.Sum)
    assert 0 < np.count_nonzero(result) <= 4096 // 4


@two_hosts
def test_a_variable_compresses_what_has_a_name(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    del blocks
    asks = {"LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_TOPK_RATIO": "0.1", "LIGHT_TOPK_THRESHOLD": "16K"}
    grid.run(the_environment_asks_for_it, env={**env, **asks})


def nothing_is_compressed() -> None:
    hvd.init()
    x = np.ones(4096, "float32")
    assert not compressed(
        lambda: hvd.allreduce(x, name="x", compression=hvd.Compression.topk(0.01))
    )
    assert _world.current().compression_position(0) is None


def test_ranks_of_one_host_send_each_other_everything() -> None:
    Grid(2).run(nothing_is_compressed, env=SMALL)


def disagreement_is_an_error() -> None:
    hvd.init()
    ratio = 0.1 if hvd.rank() == 0 else 0.2
    with pytest.raises(hvd.RankMismatchError, match=r"Mismatched compression: .*ratio 0\.[12]"):
        hvd.allreduce(np.ones(4096, "f4"), name="x", compression=hvd.Compression.topk(ratio))
    hvd.allreduce(np.ones(4096, "f4"), name="x", compression=hvd.Compression.topk(0.1))


@two_hosts
def test_ranks_that_compress_differently_are_told(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    del blocks
    grid.run(disagreement_is_an_error, env={**env, **SMALL})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ratio": 0.0}, "ratio must be above 0"),
        ({"ratio": 1.5}, "ratio must be above 0 and at most 1"),
        ({"momentum_correction": 1.0}, "momentum at least 0 and below 1"),
        ({"warmup_steps": -1}, "warmup_steps is -1"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hvd.Compression.topk(**arguments)


# -- Numbers that are none ------------------------------------------------------------------------


def an_overflow_costs_one_step(blocks: Blocks, bad: float) -> None:
    hvd.init()
    compression = hvd.Compression.topk(0.05, exact=True)
    dtype = np.dtype("float32")
    model = Model(blocks, COUNT, dtype, 0.05)
    for step in range(6):
        inputs = [gradients(step, rank, dtype) for rank in range(hvd.size())]
        overflows = step in (0, 3)
        mine = inputs[hvd.rank()].copy()
        if overflows and hvd.rank() == hvd.size() - 1:
            mine[COUNT - 1] = bad
        result = hvd.allreduce(mine, name="x", op=hvd.Sum, compression=compression)
        if overflows:
            assert np.isnan(result).all()
        else:
            check_same(result, model.step(inputs), step)


@every_grid
@pytest.mark.parametrize("bad", [np.nan, pytest.param(-np.inf, marks=pytest.mark.slow)])
def test_a_step_that_overflows_on_one_rank_is_void_on_all_and_nothing_else(
    grid: Grid, env: dict[str, str], blocks: Blocks, bad: float
) -> None:
    grid.run(an_overflow_costs_one_step, blocks, bad, env={**env, **SMALL})


# -- Many tensors, many steps ---------------------------------------------------------------------


def many_tensors(order: list[int], grouped: bool) -> list[str]:
    """Results by tensor, whatever the order, the bucket or the group they travel in."""
    hvd.init()
    topk = hvd.Compression.topk(0.02)
    sizes = [200_000, 1, 17, 70_001, 4096, 65_536, 131_073, 3]
    digests = {}
    for step in range(3):
        tensors = {i: gradients(step, 10 * i + hvd.rank(), np.dtype("f4"), sizes[i]) for i in order}
        handle = _world.current().allreduce_each(
            list(tensors.values()),
            [f"tensor{i}" for i in tensors],
            hvd.Average,
            1.0,
            1.0,
            0,
            together=grouped,
            compression=topk.spec(),
        )
        for i, result in zip(tensors, hvd.synchronize(handle), strict=True):
            digests[step, i] = hashlib.sha256(result.tobytes()).hexdigest()
    return [digests[key] for key in sorted(digests)]


@few_grids
def test_bits_do_not_depend_on_bucket_group_lane_or_fusion(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    del blocks
    ways = [
        ({}, [0, 1, 2, 3, 4, 5, 6, 7], False),
        ({"LIGHT_FUSION_STRATEGY": "none"}, [7, 6, 5, 4, 3, 2, 1, 0], False),
        (
            {"LIGHT_FUSION_THRESHOLD": "100K", "LIGHT_NUM_STREAMS": "2"},
            [3, 0, 5, 1, 7, 2, 6, 4],
            True,
        ),
    ]
    digests = [
        digest
        for extra, order, grouped in ways
        for digest in grid.run(many_tensors, order, grouped, env={**env, **SMALL, **extra})
    ]
    assert all(digest == digests[0] for digest in digests)


def bytes_are_few() -> None:
    hvd.init()
    count = 1 << 20
    for step in range(5):
        x = gradients(step, hvd.rank(), np.dtype("f4"), count)
        hvd.allreduce(x, name="x", compression=hvd.Compression.topk(0.01))
    before = hvd.stats().scalars()
    steps = 5
    for step in range(steps):
        x = gradients(9 + step, hvd.rank(), np.dtype("f4"), count)
        hvd.allreduce(x, name="x", compression=hvd.Compression.topk(0.01))
    after = hvd.stats().scalars()
    counters = [key for key in after if key.startswith("compress") or key == "network_bytes_sent"]
    spent = {key: after[key] - before[key] for key in counters}
    shard = count // 2
    formula = 0.01 * shard * (4 + 2)
    assert spent["compressed_tensors"] == steps
    assert spent["compressed_dense_bytes"] == steps * shard * 4
    assert 0.6 * formula < spent["compressed_sent_bytes"] / steps < 1.3 * formula
    assert spent["compressed_sent_bytes"] < spent["network_bytes_sent"]
    assert spent["network_bytes_sent"] < 1.1 * spent["compressed_sent_bytes"] + 20_000


@two_hosts
def test_few_bytes_go_over_the_network(grid: Grid, env: dict[str, str], blocks: Blocks) -> None:
    del blocks
    grid.run(bytes_are_few, env=env)


def other_shapes_begin_anew() -> None:
    hvd.init()
    topk = hvd.Compression.topk(0.01, exact=True)
    blocks = [[0, 1], [2, 3]]
    for count in (COUNT, 2 * COUNT, COUNT):
        model = Model(blocks, count, np.dtype("f4"), 0.01)
        for step in range(2):
            inputs = [gradients(step, rank, np.dtype("f4"), count) for rank in range(4)]
            result = hvd.allreduce(inputs[hvd.rank()], name="x", op=hvd.Sum, compression=topk)
            check_same(result, model.step(inputs), (count, step))


@two_hosts
def test_a_name_with_another_shape_begins_anew(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    del blocks
    grid.run(other_shapes_begin_anew, env={**env, **SMALL})


def warm_up(blocks: Blocks) -> None:
    hvd.init()
    ratio, warmup = 0.01, 4
    topk = hvd.Compression.topk(ratio, warmup_steps=warmup, exact=True)
    model = Model(blocks, COUNT, np.dtype("f4"), ratio)
    for step in range(6):
        inputs = [gradients(step, rank, np.dtype("f4")) for rank in range(hvd.size())]
        result = hvd.allreduce(inputs[hvd.rank()], name="x", op=hvd.Sum, compression=topk)
        share = 0.25 * (ratio / 0.25) ** min(1.0, step / warmup)
        check_same(result, model.step(inputs, share), step)


@two_hosts
def test_the_share_falls_from_a_quarter_during_warm_up(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    grid.run(warm_up, blocks, env={**env, **SMALL})


def a_rank_that_joined_keeps_its_shard_going(blocks: Blocks) -> None:
    hvd.init()
    topk = hvd.Compression.topk(0.05, exact=True)
    model = Model(blocks, COUNT, np.dtype("f4"), 0.05)
    steps = 4 if hvd.rank() != 1 else 2
    for step in range(4):
        inputs = [gradients(step, rank, np.dtype("f4")) for rank in range(hvd.size())]
        if step >= 2:
            inputs[1] = np.zeros(COUNT, "f4")
        expected = model.step(inputs)
        if step < steps:
            result = hvd.allreduce(inputs[hvd.rank()], name="x", op=hvd.Sum, compression=topk)
            check_same(result, expected, step)
    hvd.join()


@few_grids
def test_a_rank_that_joined_keeps_its_shard_going(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    grid.run(a_rank_that_joined_keeps_its_shard_going, blocks, env={**env, **SMALL})


# -- Failures -------------------------------------------------------------------------------------


def compress_until_error() -> Seen:
    hvd.init()
    topk = hvd.Compression.topk(0.01)
    x = gradients(0, hvd.rank(), np.dtype("f4"), 300_000)

    def step(_: int) -> None:
        handles = [
            _world.current().allreduce(
                x, False, False, f"x{i}", hvd.Sum, 1.0, 1.0, 0, compression=topk.spec()
            )
            for i in range(3)
        ]
        for handle in handles:
            hvd.synchronize(handle)

    return repeat_until_error(step)


@pytest.mark.parametrize("victim", range(4))
@few_grids
def test_death_during_a_compressed_allreduce_reaches_every_rank(
    grid: Grid, env: dict[str, str], blocks: Blocks, victim: int
) -> None:
    del blocks
    check_death(grid, victim, compress_until_error, **env)
