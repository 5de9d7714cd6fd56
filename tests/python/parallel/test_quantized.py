"""Quantised all-reduces on several ranks, compared with the algorithm written out in numpy.

The model below knows shards, parts, scales and residuals; it is told nothing by the engine. So a
result that agrees in every bit over several steps also says what is kept back.
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
    gradients,
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

COUNT = 5003
BLOCK = 128
FLOAT32 = np.dtype("float32")
COMPRESSORS = {
    "int8": hvd.Compression.int8,
    "fp8": hvd.Compression.fp8,
    "int4": hvd.Compression.int4,
    "1-bit": hvd.Compression.onebit,
}
BITS = {"int8": 8, "fp8": 8, "int4": 4, "1-bit": 1}
each = pytest.mark.parametrize("kind", COMPRESSORS)


# -- The algorithm, written out -------------------------------------------------------------------


def parts_of(count: int, blocks: int) -> list[tuple[int, int]]:
    """Cuts at multiples of 128 elements, as even as that allows, the first ones longer."""
    each, longer = divmod(-(-count // BLOCK), blocks)
    ends = [min(count, (each * j + min(j, longer)) * BLOCK) for j in range(1, blocks + 1)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def mean_magnitude(block: Array) -> Any:
    """The mean by 16 sums of every 16th element, and their sum by halves."""
    padded = np.zeros(BLOCK, block.dtype)
    padded[: block.size] = np.abs(block)
    sums = np.zeros(16, block.dtype)
    for row in padded.reshape(-1, 16):
        sums += row / block.dtype.type(BLOCK)
    while sums.size > 1:
        sums = sums[: sums.size // 2] + sums[sums.size // 2 :]
    return sums[0] * (block.dtype.type(BLOCK) / block.dtype.type(block.size))


def nearest_fp8(scaled: Array) -> Array:
    """The nearest E4M3 numbers: 8 of them in each binade from 2^-6 on, as far apart below it."""
    exponents = np.maximum(np.frexp(scaled)[1] - 1, -6)
    step = np.ldexp(scaled.dtype.type(1), exponents - 3)
    nearest: Array = np.rint(scaled / step) * step
    return nearest


def quantized(acc: Array, kind: str) -> tuple[Array, Array]:
    """Returns what the codes of `acc` stand for, and what they leave."""
    levels = acc.dtype.type({"int8": 127, "fp8": 448, "int4": 7, "1-bit": 1}[kind])
    keys, shift, minimum = (np.uint32, 16, 0x80) if acc.itemsize == 4 else (np.uint64, 48, 0x10)
    sent = np.zeros_like(acc)
    for begin in range(0, acc.size, BLOCK):
        block = acc[begin : begin + BLOCK]
        exact = mean_magnitude(block) if kind == "1-bit" else np.abs(block).max() / levels
        key = int(exact.reshape(1).view(keys)[0])
        key = (key + (1 << shift) - 1) >> shift
        if key >= minimum:
            scale = np.array([key << shift], keys).view(acc.dtype)[0]
            inverse = acc.dtype.type(1) / scale
            scaled = np.clip(block * inverse, -levels, levels)
            if kind == "1-bit":
                values = np.where(block < 0, -levels, levels)
            elif kind == "fp8":
                values = nearest_fp8(scaled)
            else:
                values = np.rint(scaled) + 0  # These codes have no -0.0.
            sent[begin : begin + BLOCK] = scale * values
    return sent, acc - sent


class Model:
    """What all ranks together remember of one tensor."""

    def __init__(self, blocks: Blocks, count: int, dtype: np.dtype[Any], kind: str) -> None:
        self.blocks = blocks
        self.dtype = dtype
        self.kind = kind
        self.shards = shards_of(count, len(blocks[0]), dtype.itemsize)
        self.residuals = [np.zeros(count, wide(dtype)) for _ in blocks]

    def step(self, inputs: list[Array]) -> Array:
        """Returns the sum, and keeps back what was rounded away."""
        accs = [
            sum_of_block(inputs, block, self.dtype) + residual
            for block, residual in zip(self.blocks, self.residuals, strict=True)
        ]
        total = np.zeros_like(accs[0])
        for begin, end in self.shards:
            parts = parts_of(end - begin, len(self.blocks))
            for owner, (first, last) in enumerate(parts):
                part = slice(begin + first, begin + last)
                is_cut = len(self.blocks) > 2
                for i, acc in enumerate(accs):
                    if is_cut and i == owner:
                        continue
                    # Blocks of 128 begin with the shard, so also with each part.
                    sent, self.residuals[i][part] = quantized(acc[part], self.kind)
                    total[part] += sent
                if is_cut:
                    total[part] += accs[owner][part]
                    total[part], self.residuals[owner][part] = quantized(total[part], self.kind)
        return total.astype(self.dtype)


def check_against_the_model(blocks: Blocks, kind: str) -> list[str]:
    hvd.init()
    digests = []
    for dtype in FLOATS:
        model = Model(blocks, COUNT, dtype, kind)
        for step in range(4):
            inputs = [gradients(step, rank, dtype, COUNT) for rank in range(hvd.size())]
            result = hvd.allreduce(
                inputs[hvd.rank()], name=dtype.name, op=hvd.Sum, compression=COMPRESSORS[kind]
            )
            check_same(result, model.step(inputs), (dtype.name, step))
            digests.append(hashlib.sha256(result.tobytes()).hexdigest())
    return digests


@every_grid
@each
def test_results_and_residuals_are_those_of_the_algorithm(
    grid: Grid, env: dict[str, str], blocks: Blocks, kind: str
) -> None:
    results = grid.run(check_against_the_model, blocks, kind, env={**env, **SMALL})
    assert all(result == results[0] for result in results)


def nothing_is_lost(kind: str) -> list[str]:
    """What was sent and what is kept back together are what was put in."""
    hvd.init()
    # Codes of fp8 are as fine as 2^-25 of a block's largest element.
    dtype = "f8" if kind == "fp8" else "f4"
    digests = []
    sent = np.zeros(COUNT)
    put_in = np.zeros(COUNT)
    for step in range(12):
        # Multiples of 1/64 below 8, and scales of 8 significant bits: all sums are exact.
        inputs = [
            np.round(gradients(step, rank, FLOAT32, COUNT) * 64) / 64 for rank in range(hvd.size())
        ]
        result = hvd.allreduce(
            inputs[hvd.rank()].astype(dtype), name="x", op=hvd.Sum, compression=COMPRESSORS[kind]
        )
        sent += result
        put_in += np.sum(inputs, axis=0)
        digests.append(hashlib.sha256(result.tobytes()).hexdigest())
    assert not np.array_equal(sent, put_in)
    # Top-k with a ratio of 1 sends what is left: what is kept back is not the compressor's.
    rest = hvd.allreduce(
        np.zeros(COUNT, dtype), name="x", op=hvd.Sum, compression=hvd.Compression.topk(1.0)
    )
    np.testing.assert_array_equal(sent + rest, put_in)
    return digests


@every_grid
@each
def test_what_was_sent_and_what_was_kept_back_are_what_was_put_in(
    grid: Grid, env: dict[str, str], blocks: Blocks, kind: str
) -> None:
    del blocks
    results = grid.run(nothing_is_lost, kind, env={**env, **SMALL})
    assert all(result == results[0] for result in results)


def factors_and_averages(blocks: Blocks) -> None:
    """Factors that are powers of two change no code, so they are only multiplied with."""
    hvd.init()
    ways: list[tuple[dict[str, Any], float]] = [
        ({"op": hvd.Sum, "prescale_factor": 0.5, "postscale_factor": 8.0}, 4.0),
        ({"op": hvd.Average}, 1.0 / hvd.size()),
    ]
    for i, (how, factor) in enumerate(ways):
        model = Model(blocks, COUNT, FLOAT32, "int4")
        for step in range(3):
            inputs = [gradients(step, rank, FLOAT32, COUNT) for rank in range(hvd.size())]
            result = hvd.allreduce(
                inputs[hvd.rank()], name=f"{i}", compression=hvd.Compression.int4, **how
            )
            check_same(result, model.step(inputs) * np.float32(factor), (i, step))


@few_grids
def test_factors_and_averages_are_those_of_a_dense_allreduce(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    grid.run(factors_and_averages, blocks, env={**env, **SMALL})


def start(x: Array, name: str, compressor: Any) -> Any:
    """Returns a handle."""
    world = _world.current()
    return world.allreduce(
        x, False, False, name, hvd.Sum, 1.0, 1.0, 0, compression=compressor.spec()
    )


# -- What is compressed, and what is not ----------------------------------------------------------


def only_what_is_eligible_is_compressed() -> None:
    hvd.init()
    int8 = hvd.Compression.int8
    large, small = np.ones(2048, "float32"), np.ones(1000, "float32")
    assert compressed(lambda: hvd.allreduce(large, name="class", compression=int8))
    assert compressed(lambda: hvd.allreduce(large, name="object", compression=int8()))
    assert not compressed(lambda: hvd.allreduce(large, name="dense"))
    assert not compressed(lambda: hvd.allreduce(small, name="small", compression=int8))
    integers = np.arange(4096)
    assert not compressed(lambda: hvd.allreduce(integers, name="integers", compression=int8))
    with pytest.raises(ValueError, match="with MIN cannot be int8 compressed"):
        hvd.allreduce(large, name="min", op=hvd.Min, compression=int8)
    with pytest.raises(ValueError, match="int4 compression needs a name"):
        hvd.allreduce(large, compression=hvd.Compression.int4)
    with pytest.raises(ValueError, match="reducescatter cannot be int4 compressed"):
        hvd.reducescatter(large, name="shares", compression=hvd.Compression.int4)
    pair = [large, large]
    assert compressed(lambda: hvd.grouped_allreduce(pair, name="pair", compression=int8))


@two_hosts
def test_only_large_floating_point_sums_with_a_name_are_compressed(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    del blocks
    grid.run(only_what_is_eligible_is_compressed, env={**env, "LIGHT_TOPK_THRESHOLD": "8192"})


def the_environment_asks_for_it(blocks: Blocks, kind: str) -> None:
    hvd.init()
    x = [gradients(0, rank, FLOAT32, COUNT) for rank in range(hvd.size())]
    result = hvd.allreduce(x[hvd.rank()], name="x", op=hvd.Sum)
    check_same(result, Model(blocks, COUNT, FLOAT32, kind).step(x), kind)
    assert not compressed(lambda: hvd.allreduce(x[0]))
    assert not compressed(lambda: hvd.allreduce(x[0], name="max", op=hvd.Max))


@two_hosts
@pytest.mark.parametrize("kind", ["int8", "fp8", "int4"])
def test_a_variable_quantises_what_has_a_name_and_counts_before_topk(
    grid: Grid, env: dict[str, str], blocks: Blocks, kind: str
) -> None:
    asks = {"LIGHT_QUANTIZE_ALLREDUCE": kind, "LIGHT_TOPK_ALLREDUCE": "1"}
    grid.run(the_environment_asks_for_it, blocks, kind, env={**env, **SMALL, **asks})


def nothing_is_compressed() -> None:
    hvd.init()
    x = np.full(4096, 0.1, "float32")
    call: dict[str, Any] = {"name": "x", "op": hvd.Sum, "compression": hvd.Compression.int4}
    assert not compressed(lambda: hvd.allreduce(x, **call))
    assert np.array_equal(hvd.allreduce(x, **call), x + x)


def test_ranks_of_one_host_send_each_other_everything() -> None:
    Grid(2).run(nothing_is_compressed, env=SMALL)


def disagreement_is_an_error() -> None:
    hvd.init()
    x = np.ones(4096, "f4")
    c = hvd.Compression
    pairs: list[tuple[Any, Any, str]] = [
        (c.int8, c.int4, "int8, but another rank specified int4|int4, but .* int8"),
        (c.int8, c.fp8, "int8, but another rank specified fp8|fp8, but .* int8"),
        (c.int8, c.topk, "int8, but another rank specified top-k|top-k .* specified int8"),
        (c.none, c.int4, "no compression, but .* int4|int4, but .* no compression"),
    ]
    for i, (mine, other, said) in enumerate(pairs):
        with pytest.raises(hvd.RankMismatchError, match=rf"Mismatched compression: .*({said})"):
            hvd.allreduce(x, name=f"{i}", compression=mine if hvd.rank() == 1 else other)
    hvd.allreduce(x, name="x", compression=c.int8)


@two_hosts
def test_ranks_that_compress_differently_are_told(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    del blocks
    grid.run(disagreement_is_an_error, env={**env, **SMALL})


# -- Numbers that are none ------------------------------------------------------------------------


def an_overflow_costs_one_step(blocks: Blocks, bad: float, kind: str) -> None:
    hvd.init()
    model = Model(blocks, COUNT, FLOAT32, kind)
    for step in range(6):
        inputs = [gradients(step, rank, FLOAT32, COUNT) for rank in range(hvd.size())]
        overflows = step in (0, 3)
        mine = inputs[hvd.rank()].copy()
        if overflows and hvd.rank() == hvd.size() - 1:
            mine[COUNT - 1] = bad
        result = hvd.allreduce(mine, name="x", op=hvd.Sum, compression=COMPRESSORS[kind])
        if overflows:
            assert np.isnan(result).all()
        else:
            check_same(result, model.step(inputs), step)


@every_grid
@pytest.mark.parametrize("bad", [np.nan, pytest.param(-np.inf, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["int4", "fp8"])
def test_a_step_that_overflows_on_one_rank_is_void_on_all_and_nothing_else(
    grid: Grid, env: dict[str, str], blocks: Blocks, bad: float, kind: str
) -> None:
    grid.run(an_overflow_costs_one_step, blocks, bad, kind, env={**env, **SMALL})


def zeros_stay_zeros(kind: str) -> None:
    hvd.init()
    x = np.zeros(COUNT, "f4")
    x[: COUNT // 2] = 1e-42  # Too small for a scale: kept back.
    for _ in range(2):
        result = hvd.allreduce(x, name="x", op=hvd.Sum, compression=COMPRESSORS[kind])
        assert not result.any()


@every_grid
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_blocks_of_zeros_send_zeros(
    grid: Grid, env: dict[str, str], blocks: Blocks, kind: str
) -> None:
    del blocks
    grid.run(zeros_stay_zeros, kind, env={**env, **SMALL})


# -- Many tensors, many steps ---------------------------------------------------------------------


def many_tensors(kind: str, order: list[int], grouped: bool) -> list[str]:
    """Results by tensor, whatever the order, the bucket or the group they travel in."""
    hvd.init()
    sizes = [200_000, 1, 17, 70_001, 4096, 65_536, 131_073, 3]
    digests = {}
    for step in range(3):
        tensors = {i: gradients(step, 10 * i + hvd.rank(), FLOAT32, sizes[i]) for i in order}
        others = [tensors[0].copy(), tensors[3].copy()]  # The results are written in place.
        handle = _world.current().allreduce_each(
            list(tensors.values()),
            [f"tensor{i}" for i in tensors],
            hvd.Average,
            1.0,
            1.0,
            0,
            together=grouped,
            compression=COMPRESSORS[kind]().spec(),
        )
        dense = hvd.allreduce_async(others[0], name="dense", op=hvd.Sum)
        top = start(others[1], "top", hvd.Compression.topk(0.1))
        for i, result in zip(tensors, hvd.synchronize(handle), strict=True):
            digests[step, i] = hashlib.sha256(result.tobytes()).hexdigest()
        digests[step, 100] = hashlib.sha256(hvd.synchronize(dense).tobytes()).hexdigest()
        digests[step, 101] = hashlib.sha256(hvd.synchronize(top).tobytes()).hexdigest()
    return [digests[key] for key in sorted(digests)]


@few_grids
@pytest.mark.parametrize("kind", ["int4", "fp8"])
def test_bits_do_not_depend_on_bucket_group_lane_or_fusion(
    grid: Grid, env: dict[str, str], blocks: Blocks, kind: str
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
        for digest in grid.run(many_tensors, kind, order, grouped, env={**env, **SMALL, **extra})
    ]
    assert all(digest == digests[0] for digest in digests)


def bytes_of_codes(count: int, bits: int) -> int:
    """2 for each begun block; then 16 a bit and block, and as much at the maximum for the last."""
    whole = 16 * bits
    return 2 * -(-count // BLOCK) + count // BLOCK * whole + min(count % BLOCK, whole)


def bytes_are_those_of_the_formula(blocks: Blocks, count: int, kind: str) -> None:
    hvd.init()
    steps = 5
    hvd.allreduce(np.ones(count, "f4"), name="x", compression=COMPRESSORS[kind])
    hvd.barrier()
    before = hvd.stats()
    for step in range(steps):
        hvd.allreduce(
            gradients(step, hvd.rank(), FLOAT32, count), name="x", compression=COMPRESSORS[kind]
        )
    after = hvd.stats()
    block = next(i for i, ranks in enumerate(blocks) if hvd.rank() in ranks)
    begin, end = shards_of(count, len(blocks[0]), 4)[blocks[block].index(hvd.rank())]
    if len(blocks) == 2:
        formula = bytes_of_codes(end - begin, BITS[kind])
    else:
        parts = [
            bytes_of_codes(last - first, BITS[kind])
            for first, last in parts_of(end - begin, len(blocks))
        ]
        formula = sum(parts) - parts[block] + (len(blocks) - 1) * parts[block]
    counters = ["compressed_tensors", "compressed_sent_bytes", "network_bytes_sent"]
    spent = {key: after[key] - before[key] for key in counters}
    assert spent["compressed_tensors"] == steps
    assert spent["compressed_sent_bytes"] == steps * formula
    # Above what is counted: headers of messages and pieces, and the control plane.
    assert 0 <= spent["network_bytes_sent"] - spent["compressed_sent_bytes"] < 20_000


@every_grid
@each
def test_bytes_over_the_network_are_those_of_the_formula(
    grid: Grid, env: dict[str, str], blocks: Blocks, kind: str
) -> None:
    grid.run(bytes_are_those_of_the_formula, blocks, 300_001, kind, env=env)


def a_rank_that_joined_keeps_its_shard_going(blocks: Blocks) -> None:
    hvd.init()
    model = Model(blocks, COUNT, FLOAT32, "int8")
    steps = 4 if hvd.rank() != 1 else 2
    for step in range(4):
        inputs = [gradients(step, rank, FLOAT32, COUNT) for rank in range(hvd.size())]
        if step >= 2:
            inputs[1] = np.zeros(COUNT, "f4")
        expected = model.step(inputs)
        if step < steps:
            result = hvd.allreduce(
                inputs[hvd.rank()], name="x", op=hvd.Sum, compression=hvd.Compression.int8
            )
            check_same(result, expected, step)
    hvd.join()


@few_grids
def test_a_rank_that_joined_keeps_its_shard_going(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    grid.run(a_rank_that_joined_keeps_its_shard_going, blocks, env={**env, **SMALL})


# -- Process sets ---------------------------------------------------------------------------------


def sets_have_their_own(kind: str) -> None:
    sets = [hvd.ProcessSet([0, 2]), hvd.ProcessSet([1, 3])]
    hvd.init(process_sets=sets)
    mine = next(process_set for process_set in sets if process_set.included())
    ranks = [0, 2] if hvd.rank() in (0, 2) else [1, 3]
    model = Model([[0], [1]], COUNT, FLOAT32, kind)
    every = Model([[0, 1], [2, 3]], COUNT, FLOAT32, kind)
    for step in range(3):
        inputs = [gradients(step, rank, FLOAT32, COUNT) for rank in range(4)]
        how: dict[str, Any] = {"name": "x", "op": hvd.Sum, "compression": COMPRESSORS[kind]}
        result = hvd.allreduce(inputs[hvd.rank()], process_set=mine, **how)
        check_same(result, model.step([inputs[rank] for rank in ranks]), step)
        check_same(hvd.allreduce(inputs[hvd.rank()], **how), every.step(inputs), step)


@pytest.mark.parametrize("kind", ["int4", "fp8"])
def test_process_sets_keep_back_what_is_theirs(kind: str) -> None:
    Grid(4, [0, 0, 1, 1]).run(sets_have_their_own, kind, env=SMALL)


# -- Failures -------------------------------------------------------------------------------------


def compress_until_error() -> Seen:
    hvd.init()
    x = gradients(0, hvd.rank(), FLOAT32, 300_000)

    def step(_: int) -> None:
        handles = [start(x, f"x{i}", hvd.Compression.int8()) for i in range(3)]
        for handle in handles:
            hvd.synchronize(handle)

    return repeat_until_error(step)


@pytest.mark.parametrize("victim", [0, 3])
@few_grids
def test_death_during_a_compressed_allreduce_reaches_every_rank(
    grid: Grid, env: dict[str, str], blocks: Blocks, victim: int
) -> None:
    del blocks
    check_death(grid, victim, compress_until_error, **env)
