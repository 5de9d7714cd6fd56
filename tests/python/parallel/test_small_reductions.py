"""Small all-reduces that the negotiation does, or each rank of a host: the bits of a group."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from grids import THREE, TWO, TWO_HOSTS, Grid

import lightcc as hvd

if TYPE_CHECKING:
    from arrays import Array

pytestmark = pytest.mark.multiproc

#: Hosts of three and three: sums of a host are rounded before they are added.
SIX = Grid(6, [0, 0, 0, 1, 1, 1])
#: Hosts that form two levels, where nothing shares memory.
EIGHT_APART = Grid(8, list(range(8)))
DYNAMIC = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
LARGE = 100_000  # In bytes, more than is ever inline.


def draw(dtype: str, count: int) -> Array:
    """Returns this rank's values, whose sum depends on the order of additions."""
    rank = hvd.rank()
    values = np.random.default_rng(rank).standard_normal(count) * 10.0 ** (rank % 3)
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    return (values > 0) if dtype == "bool" else (values * 100).astype(kind)


def operators(dtype: str) -> list[dict[str, Any]]:
    bounds = [{"op": hvd.Min}, {"op": hvd.Max}, {"op": hvd.Product}]
    if dtype == "bool":
        return bounds
    scaled = {"op": hvd.Sum, "prescale_factor": 0.3, "postscale_factor": 1.7}
    return [{"op": hvd.Sum}, {"op": hvd.Average}, scaled, *bounds]


def one_shots() -> int:
    return int(hvd.stats().one_shot_allreduces)


def meet_once() -> None:
    """Repeats a small all-reduce until ranks have met for it: they must come within moments."""
    one = np.ones(2, np.float32)
    until = time.monotonic() + 60
    before = one_shots()
    while True:
        # What all ranks know alike, so that all end in the same step.
        met = hvd.allreduce(one * (one_shots() > before), name="met", op=hvd.Sum)[0] > 0
        if met or time.monotonic() > until:
            break
    assert met, "ranks never met within 60 s"


def compare_with_a_group(counter: str) -> None:
    hvd.init()
    if counter == "one_shot_allreduces":
        meet_once()
    for dtype in ("float32", "bfloat16", "int32", "bool"):
        for count in (1, 60):
            for number, arguments in enumerate(operators(dtype)):
                name = f"{dtype}.{count}.{number}"
                values = draw(dtype, count)
                before = hvd.stats()[counter]
                results = [
                    hvd.allreduce(values, name=name, **arguments),
                    hvd.allreduce(values, name=name, **arguments),  # By its slot.
                    hvd.allreduce(values, **arguments),
                    hvd.allreduce_(values.copy(), name=name, **arguments),
                ]
                done = hvd.stats()[counter]
                if counter == "inline_allreduces":
                    assert done == before + 4, name
                # Beside others it is run by a group, as part of a bucket.
                run = hvd.grouped_allreduce([values, values[:1]], name=f"{name}.run", **arguments)
                assert hvd.stats()[counter] == done, name
                for result in results:
                    assert result.tobytes() == run[0].tobytes(), name
    assert hvd.stats()[counter] > 0


# Ranks that share a core seldom meet: the C++ tests have more than two.
@pytest.mark.parametrize(
    ("grid", "counter"),
    [(SIX, "inline_allreduces"), (EIGHT_APART, "inline_allreduces"), (TWO, "one_shot_allreduces")],
    ids=str,
)
def test_the_bits_are_those_of_a_group(grid: Grid, counter: str) -> None:
    grid.run(compare_with_a_group, counter)


def what_is_inline(limit: int) -> None:
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


@pytest.mark.parametrize(("grid", "limit"), [(THREE, 0), (TWO_HOSTS, 4096)], ids=str)
def test_small_ones_are_inline_between_hosts(grid: Grid, limit: int) -> None:
    grid.run(what_is_inline, limit)


def what_is_never_combined_by_each_rank(largest: int) -> None:
    hvd.init()
    evens = hvd.add_process_set(list(range(0, hvd.size(), 2)))
    for size in (largest + 1, LARGE):
        for _ in range(20):
            total = hvd.allreduce(np.ones(size, np.uint8), name=f"{size}", op=hvd.Max)
            assert (total == 1).all()
    for _ in range(20):
        hvd.broadcast(np.ones(1), 0)
        hvd.allgather(np.ones(1))
        if evens.included():
            hvd.allreduce(np.ones(1), process_set=evens)
    hvd.grouped_allreduce([np.ones(1), np.ones(1)])
    assert one_shots() == 0


@pytest.mark.parametrize(
    ("grid", "variables", "largest"),
    [(THREE, {}, 4096), (TWO, {"LIGHT_FUSION_STRATEGY": "horovod"}, 0)],
    ids=["largest", "horovod"],
)
def test_each_rank_combines_small_ones_of_the_world_alone(
    grid: Grid, variables: dict[str, str], largest: int
) -> None:
    grid.run(what_is_never_combined_by_each_rank, largest, env=DYNAMIC | variables)


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


def test_ranks_that_are_busy_or_gone_have_it_run() -> None:
    TWO_HOSTS.run(ranks_that_are_busy_or_gone, env=DYNAMIC)


def ranks_that_ask_for_different_things() -> None:
    hvd.init()
    meet_once()
    one = np.ones(2, np.float32)
    for step in range(10):
        with pytest.raises(hvd.HorovodInternalError, match="Mismatched"):
            hvd.allreduce(np.ones(hvd.rank() + 1, np.float32), name="shape", op=hvd.Sum)
        # Ranks swap what they ask for first.
        names = ["a", "b"] if hvd.rank() % 2 == 0 else ["b", "a"]
        handles = [hvd.allreduce_async(one * step, name=name, op=hvd.Sum) for name in names]
        for handle in handles:
            assert (hvd.synchronize(handle) == step * hvd.size()).all()
        if hvd.rank() == step % hvd.size():
            time.sleep(0.001)  # More than any rank waits for another.
        assert (hvd.allreduce(one, name="late", op=hvd.Sum) == hvd.size()).all()


def test_ranks_that_differ_agree_on_what_happens() -> None:
    TWO.run(ranks_that_ask_for_different_things)
