"""Small all-reduces that each rank of a host combines by itself: the bits of a group."""

from __future__ import annotations

import time

import numpy as np
import pytest
from grids import FOUR, THREE, TWO, Grid
from small_reductions import COUNTS, DTYPES, LARGE, draw, operators

import lightcc as hvd

pytestmark = pytest.mark.multiproc


def one_shots() -> int:
    return int(hvd.stats().one_shot_allreduces)


def meet_once(name: str) -> None:
    """Repeats a small all-reduce until ranks have met for it: they must come within moments."""
    one = np.ones(2, np.float32)
    until = time.monotonic() + 60
    before = one_shots()
    while True:
        # What all ranks know alike, so that all end in the same step.
        met = hvd.allreduce(one * (one_shots() > before), name=name, op=hvd.Sum)[0] > 0
        if met or time.monotonic() > until:
            break
    assert met, "ranks never met within 60 s"


def compare_both_ways() -> None:
    hvd.init()
    meet_once("first")
    for dtype in DTYPES:
        for count in COUNTS:
            for number, arguments in enumerate(operators(dtype)):
                name = f"{dtype}.{count}.{number}"
                values = draw(dtype, count, hvd.rank())
                # Beside others it is run by a group, as part of a bucket.
                run = hvd.grouped_allreduce([values, values[:1]], name=f"{name}.run", **arguments)
                named = hvd.allreduce(values, name=name, **arguments)
                unnamed = hvd.allreduce(values, **arguments)
                in_place = hvd.allreduce_(values.copy(), name=name, **arguments)
                for result in (named, unnamed, in_place):
                    assert result.tobytes() == run[0].tobytes(), name
    assert one_shots() > 0
    assert hvd.stats().control_frames_sent > 0


def test_the_bits_are_those_of_a_group() -> None:
    FOUR.run(compare_both_ways)


def what_is_never_combined_so(largest: int) -> None:
    hvd.init()
    evens = hvd.add_process_set(list(range(0, hvd.size(), 2)))
    for size in (largest + 1, LARGE):
        for _ in range(50):
            total = hvd.allreduce(np.ones(size, np.uint8), name=f"{size}", op=hvd.Max)
            assert (total == 1).all()
    for _ in range(50):
        hvd.broadcast(np.ones(1), 0)
        hvd.allgather(np.ones(1))
        if evens.included():
            hvd.allreduce(np.ones(1), process_set=evens)
    hvd.grouped_allreduce([np.ones(1), np.ones(1)])
    assert one_shots() == 0


@pytest.mark.parametrize(
    ("grid", "variables", "largest"),
    [
        (THREE, {}, 4096),
        (TWO, {"LIGHT_FUSION_STRATEGY": "horovod"}, 0),
    ],
    ids=str,
)
def test_only_small_ones_within_a_host_are(
    grid: Grid, variables: dict[str, str], largest: int
) -> None:
    env = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1", **variables}
    grid.run(what_is_never_combined_so, largest, env=env)


def ranks_that_ask_for_different_things() -> None:
    hvd.init()
    meet_once("first")
    one = np.ones(2, np.float32)
    for step in range(30):
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
    meet_once("again")


def test_ranks_that_differ_agree_on_what_happens() -> None:
    TWO.run(ranks_that_ask_for_different_things)
