"""The grids on which compressed all-reduces are tested, and what all models of them share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from grids import Grid

import lightcc as hvd

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrays import Array

SMALL = {"LIGHT_TOPK_THRESHOLD": "0"}
TWO_BY_TWO = {"LIGHT_2D_ALLREDUCE": "1", "LIGHT_INTRA_SIZE": "2"}

#: Each with the variables that make it a grid, and its blocks. Quick tests leave two out: the first
#: two have their shape or their way.
GRIDS = [
    pytest.param(Grid(4, [0, 0, 1, 1]), {}, [[0, 1], [2, 3]], id="two_hosts"),
    pytest.param(Grid(4), TWO_BY_TWO, [[0, 1], [2, 3]], id="one_host_as_two_by_two"),
    pytest.param(
        *(Grid(4, [0, 1, 0, 1]), {}, [[0, 2], [1, 3]]),
        id="interleaved_hosts",
        marks=pytest.mark.slow,
    ),
    pytest.param(Grid(6, [0, 0, 1, 1, 2, 2]), {}, [[0, 1], [2, 3], [4, 5]], id="three_hosts"),
    pytest.param(Grid(3, [0, 1, 2]), {}, [[0], [1], [2]], id="hosts_of_one"),
    pytest.param(Grid(3, [0, 0, 1]), {}, [[0], [1], [2]], id="uneven_hosts"),
    pytest.param(
        *(Grid(4, [0, 0, 1, 1]), {"LIGHT_2D_ALLREDUCE": "0"}, [[0, 1], [2, 3]]),
        id="dense_runs_flat",
        marks=pytest.mark.slow,
    ),
]
every_grid = pytest.mark.parametrize(("grid", "env", "blocks"), GRIDS)
two_hosts = pytest.mark.parametrize(("grid", "env", "blocks"), GRIDS[:1])
few_grids = pytest.mark.parametrize(("grid", "env", "blocks"), GRIDS[:2])

Blocks = list[list[int]]


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
