"""Compressed all-gathers and reduce-scatters on several ranks, against their model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from arrays import FLOATS, check_same
from compressed_models import (
    COMPRESSORS,
    GRIDS,
    bytes_of_codes,
    compressed,
    each_in_a_world,
    gradients,
    quantized,
    sum_of_block,
    wide,
)
from faults import Seen, check_death, repeat_until_error
from grids import TWO

import lightcc as hvd
from lightcc import _core, _world
from lightcc._world import ONE, WAITS

if TYPE_CHECKING:
    from pathlib import Path

    from arrays import Array
    from compressed_models import Blocks

pytestmark = pytest.mark.multiproc

FLOAT32 = np.dtype("float32")
#: Elements and bits: neighbours of other widths, a short block, and exact ones.
SEGMENTS = [(700, 4), (5, 0), (129, 8), (256, 4), (1, 4)]
ROW = sum(count for count, _ in SEGMENTS)


def rounded(row: Array, segments: list[tuple[int, int]]) -> tuple[Array, Array]:
    """Returns what travels of a row of lanes, and what that leaves."""
    sent, left = row.copy(), np.zeros_like(row)
    begin = 0
    for count, bits in segments:
        part = slice(begin, begin + count)
        if bits:
            sent[part], left[part] = quantized(row[part], bits)
        begin += count
    return sent, left


class ScatterModel:
    """What all ranks keep back: of each block the rows that other blocks get."""

    def __init__(self, blocks: Blocks, segments: list[tuple[int, int]]) -> None:
        self.blocks = blocks
        self.segments = segments
        self.residuals: dict[tuple[int, int], Array] = {}

    def step(self, inputs: list[Array], rank: int) -> Array:
        """Returns the row of `rank`; keeps back what its block and others did not send of it."""
        dtype = inputs[0].dtype
        home = next(i for i, block in enumerate(self.blocks) if rank in block)
        rows = [sum_of_block([x[rank] for x in inputs], block, dtype) for block in self.blocks]
        total = rows[home]
        for i, row in enumerate(rows):
            if i != home:
                acc = row + self.residuals.get((i, rank), np.zeros_like(row))
                sent, self.residuals[i, rank] = rounded(acc, self.segments)
                total = total + sent
        return total.astype(dtype)


def asks(kind: str, segments: list[tuple[int, int]]) -> Any:
    return _core.CompressionSpec.quantized(COMPRESSORS[kind].spec().bits, segments)


def scatter(x: Array, name: str, spec: Any, factor: float = 1.0) -> Array:
    world = _world.current()
    handle = world.reducescatter(x, ONE, name, hvd.Sum, factor, 1.0, 0, WAITS, compression=spec)
    result: Array = _core.wait(handle)[0]
    return result


def rows_are_those_of_the_model(blocks: Blocks) -> None:
    size, rank = hvd.size(), hvd.rank()
    for dtype in FLOATS:
        for kind, segments in (("int4", SEGMENTS), ("int8", [(ROW, 8)])):
            own = [gradients(7, r, dtype, ROW) for r in range(size)]
            sent = [rounded(row.astype(wide(dtype)), segments)[0].astype(dtype) for row in own]
            handle = _world.current().allgather(
                own[rank], ONE, None, 0, WAITS, compression=asks(kind, segments)
            )
            check_same(_core.wait(handle), np.concatenate(sent), (dtype, kind))
            model = ScatterModel(blocks, segments)
            for step in range(3):
                inputs = [gradients(step, r, dtype, size * ROW) for r in range(size)]
                inputs = [x.reshape(size, ROW) for x in inputs]
                mine = scatter(inputs[rank], f"{dtype}{kind}", asks(kind, segments))
                check_same(mine, model.step(inputs, rank), (dtype, kind, step))


def names_and_factors_are_those_of_the_public_calls(blocks: Blocks) -> None:
    size, rank = hvd.size(), hvd.rank()
    rows = [gradients(1, r, FLOAT32, (r + 1) * 300) for r in range(size)]
    expected = np.concatenate([rounded(row, [(row.size, 8)])[0] for row in rows])
    check_same(hvd.allgather(rows[rank], compression=hvd.Compression.int8), expected)
    pair = hvd.grouped_allgather([rows[rank]] * 2, compression=hvd.Compression.int8)
    check_same(pair[1], expected)
    model = ScatterModel(blocks, [(ROW, 4)])
    inputs = [gradients(2, r, FLOAT32, size * ROW).reshape(size, ROW) for r in range(size)]
    share = model.step(inputs, rank) * np.float32(0.5)
    how: dict[str, Any] = {"op": hvd.Sum, "compression": hvd.Compression.int4}
    got = hvd.reducescatter(inputs[rank], name="half", postscale_factor=0.5, **how)
    check_same(got[0], share)
    got = hvd.grouped_reducescatter([inputs[rank]], name="group", prescale_factor=0.5, **how)[0]
    check_same(got[0], share)
    assert not compressed(lambda: hvd.allgather(np.arange(4), compression=hvd.Compression.int8))


def long_rows_travel_in_chunks(blocks: Blocks) -> None:
    size, rank, count = hvd.size(), hvd.rank(), 1_300_003
    inputs = [gradients(3, r, FLOAT32, size * count).reshape(size, count) for r in range(size)]
    segments = [(900_001, 4), (count - 900_001, 8)]
    model = ScatterModel(blocks, segments)
    before = hvd.stats()
    for step in range(2):
        check_same(
            scatter(inputs[rank], "long", asks("int4", segments)), model.step(inputs, rank), step
        )
    hvd.barrier()
    after = hvd.stats()
    spent = {
        key: after[key] - before[key] for key in ("compressed_sent_bytes", "network_bytes_sent")
    }
    codes = sum(bytes_of_codes(count, bits) for count, bits in segments)
    assert spent["compressed_sent_bytes"] == 2 * (len(blocks) - 1) * codes
    # Above what is counted: headers of messages and pieces, and the control plane.
    assert 0 <= spent["network_bytes_sent"] - spent["compressed_sent_bytes"] < 20_000


def what_is_not_finite_is_void_on_all(blocks: Blocks) -> None:
    size, rank = hvd.size(), hvd.rank()
    model = ScatterModel(blocks, SEGMENTS)
    for step in range(5):
        inputs = [gradients(step, r, FLOAT32, size * ROW).reshape(size, ROW) for r in range(size)]
        mine = inputs[rank].copy()
        # In a row of the rank itself; in one of another host; in one that travels exactly.
        if step in (1, 3) and rank == size - 1:
            mine[rank if step == 1 else 0, 702] = (np.nan, np.inf)[step // 2]
        got = scatter(mine, "x", asks("int4", SEGMENTS))
        if step in (1, 3):
            assert np.isnan(got).all()
        else:
            check_same(got, model.step(inputs, rank), step)
    row = np.ones(ROW, "f4")
    row[-1] = np.inf if rank == 1 else 1.0
    got = hvd.allgather(row, compression=hvd.Compression.int8).reshape(size, ROW)
    assert np.isnan(got[1]).all()
    assert np.isfinite(np.delete(got, 1, axis=0)).all()


def calls_that_are_not_possible_say_why(_: Blocks) -> None:
    size, c = hvd.size(), hvd.Compression
    x = np.ones((size, 6), "f4")

    def refused(text: str, **how: Any) -> None:
        with pytest.raises(ValueError, match=text):
            hvd.reducescatter(how.pop("x", x), **how)

    refused("only int8 and int4 can", compression=c.topk, name="x")
    refused("int4 compression of a reducescatter needs a name", compression=c.int4)
    refused(f"expected a multiple of {size}", x=np.ones((size + 1, 2), "f4"), compression=c.int8)
    with pytest.raises(ValueError, match="Allgather cannot be top-k compressed"):
        hvd.allgather(x, compression=c.topk)
    with pytest.raises(ValueError, match="segments of a compressed Reducescatter have 5 elements"):
        scatter(x, "x", asks("int4", [(5, 4)]))
    with pytest.raises(ValueError, match="a segment of 5 elements in 3 bits"):
        asks("int4", [(5, 3)])
    for name, mine, other, text in (
        (
            "a",
            asks("int4", [(6, 4)]),
            asks("int8", [(6, 8)]),
            "int[48] in 1 segments.* int[48] in 1",
        ),
        ("b", asks("int4", [(6, 4)]), asks("int4", [(6, 8)]), "segments of other sizes"),
        ("c", asks("int4", []), None, "no compression"),
    ):
        with pytest.raises(hvd.RankMismatchError, match=f"Mismatched compression.*{text}"):
            scatter(x, name, mine if hvd.rank() else other)
    hvd.reducescatter(x, compression=c.int8)  # Without a name nothing is kept.
    assert not _world.current().save_compression()


PROGRAMS: dict[str, list[tuple[Any, ...]]] = {
    "two_hosts": [
        (rows_are_those_of_the_model,),
        (names_and_factors_are_those_of_the_public_calls,),
        (what_is_not_finite_is_void_on_all,),
        (calls_that_are_not_possible_say_why,),
    ],
    "three_hosts": [
        (rows_are_those_of_the_model,),
        (long_rows_travel_in_chunks,),
        (what_is_not_finite_is_void_on_all,),
    ],
    "uneven_hosts": [(rows_are_those_of_the_model,), (long_rows_travel_in_chunks,)],
}


@pytest.mark.parametrize("grid", PROGRAMS)
def test_compressed_rows_are_those_of_the_algorithm(grid: str) -> None:
    at = GRIDS[grid]
    at.run(each_in_a_world, at.blocks, PROGRAMS[grid])


def rows_of_one_host_are_exact() -> None:
    hvd.init()
    x = gradients(1, 0, FLOAT32, 2 * ROW).reshape(2, ROW)
    int4 = hvd.Compression.int4
    assert not compressed(lambda: hvd.allgather(x, compression=int4))
    check_same(hvd.reducescatter(x, name="x", op=hvd.Sum, compression=int4)[0], 2 * x[hvd.rank()])


def test_ranks_of_one_host_pass_rows_on_exactly() -> None:
    TWO.run(rows_of_one_host_are_exact)


def residuals_go_on(folder: str, hosts: int) -> list[bytes]:
    """Returns rows of steps after a state was saved, and after it was loaded."""
    hvd.init()
    x = gradients(1, hvd.rank(), FLOAT32, 12 * ROW).reshape(12, ROW)
    how: dict[str, Any] = {"name": "x", "op": hvd.Sum, "compression": hvd.Compression.int4}
    if hosts == 2:
        hvd.reducescatter(x, **how)
        hvd.save_compression_state(folder)
    on = [hvd.reducescatter(x, **how).tobytes()]
    assert hvd.load_compression_state(folder) == 1
    return [*on, hvd.reducescatter(x, **how).tobytes()]


def test_a_saved_residual_of_rows_goes_on_or_begins_at_zero(tmp_path: Path) -> None:
    for on, loaded in GRIDS["two_hosts"].run(residuals_go_on, str(tmp_path), 2):
        assert on == loaded
    for fresh, loaded in GRIDS["three_hosts"].run(residuals_go_on, str(tmp_path), 3):
        assert fresh == loaded  # Rows of another grid are others.


def rows_until_error() -> Seen:
    hvd.init()
    x = np.ones((hvd.size(), 1 << 20), "f4")

    def both(_: int) -> None:
        hvd.reducescatter(x, name="x", compression=hvd.Compression.int4)
        hvd.allgather(x[0], compression=hvd.Compression.int8)

    return repeat_until_error(both)


def test_a_death_amid_rows_reaches_every_rank() -> None:
    check_death(GRIDS["two_hosts"].grid, 3, rows_until_error)
