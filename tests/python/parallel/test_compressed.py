"""Compressed all-reduces on several ranks: each compressor by itself, and against its model."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from arrays import FLOATS, check_same
from compressed_models import (
    COMPRESSORS,
    GRIDS,
    SMALL,
    CompressedGrid,
    TopkModel,
    bytes_of_codes,
    cases,
    compressed,
    each_in_a_world,
    gradients,
    model_of,
    parts_of,
    shards_of,
)
from faults import Seen, check_death, repeat_until_error
from grids import TWO, TWO_HOSTS

import lightcc as hvd
from lightcc import _world

if TYPE_CHECKING:
    from arrays import Array
    from compressed_models import Blocks

pytestmark = pytest.mark.multiproc

COUNT = 5003
FLOAT32 = np.dtype("float32")


def all_gradients(step: int, count: int = COUNT) -> list[Array]:
    return [gradients(step, rank, FLOAT32, count) for rank in range(hvd.size())]


def results_and_residuals_are_those_of_the_model(blocks: Blocks, kind: str) -> None:
    for dtype in FLOATS:
        model = model_of(kind, blocks, COUNT, dtype)
        for step in range(3):
            inputs = [gradients(step, rank, dtype, COUNT) for rank in range(hvd.size())]
            result = hvd.allreduce(
                inputs[hvd.rank()], name=dtype.name, op=hvd.Sum, compression=COMPRESSORS[kind]
            )
            check_same(result, model.step(inputs), (dtype.name, step))


#: Top-k that sends about its share has no model, and loses nothing either.
INEXACT: dict[str, Any] = {
    "top-k, about": hvd.Compression.topk(0.05),
    "top-k, fp16": hvd.Compression.topk(0.05, fp16=True),
    "top-k, 2bit": hvd.Compression.topk(0.05, values="2bit"),
    "int8": hvd.Compression.int8(),
    "int4": hvd.Compression.int4(),
}


def what_was_sent_and_what_was_kept_back_are_what_was_put_in(_: Blocks, kind: str) -> None:
    digests = []
    sent = np.zeros(COUNT)
    put_in = np.zeros(COUNT)
    for step in range(6):
        # Multiples of 1/64 below 8: sums are exact in float32, and so is what float16 leaves.
        inputs = [np.round(gradient * 64) / 64 for gradient in all_gradients(step)]
        result = hvd.allreduce(
            inputs[hvd.rank()].astype("f4"), name="x", op=hvd.Sum, compression=INEXACT[kind]
        )
        if kind.startswith("top-k"):
            assert 0 < np.count_nonzero(result) < 0.4 * COUNT
        sent += result
        put_in += np.sum(inputs, axis=0)
        digests.append(hashlib.sha256(result.tobytes()).hexdigest())
    assert not np.array_equal(sent, put_in)
    # Top-k with a ratio of 1 sends what is left: the residual is not the compressor's.
    rest = hvd.allreduce(
        np.zeros(COUNT, "f4"), name="x", op=hvd.Sum, compression=hvd.Compression.topk(1.0)
    )
    np.testing.assert_array_equal(sent + rest, put_in)
    assert hvd.allgather_object(digests) == [digests] * hvd.size()


def a_ratio_of_one_has_the_bits_of_a_dense_allreduce(_: Blocks) -> None:
    for dtype in FLOATS:
        for op in (hvd.Sum, hvd.Average):
            x = gradients(3, hvd.rank(), dtype, COUNT)
            x[::7] = -0.0
            how: dict[str, Any] = {"op": op, "prescale_factor": 0.3, "postscale_factor": 1.7}
            dense = hvd.allreduce(x, name=f"dense.{dtype.name}.{op}", **how)
            sent = hvd.allreduce(
                x, name=f"topk.{dtype.name}.{op}", compression=hvd.Compression.topk(1.0), **how
            )
            np.testing.assert_array_equal(dense, sent)


def factors_and_averages_are_those_of_a_dense_allreduce(blocks: Blocks) -> None:
    """Factors that are powers of two change no code, so they are only multiplied with."""
    ways: list[tuple[dict[str, Any], float]] = [
        ({"op": hvd.Sum, "prescale_factor": 0.5, "postscale_factor": 8.0}, 4.0),
        ({"op": hvd.Average}, 1.0 / hvd.size()),
    ]
    for i, (how, factor) in enumerate(ways):
        model = model_of("int4", blocks, COUNT, FLOAT32)
        for step in range(3):
            inputs = all_gradients(step)
            result = hvd.allreduce(
                inputs[hvd.rank()], name=f"{i}", compression=hvd.Compression.int4, **how
            )
            check_same(result, model.step(inputs) * np.float32(factor), (i, step))


def a_step_that_overflows_on_one_rank_is_void_on_all(blocks: Blocks, bad: float, kind: str) -> None:
    model = model_of(kind, blocks, COUNT, FLOAT32)
    for step in range(6):
        inputs = all_gradients(step)
        overflows = step in (0, 3)
        mine = inputs[hvd.rank()].copy()
        if overflows and hvd.rank() == hvd.size() - 1:
            mine[COUNT - 1] = bad
        result = hvd.allreduce(mine, name="x", op=hvd.Sum, compression=COMPRESSORS[kind])
        if overflows:
            assert np.isnan(result).all()
        else:
            check_same(result, model.step(inputs), step)


def bytes_over_the_network_are_those_of_the_formula(blocks: Blocks, kind: str) -> None:
    count, steps = 300_001, 5
    bits = COMPRESSORS[kind].spec().bits
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
        formula = bytes_of_codes(end - begin, bits)
    else:
        parts = [
            bytes_of_codes(last - first, bits) for first, last in parts_of(end - begin, len(blocks))
        ]
        formula = sum(parts) - parts[block] + (len(blocks) - 1) * parts[block]
    counters = ["compressed_tensors", "compressed_sent_bytes", "network_bytes_sent"]
    spent = {key: after[key] - before[key] for key in counters}
    assert spent["compressed_tensors"] == steps
    assert spent["compressed_sent_bytes"] == steps * formula
    # Above what is counted: headers of messages and pieces, and the control plane.
    assert 0 <= spent["network_bytes_sent"] - spent["compressed_sent_bytes"] < 20_000


def the_share_falls_from_a_quarter_during_warm_up(blocks: Blocks) -> None:
    ratio, warmup = 0.01, 4
    topk = hvd.Compression.topk(ratio, warmup_steps=warmup, exact=True)
    model = TopkModel(blocks, COUNT, FLOAT32, ratio)
    for step in range(6):
        inputs = all_gradients(step)
        result = hvd.allreduce(inputs[hvd.rank()], name="x", op=hvd.Sum, compression=topk)
        share = 0.25 * (ratio / 0.25) ** min(1.0, step / warmup)
        check_same(result, model.step(inputs, share), step)


def a_rank_that_joined_keeps_its_shard_going(blocks: Blocks, kind: str) -> None:
    model = model_of(kind, blocks, COUNT, FLOAT32)
    steps = 4 if hvd.rank() != 1 else 2
    for step in range(4):
        inputs = all_gradients(step)
        if step >= 2:
            inputs[1] = np.zeros(COUNT, "f4")
        expected = model.step(inputs)
        if step < steps:
            result = hvd.allreduce(
                inputs[hvd.rank()], name="x", op=hvd.Sum, compression=COMPRESSORS[kind]
            )
            check_same(result, expected, step)
    hvd.join()


#: What all ranks of a grid do, each in a world of its own.
PROGRAMS: dict[str, list[tuple[Any, ...]]] = {
    "two_hosts": [
        (results_and_residuals_are_those_of_the_model, "top-k"),
        (what_was_sent_and_what_was_kept_back_are_what_was_put_in, "top-k, fp16"),
        (what_was_sent_and_what_was_kept_back_are_what_was_put_in, "top-k, 2bit"),
        (a_ratio_of_one_has_the_bits_of_a_dense_allreduce,),
        (factors_and_averages_are_those_of_a_dense_allreduce,),
        (a_step_that_overflows_on_one_rank_is_void_on_all, np.nan, "top-k"),
        (bytes_over_the_network_are_those_of_the_formula, "int8"),
        (the_share_falls_from_a_quarter_during_warm_up,),
        (a_rank_that_joined_keeps_its_shard_going, "top-k"),
    ],
    "two_by_two": [
        (results_and_residuals_are_those_of_the_model, "int8"),
        (what_was_sent_and_what_was_kept_back_are_what_was_put_in, "int4"),
        (a_rank_that_joined_keeps_its_shard_going, "int8"),
    ],
    "three_hosts": [
        (results_and_residuals_are_those_of_the_model, "top-k"),
        (results_and_residuals_are_those_of_the_model, "int4"),
        (what_was_sent_and_what_was_kept_back_are_what_was_put_in, "top-k, about"),
        (what_was_sent_and_what_was_kept_back_are_what_was_put_in, "int8"),
        (a_ratio_of_one_has_the_bits_of_a_dense_allreduce,),
        (a_step_that_overflows_on_one_rank_is_void_on_all, -np.inf, "int4"),
        (bytes_over_the_network_are_those_of_the_formula, "int4"),
    ],
    "uneven_hosts": [(results_and_residuals_are_those_of_the_model, "int8")],
}


@pytest.mark.parametrize("grid", PROGRAMS)
def test_compressed_sums_are_those_of_the_algorithm(grid: str) -> None:
    at = GRIDS[grid]
    at.run(each_in_a_world, at.blocks, PROGRAMS[grid])


# -- What is compressed, and what is not ----------------------------------------------------------


def only_what_is_eligible_is_compressed(kind: str) -> None:
    way = COMPRESSORS[kind]
    large, small = np.ones(2048, "float32"), np.ones(1000, "float32")
    assert compressed(lambda: hvd.allreduce(large, name=f"{kind} object", compression=way))
    assert compressed(lambda: hvd.allreduce(large, name=f"{kind} class", compression=type(way)))
    assert not compressed(lambda: hvd.allreduce(large, name="dense"))
    assert not compressed(lambda: hvd.allreduce(small, name="small", compression=way))
    integers = np.arange(4096)
    assert not compressed(lambda: hvd.allreduce(integers, name="integers", compression=way))
    for op, called in ((hvd.Min, "MIN"), (hvd.Adasum, "ADASUM")):
        with pytest.raises(ValueError, match=f"with {called} cannot be {kind} compressed"):
            hvd.allreduce(large, name=called, op=op, compression=way)
    with pytest.raises(ValueError, match=f"{kind} compression needs a name"):
        hvd.allreduce(large, compression=way)
    pair = [large, large]
    assert compressed(lambda: hvd.grouped_allreduce(pair, name=f"{kind} pair", compression=way))


def check_what_is_eligible() -> None:
    hvd.init()
    for kind in ("top-k", "int8"):
        only_what_is_eligible_is_compressed(kind)


@cases("at", "two_hosts")
def test_only_large_floating_point_sums_with_a_name_are_compressed(at: CompressedGrid) -> None:
    at.run(check_what_is_eligible, LIGHT_TOPK_THRESHOLD="8192")


def the_environment_asks_for_it(blocks: Blocks, kind: str) -> None:
    hvd.init()
    x = all_gradients(0)
    result = hvd.allreduce(x[hvd.rank()], name="x", op=hvd.Sum)
    if kind == "top-k":  # About its share.
        assert 0 < np.count_nonzero(result) <= COUNT // 4
    else:
        check_same(result, model_of(kind, blocks, COUNT, FLOAT32).step(x), kind)
    assert not compressed(lambda: hvd.allreduce(x[0]))
    assert not compressed(lambda: hvd.allreduce(x[0], name="max", op=hvd.Max))


@cases(
    "at kind asks",
    ("two_hosts", "top-k", {"LIGHT_TOPK_RATIO": "0.1"}),
    ("two_hosts", "int4", {"LIGHT_QUANTIZE_ALLREDUCE": "int4"}),
)
def test_a_variable_compresses_what_has_a_name_and_quantisation_counts_before_topk(
    at: CompressedGrid, kind: str, asks: dict[str, str]
) -> None:
    asks = {"LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_TOPK_THRESHOLD": "16K", **asks}
    at.run(the_environment_asks_for_it, at.blocks, kind, **asks)


def nothing_is_compressed() -> None:
    hvd.init()
    x = np.full(4096, 0.1, "float32")
    for kind, compression in COMPRESSORS.items():
        call: dict[str, Any] = {"name": kind, "op": hvd.Sum, "compression": compression}
        assert not compressed(lambda: hvd.allreduce(x, **call))  # noqa: B023  called here
        assert np.array_equal(hvd.allreduce(x, **call), x + x)
    assert _world.current().compression_position(0) is None


def test_ranks_of_one_host_send_each_other_everything() -> None:
    TWO.run(nothing_is_compressed, env=SMALL)


def disagreement_is_an_error() -> None:
    hvd.init()
    x = np.ones(4096, "f4")
    c = hvd.Compression
    pairs: list[tuple[Any, Any, str]] = [
        (c.int8, c.int4, "int8, but another rank specified int4|int4, but .* int8"),
        (c.int8, c.topk, "int8, but another rank specified top-k|top-k .* specified int8"),
        (c.none, c.int4, "no compression, but .* int4|int4, but .* no compression"),
        (c.topk(0.1), c.topk(0.2), r"ratio 0\.[12]"),
    ]
    for i, (mine, other, said) in enumerate(pairs):
        with pytest.raises(hvd.RankMismatchError, match=rf"Mismatched compression: .*({said})"):
            hvd.allreduce(x, name=f"{i}", compression=mine if hvd.rank() == 1 else other)
    hvd.allreduce(x, name="x", compression=c.int8)


@cases("at", "two_hosts")
def test_ranks_that_compress_differently_are_told(at: CompressedGrid) -> None:
    at.run(disagreement_is_an_error)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ratio": 0.0}, "ratio must be above 0"),
        ({"ratio": 1.5}, "ratio must be above 0 and at most 1"),
        ({"momentum_correction": 1.0}, "momentum at least 0 and below 1"),
        ({"warmup_steps": -1}, "warmup_steps is -1"),
        ({"values": "2 bits"}, "allowed are .fp32., .fp16. and .2bit."),
        ({"values": "2bit", "fp16": True}, "values is .2bit. and fp16 True"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hvd.Compression.topk(**arguments)


# -- Many tensors, many steps ---------------------------------------------------------------------


def start(x: Array, name: str, compressor: Any) -> Any:
    """Returns a handle."""
    world = _world.current()
    return world.allreduce(
        x, False, False, name, hvd.Sum, 1.0, 1.0, 0, compression=compressor.spec()
    )


def many_tensors(kind: str, order: list[int], grouped: bool) -> list[str]:
    """Results by tensor, whatever the order, the bucket or the group they travel in."""
    hvd.init()
    sizes = [200_000, 1, 17, 70_001, 4096, 65_536, 131_073, 3]
    digests = {}
    for step in range(2):
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
            compression=INEXACT[kind].spec(),
        )
        dense = hvd.allreduce_async(others[0], name="dense", op=hvd.Sum)
        other = start(others[1], "other", hvd.Compression.topk(0.1))
        for i, result in zip(tensors, hvd.synchronize(handle), strict=True):
            digests[step, i] = hashlib.sha256(result.tobytes()).hexdigest()
        digests[step, 100] = hashlib.sha256(hvd.synchronize(dense).tobytes()).hexdigest()
        digests[step, 101] = hashlib.sha256(hvd.synchronize(other).tobytes()).hexdigest()
    return [digests[key] for key in sorted(digests)]


@cases("at kind", ("two_hosts", "top-k, about"), ("two_by_two", "int4"))
def test_bits_do_not_depend_on_bucket_group_lane_or_fusion(at: CompressedGrid, kind: str) -> None:
    ways: list[tuple[dict[str, str], list[int], bool]] = [
        ({"LIGHT_FUSION_STRATEGY": "none"}, [7, 6, 5, 4, 3, 2, 1, 0], False),
        (
            {"LIGHT_FUSION_THRESHOLD": "100K", "LIGHT_NUM_STREAMS": "2"},
            [3, 0, 5, 1, 7, 2, 6, 4],
            True,
        ),
    ]
    digests = [
        digest
        for env, order, grouped in ways
        for digest in at.run(many_tensors, kind, order, grouped, **env)
    ]
    assert all(digest == digests[0] for digest in digests)


def sets_have_their_own() -> None:
    sets = [hvd.ProcessSet([0, 2]), hvd.ProcessSet([1, 3])]
    hvd.init(process_sets=sets)
    mine = next(process_set for process_set in sets if process_set.included())
    ranks = [0, 2] if hvd.rank() in (0, 2) else [1, 3]
    model = model_of("int4", [[0], [1]], COUNT, FLOAT32)
    every = model_of("int4", [[0, 1], [2, 3]], COUNT, FLOAT32)
    for step in range(3):
        inputs = all_gradients(step)
        how: dict[str, Any] = {"name": "x", "op": hvd.Sum, "compression": hvd.Compression.int4}
        result = hvd.allreduce(inputs[hvd.rank()], process_set=mine, **how)
        check_same(result, model.step([inputs[rank] for rank in ranks]), step)
        check_same(hvd.allreduce(inputs[hvd.rank()], **how), every.step(inputs), step)


def test_process_sets_keep_back_what_is_theirs() -> None:
    TWO_HOSTS.run(sets_have_their_own, env=SMALL)


# -- Failures -------------------------------------------------------------------------------------


def compress_until_error(kind: str) -> Seen:
    hvd.init()
    x = gradients(0, hvd.rank(), FLOAT32, 300_000)

    def step(_: int) -> None:
        handles = [start(x, f"x{i}", COMPRESSORS[kind]) for i in range(3)]
        for handle in handles:
            hvd.synchronize(handle)

    return repeat_until_error(step)


@cases("at victim kind", ("two_hosts", 0, "top-k"), ("two_by_two", 3, "int8"))
def test_death_during_a_compressed_allreduce_reaches_every_rank(
    at: CompressedGrid, victim: int, kind: str
) -> None:
    check_death(at.grid, victim, compress_until_error, kind, **at.env)
