"""Low-rank all-reduces (PowerSGD) on several ranks, compared with the algorithm in numpy.

The model takes what ranks keep back, and the basis, from what they save before a step. From that
and the gradients it says what the step gives and what is kept back after it, in float64.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from arrays import FLOATS
from compressed_grids import (
    SMALL,
    compressed,
    every_grid,
    few_grids,
    gradients,
    shards_of,
    two_hosts,
)
from faults import Seen, check_death, repeat_until_error
from grids import Grid

import lightcc as hvd
from lightcc import _world

if TYPE_CHECKING:
    from arrays import Array
    from compressed_grids import Blocks

pytestmark = pytest.mark.multiproc

FLOAT32 = np.dtype("float32")
ROWS, COLS = 37, 530
SHAPE = (ROWS, COLS)
#: Of one rounding, times what a few hundred of them add up to.
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-13}


def powersgd(rank: int = 3, warmup_steps: int = 0, **how: Any) -> Any:
    return hvd.Compression.powersgd(rank, warmup_steps, **how)


def matrices(step: int, dtype: np.dtype[Any] = FLOAT32, shape: Any = SHAPE) -> list[Array]:
    """Returns the gradient of each rank."""
    count = int(np.prod(shape))
    return [gradients(step, rank, dtype, count).reshape(shape) for rank in range(hvd.size())]


def digest(array: Array) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


# -- The algorithm, written out -------------------------------------------------------------------


class State(NamedTuple):
    """What one rank remembers of a tensor."""

    kept: Array  # Rows by columns.
    basis: Array  # Columns by vectors.


def state_of(name: str) -> State:
    """Reads what is saved; docs/wire-format.md has the table."""
    saved = next(
        state
        for (_, operation), state in _world.current().save_compression().items()
        if operation == f"allreduce.{name}" or operation == name
    )
    state = saved[saved.index(b"lcclowr") :]
    rank, rows, cols, _ = struct.unpack_from("<IQQQ", state, 9)
    lanes = np.frombuffer(state[37:-32], "f8" if state[8] == 8 else "f4").astype("f8")
    vectors = min(rank, rows, cols)
    kept, basis = lanes[: rows * cols], lanes[rows * cols :]
    return State(kept.reshape(rows, cols), basis.reshape(vectors, cols).T)


def kept_by_all(name: str) -> Array:
    """Returns what each rank keeps back, one after another. Collective."""
    own = state_of(name).kept
    return hvd.allgather(own[None], name=f"kept of {name}")


def columns_of(sums: Array, basis: Array) -> Array:
    """Returns the columns onto which the sum of all ranks is projected."""
    left, _ = np.linalg.qr(sums @ basis)
    return left


def check_against_the_model(shape: tuple[int, int], rank: int) -> list[str]:
    hvd.init()
    digests = []
    for dtype in FLOATS:
        name = dtype.name
        tolerance = TOLERANCE[name]
        for step in range(4):
            inputs = matrices(step, dtype, shape)
            before = None if step == 0 else kept_by_all(name)
            basis = None if step == 0 else state_of(name).basis
            result = hvd.allreduce(
                inputs[hvd.rank()],
                name=name,
                op=hvd.Average,
                prescale_factor=0.5,
                compression=powersgd(rank, min_compression_rate=0.1),
            )
            digests.append(digest(result))
            assert result.dtype == dtype
            assert result.shape == shape
            if before is None or basis is None:
                continue
            had = [0.5 * x.astype("f8") + kept for x, kept in zip(inputs, before, strict=True)]
            total = np.sum(had, axis=0)
            left = columns_of(total, basis)
            size = np.abs(total).max()
            expected = left @ (left.T @ total) / hvd.size()
            np.testing.assert_allclose(result.astype("f8"), expected, atol=tolerance * size)
            kept = had[hvd.rank()] - left @ (left.T @ had[hvd.rank()])
            lanes = 1e-13 if dtype == np.dtype("float64") else 1e-5
            np.testing.assert_allclose(state_of(name).kept, kept, atol=lanes * size)
            assert np.linalg.matrix_rank(expected) <= rank
    return digests


@every_grid
def test_results_and_what_is_kept_back_are_those_of_the_algorithm(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    del blocks
    results = grid.run(check_against_the_model, SHAPE, 3, env={**env, **SMALL})
    assert all(result == results[0] for result in results)


@two_hosts
@pytest.mark.parametrize(("shape", "rank"), [((600, 9), 4), ((8, 513), 1), ((129, 140), 32)])
def test_other_shapes_and_ranks(
    grid: Grid, env: dict[str, str], blocks: Blocks, shape: tuple[int, int], rank: int
) -> None:
    del blocks
    results = grid.run(check_against_the_model, shape, rank, env={**env, **SMALL})
    assert all(result == results[0] for result in results)


def nothing_is_lost() -> list[str]:
    """What was sent and what is kept back together are what was put in."""
    hvd.init()
    digests = []
    sent = np.zeros(SHAPE)
    put_in = np.zeros(SHAPE)
    for step in range(12):
        inputs = matrices(step)
        result = hvd.allreduce(inputs[hvd.rank()], name="x", op=hvd.Sum, compression=powersgd())
        sent += result
        put_in += np.sum(inputs, axis=0, dtype="f8")
        digests.append(digest(result))
    assert np.abs(sent - put_in).max() > 1.0
    np.testing.assert_allclose(sent + kept_by_all("x").sum(axis=0), put_in, atol=1e-3)
    return digests


@every_grid
def test_what_was_sent_and_what_was_kept_back_are_what_was_put_in(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    del blocks
    results = grid.run(nothing_is_lost, env={**env, **SMALL})
    assert all(result == results[0] for result in results)


def whole_matrices() -> None:
    """With as many vectors as a matrix has, the result is the dense one but for its rounding."""
    hvd.init()
    for i, shape in enumerate([(1, 9), (9, 1), (5, 40), (40, 5), (3, 2, 4)]):
        inputs = matrices(i, FLOAT32, shape)
        result = hvd.allreduce(
            inputs[hvd.rank()],
            name=f"{i}",
            op=hvd.Sum,
            compression=powersgd(64, min_compression_rate=1e-6),
        )
        np.testing.assert_allclose(result, np.sum(inputs, axis=0), atol=1e-4)
    assert hvd.stats()["compressed_tensors"] == 5
    zeros = np.zeros(SHAPE, "f4")
    assert not hvd.allreduce(zeros, name="zeros", compression=powersgd()).any()


@few_grids
def test_a_rank_as_large_as_the_matrix_loses_nothing(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    del blocks
    grid.run(whole_matrices, env={**env, **SMALL})


# -- Warm-up --------------------------------------------------------------------------------------


def the_first_steps_are_dense() -> None:
    hvd.init()
    compression = powersgd(2, warmup_steps=2)
    for step in range(4):
        mine = matrices(step)[hvd.rank()]
        dense = hvd.allreduce(mine, name=f"dense{step}", op=hvd.Average)
        result = hvd.allreduce(mine, name="x", op=hvd.Average, compression=compression)
        assert np.array_equal(result, dense) == (step < 2), step


@few_grids
def test_the_first_steps_are_dense(grid: Grid, env: dict[str, str], blocks: Blocks) -> None:
    del blocks
    grid.run(the_first_steps_are_dense, env={**env, **SMALL})


# -- What is compressed, and what is not ----------------------------------------------------------


def only_what_gains_is_compressed() -> None:
    hvd.init()
    large = np.ones((64, 64), "f4")

    def is_compressed(x: Array, name: str, **how: Any) -> bool:
        return compressed(lambda: hvd.allreduce(x, name=name, compression=powersgd(**how)))

    assert compressed(
        lambda: hvd.allreduce(large, name="class", compression=hvd.Compression.powersgd)
    )
    assert is_compressed(large, "object")
    assert not is_compressed(np.ones(4096, "f4"), "vector")
    assert not is_compressed(np.ones((30, 30), "f4"), "small")
    assert not is_compressed(np.arange(4096).reshape(64, 64), "integers")
    # 64 x 64 is 32 times (64 + 64) elements.
    assert is_compressed(large, "rank 15", rank=15)
    assert not is_compressed(large, "rank 16", rank=16)
    assert not is_compressed(large.astype("f2"), "float16 of rank 8", rank=8)
    assert is_compressed(large, "rate", rank=16, min_compression_rate=1.9)
    assert is_compressed(np.ones((64, 8, 3, 3), "f4"), "torch's kernel", rank=16)
    assert is_compressed(np.ones((3, 3, 8, 64), "f4"), "TensorFlow's kernel", rank=16)
    pair = [large, large]
    assert compressed(lambda: hvd.grouped_allreduce(pair, name="pair", compression=powersgd()))
    with pytest.raises(ValueError, match="with MIN cannot be PowerSGD compressed"):
        hvd.allreduce(large, name="min", op=hvd.Min, compression=powersgd())
    with pytest.raises(ValueError, match="PowerSGD compression needs a name"):
        hvd.allreduce(large, compression=powersgd())
    with pytest.raises(ValueError, match="reducescatter cannot be PowerSGD compressed"):
        hvd.reducescatter(large, name="shares", compression=powersgd())


@two_hosts
def test_only_large_floating_point_matrices_that_gain_are_compressed(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    del blocks
    grid.run(only_what_gains_is_compressed, env={**env, "LIGHT_TOPK_THRESHOLD": "4096"})


def nothing_is_compressed() -> None:
    hvd.init()
    x = np.full(SHAPE, 0.1, "f4")
    call: dict[str, Any] = {"name": "x", "op": hvd.Sum, "compression": powersgd()}
    assert not compressed(lambda: hvd.allreduce(x, **call))
    assert np.array_equal(hvd.allreduce(x, **call), x + x)


def test_ranks_of_one_host_send_each_other_everything() -> None:
    Grid(2).run(nothing_is_compressed, env=SMALL)


def disagreement_is_an_error() -> None:
    hvd.init()
    x = np.ones(SHAPE, "f4")
    pairs: list[tuple[Any, Any, str]] = [
        (powersgd(2), powersgd(3), "PowerSGD of rank 2, .* rank 3|PowerSGD of rank 3, .* rank 2"),
        (powersgd(1), powersgd(1, 5), "0 steps of warm-up, .* 5 steps|5 steps .* 0 steps"),
        (powersgd(1), hvd.Compression.int4, "rank 1, .* int4|int4, .* rank 1"),
        (powersgd(1), hvd.Compression.none, "rank 1, .* no compression|no compression, .* rank 1"),
    ]
    for i, (mine, other, said) in enumerate(pairs):
        with pytest.raises(hvd.RankMismatchError, match=rf"Mismatched compression: .*({said})"):
            hvd.allreduce(x, name=f"{i}", compression=mine if hvd.rank() == 1 else other)
    hvd.allreduce(x, name="x", compression=powersgd())


@two_hosts
def test_ranks_that_compress_differently_are_told(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    del blocks
    grid.run(disagreement_is_an_error, env={**env, **SMALL})


# -- Numbers that are none ------------------------------------------------------------------------


def an_overflow_costs_one_step(bad: float) -> list[str]:
    """Returns the results of the other steps, which are those without it."""
    hvd.init()
    digests: dict[str, list[str]] = {"x": [], "y": []}
    for step in range(6):
        mine = matrices(step)[hvd.rank()]
        if step in (0, 3):
            mine = mine.copy()
            if hvd.rank() == hvd.size() - 1:
                mine[ROWS - 1, COLS - 1] = bad
            result = hvd.allreduce(mine, name="x", op=hvd.Sum, compression=powersgd())
            assert np.isnan(result).all()
            continue
        for name, of_name in digests.items():
            result = hvd.allreduce(mine, name=name, op=hvd.Sum, compression=powersgd())
            assert np.isfinite(result).all()
            of_name.append(digest(result))
    assert digests["x"] == digests["y"]
    return digests["x"]


@every_grid
@pytest.mark.parametrize("bad", [np.nan, pytest.param(-np.inf, marks=pytest.mark.slow), 2.0**101])
def test_a_step_that_overflows_on_one_rank_is_void_on_all_and_nothing_else(
    grid: Grid, env: dict[str, str], blocks: Blocks, bad: float
) -> None:
    del blocks
    results = grid.run(an_overflow_costs_one_step, bad, env={**env, **SMALL})
    assert all(result == results[0] for result in results)


# -- Many tensors, many steps ---------------------------------------------------------------------

SHAPES = [(400, 300), (1, 17), (70, 100), (9, 8, 7), (64, 64), (3, 3), (256, 512)]


def many_tensors(order: list[int], grouped: bool) -> list[str]:
    """Results by tensor, whatever the order, the bucket or the group they travel in."""
    hvd.init()
    digests = {}
    for step in range(4):
        tensors = {i: matrices(10 * step + i, FLOAT32, SHAPES[i])[hvd.rank()] for i in order}
        others = [tensors[0].copy(), tensors[2].copy()]  # The results are written in place.
        world = _world.current()
        handle = world.allreduce_each(
            list(tensors.values()),
            [f"tensor{i}" for i in tensors],
            hvd.Average,
            1.0,
            1.0,
            0,
            together=grouped,
            compression=powersgd(2, warmup_steps=1).spec(),
        )
        dense = hvd.allreduce_async(others[0], name="dense", op=hvd.Sum)
        top = world.allreduce(
            *(others[1], False, False, "top", hvd.Sum, 1.0, 1.0, 0),
            compression=hvd.Compression.topk(0.1).spec(),
        )
        for i, result in zip(tensors, hvd.synchronize(handle), strict=True):
            digests[step, i] = digest(result)
        digests[step, 100] = digest(hvd.synchronize(dense))
        digests[step, 101] = digest(hvd.synchronize(top))
    return [digests[key] for key in sorted(digests)]


@few_grids
def test_bits_do_not_depend_on_bucket_group_lane_or_fusion(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    del blocks
    ways = [
        ({}, [0, 1, 2, 3, 4, 5, 6], False),
        ({"LIGHT_FUSION_STRATEGY": "none"}, [6, 5, 4, 3, 2, 1, 0], False),
        (
            {"LIGHT_FUSION_THRESHOLD": "100K", "LIGHT_NUM_STREAMS": "2"},
            [3, 0, 5, 1, 2, 6, 4],
            True,
        ),
    ]
    digests = [
        result
        for extra, order, grouped in ways
        for result in grid.run(many_tensors, order, grouped, env={**env, **SMALL, **extra})
    ]
    assert all(result == digests[0] for result in digests)


def bytes_are_those_of_the_formula(blocks: Blocks, shapes: list[tuple[int, int]]) -> None:
    """A rank sends of r (n + k) elements what a dense all-reduce of as many sends."""
    hvd.init()
    steps, rank = 5, 4
    compression = powersgd(rank)

    def run(step: int) -> None:
        tensors = [matrices(step, FLOAT32, shape)[hvd.rank()] for shape in shapes]
        hvd.grouped_allreduce(tensors, name="x", compression=compression)

    run(0)
    hvd.barrier()
    before = hvd.stats()
    for step in range(steps):
        run(step)
    after = hvd.stats()
    block = next(ranks for ranks in blocks if hvd.rank() in ranks)
    formula = 0
    for rows, cols in shapes:
        for count in (rank * rows, rank * cols):
            begin, end = shards_of(count, len(block), 4)[block.index(hvd.rank())]
            formula += 2 * (len(blocks) - 1) * (end - begin) * 4 // len(blocks)
    counters = ["compressed_tensors", "compressed_sent_bytes", "network_bytes_sent"]
    spent = {key: after[key] - before[key] for key in counters}
    assert spent["compressed_tensors"] == steps * len(shapes)
    assert spent["compressed_sent_bytes"] == steps * formula
    # Headers of messages, the control plane, and how parts are cut among members.
    assert abs(spent["network_bytes_sent"] - steps * formula) < 20_000
    dense = sum(4 * rows * cols for rows, cols in shapes) * steps // len(block)
    assert spent["network_bytes_sent"] < dense / 20


@few_grids
@pytest.mark.parametrize("shapes", [[(1501, 2003)], [(1000, 1001), (2000, 500)]])
def test_bytes_over_the_network_are_those_of_the_formula(
    grid: Grid, env: dict[str, str], blocks: Blocks, shapes: list[tuple[int, int]]
) -> None:
    grid.run(bytes_are_those_of_the_formula, blocks, shapes, env=env)


def a_bucket_costs_two_all_reduces() -> int:
    """Returns the messages that a step of many matrices costs."""
    hvd.init()
    tensors = [matrices(i, FLOAT32, (40, 50))[hvd.rank()] for i in range(40)]
    call: dict[str, Any] = {"name": "x", "compression": powersgd(2)}
    hvd.grouped_allreduce(tensors, **call)
    hvd.barrier()
    before = hvd.stats()["network_bytes_sent"]
    hvd.grouped_allreduce(tensors, **call)
    return int(hvd.stats()["network_bytes_sent"] - before)


def test_matrices_of_a_bucket_share_two_all_reduces() -> None:
    """Each all-reduce has headers, which 80 of them would show."""
    grid = Grid(2, [0, 1])
    factors = 40 * 2 * (40 + 50) * 4
    together = grid.run(a_bucket_costs_two_all_reduces, env=SMALL)[0]
    apart = grid.run(
        a_bucket_costs_two_all_reduces, env={**SMALL, "LIGHT_FUSION_STRATEGY": "none"}
    )[0]
    assert factors <= together < apart


def energies_are_told() -> None:
    hvd.init()
    for step in range(5):
        x = matrices(step)[hvd.rank()]
        hvd.allreduce(x, name="x", op=hvd.Sum, compression=powersgd(warmup_steps=1))
    (usage,) = hvd.stats().compression
    assert usage.steps == 5
    assert usage.kept_ratio > 0.5


@two_hosts
def test_statistics_tell_what_is_kept_back(grid: Grid, env: dict[str, str], blocks: Blocks) -> None:
    del blocks
    grid.run(energies_are_told, env={**env, **SMALL})


# -- Joining, process sets, failures --------------------------------------------------------------


def a_rank_that_joined_sends_what_it_kept_back() -> list[str]:
    hvd.init()
    digests = []
    steps = 4 if hvd.rank() != 1 else 2
    for step in range(4):
        mine = matrices(step)[hvd.rank()]
        # The same with zeros for who has joined.
        zeros = np.zeros_like(mine) if hvd.rank() == 1 and step >= 2 else mine
        expected = hvd.allreduce(zeros, name="y", op=hvd.Sum, compression=powersgd())
        digests.append(digest(expected))
    joined = []
    for step in range(steps):
        mine = matrices(step)[hvd.rank()]
        result = hvd.allreduce(mine, name="x", op=hvd.Sum, compression=powersgd())
        joined.append(digest(result))
    hvd.join()
    assert joined == digests[:steps]
    return digests


@few_grids
def test_a_rank_that_joined_sends_what_it_kept_back(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    del blocks
    grid.run(a_rank_that_joined_sends_what_it_kept_back, env={**env, **SMALL})


def sets_have_their_own() -> tuple[list[str], list[str]]:
    sets = [hvd.ProcessSet([0, 2]), hvd.ProcessSet([1, 3])]
    hvd.init(process_sets=sets)
    mine = next(process_set for process_set in sets if process_set.included())
    of_set, of_all = [], []
    put_in, sent = np.zeros(SHAPE), np.zeros(SHAPE)
    for step in range(3):
        inputs = matrices(step)
        how: dict[str, Any] = {"name": "x", "op": hvd.Sum, "compression": powersgd()}
        result = hvd.allreduce(inputs[hvd.rank()], process_set=mine, **how)
        of_set.append(digest(result))
        sent += result
        put_in += inputs[hvd.rank()] + inputs[(hvd.rank() + 2) % 4]
        of_all.append(digest(hvd.allreduce(inputs[hvd.rank()], **how)))
    assert np.abs(sent - put_in).max() > 1.0
    return of_set, of_all


def test_process_sets_keep_back_what_is_theirs() -> None:
    results = Grid(4, [0, 0, 1, 1]).run(sets_have_their_own, env=SMALL)
    assert results[0][0] == results[2][0] != results[1][0] == results[3][0]
    assert all(result[1] == results[0][1] for result in results)


def other_compressors_begin_anew() -> None:
    hvd.init()
    mine = matrices(0)[hvd.rank()]
    for compression in (powersgd(), hvd.Compression.int4, powersgd(4), powersgd(5)):
        result = hvd.allreduce(mine, name="x", op=hvd.Sum, compression=compression)
        assert np.isfinite(result).all()


@two_hosts
def test_a_name_may_change_its_compressor(grid: Grid, env: dict[str, str], blocks: Blocks) -> None:
    del blocks
    grid.run(other_compressors_begin_anew, env={**env, **SMALL})


def compress_until_error() -> Seen:
    hvd.init()
    x = gradients(0, hvd.rank(), FLOAT32, 300_000).reshape(500, 600)

    def step(_: int) -> None:
        hvd.grouped_allreduce([x, x, x], name="x", compression=powersgd())

    return repeat_until_error(step)


@pytest.mark.parametrize("victim", [0, 3])
@few_grids
def test_death_during_a_compressed_allreduce_reaches_every_rank(
    grid: Grid, env: dict[str, str], blocks: Blocks, victim: int
) -> None:
    del blocks
    check_death(grid, victim, compress_until_error, **env)
