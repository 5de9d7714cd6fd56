"""Small all-reduces that the negotiation does by itself: the same bits as those that are run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from grids import THREE, TWO_HOSTS, UNEVEN_HOSTS, Grid, several_ranks
from small_reductions import COUNTS, DTYPES, LARGE, draw, operators

import lightcc as hvd

if TYPE_CHECKING:
    from arrays import Array

pytestmark = pytest.mark.multiproc

#: Hosts of three and three: sums of a host are rounded before they are added.
SIX = Grid(6, [0, 0, 0, 1, 1, 1])


def compare_both_ways() -> None:
    hvd.init()
    for dtype in DTYPES:
        for count in COUNTS:
            for number, arguments in enumerate(operators(dtype)):
                name = f"{dtype}.{count}.{number}"
                values = draw(dtype, count, hvd.rank())
                before = hvd.stats().inline_allreduces
                once = hvd.allreduce(values, name=name, **arguments)
                by_slot = hvd.allreduce(values, name=name, **arguments)
                unnamed = hvd.allreduce(values, **arguments)
                assert hvd.stats().inline_allreduces == before + 3, name
                # Beside others it is run by a group, as part of a bucket.
                run = hvd.grouped_allreduce([values, values[:1]], name=f"{name}.run", **arguments)
                assert hvd.stats().inline_allreduces == before + 3, name
                for result in (once, by_slot, unnamed):
                    assert result.tobytes() == run[0].tobytes(), name


@pytest.mark.parametrize("grid", [UNEVEN_HOSTS, SIX], ids=str)
def test_the_bits_are_those_of_a_group(grid: Grid) -> None:
    grid.run(compare_both_ways)


def what_is_run(limit: int) -> None:
    hvd.init()

    def count_inline(values: Array) -> int:
        before = hvd.stats().inline_allreduces
        total = hvd.allreduce(values, op=hvd.Sum)
        assert (total == hvd.size()).all()
        return int(hvd.stats().inline_allreduces - before)

    largest = limit // 4
    assert count_inline(np.ones(largest, np.float32)) == (1 if largest > 0 else 0)
    assert count_inline(np.ones(largest + 1, np.float32)) == 0
    assert count_inline(np.ones(LARGE, np.float32)) == 0
    hvd.broadcast(np.ones(1), 0)
    hvd.allgather(np.ones(1))
    assert hvd.stats().inline_allreduces == (1 if largest > 0 else 0)


@pytest.mark.parametrize(
    ("grid", "limit"),
    [
        (THREE, 0),  # On one host.
        (TWO_HOSTS, 4096),
    ],
    ids=str,
)
def test_the_limit_is_by_size(grid: Grid, limit: int) -> None:
    grid.run(what_is_run, limit)


def ranks_that_are_busy_or_gone() -> None:
    hvd.init()
    evens = hvd.add_process_set(list(range(0, hvd.size(), 2)))
    one = np.ones(2, np.float32)
    for step in range(10):
        # One rank in turn asks for two things at once, so that its input does not go with it.
        handle = None
        if step % hvd.size() == hvd.rank():
            handle = hvd.allreduce_async(one, name=f"early.{step}", op=hvd.Sum)
        assert (hvd.allreduce(one, name="x", op=hvd.Sum) == hvd.size()).all()
        if handle is None:
            handle = hvd.allreduce_async(one, name=f"early.{step}", op=hvd.Sum)
        assert (hvd.synchronize(handle) == hvd.size()).all()
        if evens.included():
            total = hvd.allreduce(one * (step + 1), name="x", op=hvd.Sum, process_set=evens)
            assert (total == (hvd.size() + 1) // 2 * (step + 1)).all()
    if hvd.rank() > 0:  # The last rank to go on alone is rank 0.
        hvd.join()
        return
    for _ in range(3):
        assert (hvd.allreduce(one, name="x", op=hvd.Sum) == 1).all()
    hvd.join()


@several_ranks
def test_ranks_that_are_busy_or_gone_have_it_run(grid: Grid) -> None:
    grid.run(ranks_that_are_busy_or_gone, env={"HOROVOD_DYNAMIC_PROCESS_SETS": "1"})
