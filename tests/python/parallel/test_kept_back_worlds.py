"""What compression keeps back, where a world of the same ranks follows another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from compressed_grids import SMALL, Blocks, few_grids

import lightcc as hvd
from lightcc import _world
from lightcc.exceptions import HorovodInternalError, HostsUpdatedInterrupt

if TYPE_CHECKING:
    from arrays import Array
    from grids import Grid

pytestmark = pytest.mark.multiproc

SHAPE = (40, 30)
STEPS = 12
WAYS: dict[str, Any] = {
    "topk": hvd.Compression.topk(0.02),
    "int4": hvd.Compression.int4,
    "onebit": hvd.Compression.onebit,
    "powersgd": hvd.Compression.powersgd(2),
}

ENDINGS = [
    ("rollback", "fails"),
    ("rollback", "goes back to the commit"),
    ("rollback", "goes on from where it is"),
    ("forward", "goes on from where it is"),
]


def gradient(step: int, rank: int, way: str) -> Array:
    numbers = np.random.default_rng([step, rank, len(way)])
    return numbers.normal(size=SHAPE).astype(np.float32)


def reduce(step: int, way: str) -> Array:
    compressor = WAYS[way]
    mine = gradient(step, hvd.rank(), way)
    return np.array(hvd.allreduce(mine, op=hvd.Sum, name=way, compression=compressor))


def end(what: str) -> None:
    """Ends the world on all ranks."""
    if what == "fails":
        raise HorovodInternalError("all ranks fail")
    raise HostsUpdatedInterrupt(skip_sync=what == "goes on from where it is")


def train(recovery: str, what: str) -> dict[str, Array]:
    """Trains; its world ends once, three steps after a commit."""
    hvd.init()
    state: Any = hvd.elastic.ObjectState(
        hvd.broadcast_object, hvd.rank, step=0, sums={way: np.zeros(SHAPE) for way in WAYS}
    )
    endings = [what] if what else []

    @hvd.elastic.run(recovery=recovery)
    def loop(state: Any) -> None:
        while state.step < STEPS:
            state.sums = {way: state.sums[way] + reduce(state.step, way) for way in WAYS}
            state.step += 1
            if state.step % 4 == 0:
                state.commit()
            if state.step == 7 and endings:
                end(endings.pop())

    loop(state)
    assert _world.current().save_compression()
    hvd.shutdown()
    return dict(state.sums)


def compare() -> list[str]:
    """Returns which trainings have other results than one whose world never ended."""
    expected = train("rollback", "")
    differing = []
    for recovery, what in ENDINGS:
        found = train(recovery, what)
        differing += [
            f"{way}: {recovery}, {what}"
            for way in WAYS
            if not np.array_equal(found[way], expected[way])
        ]
    return differing


@few_grids
def test_results_are_those_of_a_training_whose_world_never_ended(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    del blocks
    assert grid.run(compare, env=SMALL | env) == [[]] * grid.ranks
