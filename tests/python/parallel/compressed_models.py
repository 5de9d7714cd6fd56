"""Compressed all-reduces: the grids of their tests, and what all ranks together give and keep back.

The models know shards, parts, scales, residuals and the exact choice of elements. The engine tells
them nothing. So a result that agrees in every bit over several steps also says what is left over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
import pytest
from grids import TWO_HOSTS, Grid

import lightcc as hvd

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrays import Array

T = TypeVar("T")
Blocks = list[list[int]]

BLOCK = 128
SMALL = {"LIGHT_TOPK_THRESHOLD": "0"}


def each_in_a_world(blocks: Blocks, programs: list[tuple[Any, ...]]) -> None:
    for program, *arguments in programs:
        hvd.init()
        program(blocks, *arguments)
        hvd.barrier()
        hvd.shutdown()


class CompressedGrid(NamedTuple):
    """Ranks, the variables that make them a grid, and its blocks."""

    grid: Grid
    blocks: Blocks
    env: dict[str, str] = {}  # noqa: RUF012  never changed

    def run(self, program: Callable[..., T], *args: object, **env: str) -> list[T]:
        """Runs `program(*args)` on every rank, where all sizes are compressed."""
        return self.grid.run(program, *args, env={**self.env, **SMALL, **env})


GRIDS = {
    "two_hosts": CompressedGrid(TWO_HOSTS, [[0, 1], [2, 3]]),
    "two_by_two": CompressedGrid(
        Grid(4), [[0, 1], [2, 3]], {"LIGHT_2D_ALLREDUCE": "1", "LIGHT_INTRA_SIZE": "2"}
    ),
    "three_hosts": CompressedGrid(Grid(6, [0, 0, 1, 1, 2, 2]), [[0, 1], [2, 3], [4, 5]]),
    "uneven_hosts": CompressedGrid(Grid(3, [0, 0, 1]), [[0], [1], [2]]),
}


def cases(names: str, *values: Any) -> pytest.MarkDecorator:
    """Has a test run with each of `values`, which have a grid's name first."""
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    parameters = [pytest.param(GRIDS[row[0]], *row[1:], id="-".join(map(str, row))) for row in rows]
    return pytest.mark.parametrize(names.split(), parameters)


def shards_of(count: int, members: int, width: int) -> list[tuple[int, int]]:
    """Cuts at multiples of 64 bytes, as even as that allows, the first ones longer."""
    unit = 64 // width
    each, longer = divmod(-(-count // unit), members)
    ends = [min(count, (each * j + min(j, longer)) * unit) for j in range(1, members + 1)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype("float64") if dtype == np.dtype("float64") else np.dtype("float32")


def sum_of_block(inputs: list[Array], block: list[int], dtype: np.dtype[Any]) -> Array:
    """Returns what the members of a block have together, in the dtype in which lanes are."""
    dense = inputs[block[0]].astype(wide(dtype))
    for rank in block[1:]:
        dense = dense + inputs[rank].astype(wide(dtype))
    return dense.astype(dtype).astype(wide(dtype))


def gradients(step: int, rank: int, dtype: np.dtype[Any], count: int) -> Array:
    return np.random.default_rng(1000 * step + rank).normal(size=count).astype(dtype)


def compressed(run: Callable[[], Any]) -> bool:
    """Returns whether what `run` does was compressed."""
    before = hvd.stats()["compressed_tensors"]
    run()
    return bool(hvd.stats()["compressed_tensors"] > before)


class Model(Protocol):
    """What all ranks together remember of one tensor."""

    def step(self, inputs: list[Array]) -> Array:
        """Returns the sum, and keeps back what was not sent."""


class TopkModel:
    def __init__(self, blocks: Blocks, count: int, dtype: np.dtype[Any], ratio: float) -> None:
        self.blocks = blocks
        self.dtype = dtype
        self.ratio = ratio
        self.shards = shards_of(count, len(blocks[0]), dtype.itemsize)
        self.residuals = [np.zeros(count, wide(dtype)) for _ in blocks]

    def step(self, inputs: list[Array], ratio: float | None = None) -> Array:
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


def parts_of(count: int, blocks: int) -> list[tuple[int, int]]:
    """Cuts at multiples of 128 elements, as even as that allows, the first ones longer."""
    each, longer = divmod(-(-count // BLOCK), blocks)
    ends = [min(count, (each * j + min(j, longer)) * BLOCK) for j in range(1, blocks + 1)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def bytes_of_codes(count: int, bits: int) -> int:
    """2 for each begun block; then 16 a bit and block, and as much at the maximum for the last."""
    whole = 16 * bits
    return 2 * -(-count // BLOCK) + count // BLOCK * whole + min(count % BLOCK, whole)


def quantized(acc: Array, bits: int) -> tuple[Array, Array]:
    """Returns what the codes of `acc` stand for, and what they leave."""
    levels = acc.dtype.type(2 ** (bits - 1) - 1)
    keys, shift, minimum = (np.uint32, 16, 0x80) if acc.itemsize == 4 else (np.uint64, 48, 0x10)
    sent = np.zeros_like(acc)
    for begin in range(0, acc.size, BLOCK):
        block = acc[begin : begin + BLOCK]
        exact = np.abs(block).max() / levels
        key = int(exact.reshape(1).view(keys)[0])
        key = (key + (1 << shift) - 1) >> shift
        if key >= minimum:
            scale = np.array([key << shift], keys).view(acc.dtype)[0]
            inverse = acc.dtype.type(1) / scale
            scaled = np.clip(block * inverse, -levels, levels)
            sent[begin : begin + BLOCK] = scale * (np.rint(scaled) + 0)  # No code is -0.0.
    return sent, acc - sent


class QuantizedModel:
    def __init__(self, blocks: Blocks, count: int, dtype: np.dtype[Any], bits: int) -> None:
        self.blocks = blocks
        self.dtype = dtype
        self.bits = bits
        self.shards = shards_of(count, len(blocks[0]), dtype.itemsize)
        self.residuals = [np.zeros(count, wide(dtype)) for _ in blocks]

    def step(self, inputs: list[Array]) -> Array:
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
                    sent, self.residuals[i][part] = quantized(acc[part], self.bits)
                    total[part] += sent
                if is_cut:
                    total[part] += accs[owner][part]
                    total[part], self.residuals[owner][part] = quantized(total[part], self.bits)
        return total.astype(self.dtype)


#: By which a model can be told in every bit.
COMPRESSORS: dict[str, Any] = {
    "top-k": hvd.Compression.topk(0.05, exact=True),
    "int8": hvd.Compression.int8(),
    "int4": hvd.Compression.int4(),
}


def model_of(kind: str, blocks: Blocks, count: int, dtype: np.dtype[Any]) -> Model:
    """Returns the model of one of the compressors."""
    if kind.startswith("top-k"):
        return TopkModel(blocks, count, dtype, COMPRESSORS[kind].ratio)
    return QuantizedModel(blocks, count, dtype, COMPRESSORS[kind].spec().bits)
