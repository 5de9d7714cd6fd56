"""What compression keeps back, where a world of the same ranks follows another one."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from compressed_grids import SMALL, Blocks, few_grids

import lightcc as hvd
from lightcc import _world
from lightcc.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from arrays import Array
    from grids import Grid

pytestmark = pytest.mark.multiproc

slow = pytest.mark.slow  # More ranks, and groups of another size.

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


def roll_forward() -> tuple[list[str], bool]:
    """Returns what rank 0 logs of a failure after which training rolls forward."""
    texts: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("lightcc.elastic").addHandler(handler)
    expected = train("forward", "")
    found = train("forward", "fails")
    return texts, all(np.array_equal(found[way], expected[way]) for way in WAYS)


def roll_forward_with_a_set() -> list[str]:
    """Returns what is logged where a failed world had a process set that compressed."""
    texts: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("lightcc.elastic").addHandler(handler)
    hvd.init(process_sets="dynamic")
    state: Any = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0)
    failures = ["the world fails here"]

    @hvd.elastic.run(recovery="forward")
    def loop(state: Any) -> None:
        how = {"process_set": hvd.add_process_set([0, 1]), "compression": WAYS["topk"]}
        while state.step < 4:
            if hvd.rank() < 2:
                mine = gradient(state.step, hvd.rank(), "set")
                hvd.allreduce(mine, op=hvd.Sum, name="set", **how)
            state.step += 1
            state.commit()
            if state.step == 2 and failures:
                raise HorovodInternalError(failures.pop())

    loop(state)
    hvd.shutdown()
    return texts


def change_grids(hosts: list[list[int]], recovery: str) -> tuple[float, float]:
    """Trains in one world after another, each with other hosts, and then sends all.

    Returns what was kept back before that at most, and what has not come of what was put in.
    """
    at = 0
    topk = hvd.Compression.topk

    def move() -> None:
        nonlocal at
        os.environ["LIGHT_HOST_ID"] = str(hosts[at][int(os.environ["LIGHT_RANK"])])
        at += 1

    move()
    hvd.init()
    zeros = np.zeros(SHAPE, np.float32)
    state: Any = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, given=zeros, sent=zeros)

    @hvd.elastic.run(recovery=recovery)
    def loop(state: Any) -> None:
        for step in range(6):
            mine = np.round(10 * gradient(step, hvd.rank(), "topk"))  # Sums are exact.
            state.given = state.given + hvd.allreduce(mine, op=hvd.Sum, name="dense")
            sent = hvd.allreduce(mine, op=hvd.Sum, name="topk", compression=topk(0.02))
            state.sent = state.sent + sent
            if step == 4 or (step < 4 and recovery == "forward"):
                state.commit()
        if at < len(hosts):
            move()
            raise HorovodInternalError("all ranks fail")

    loop(state)
    rest = hvd.allreduce(zeros, op=hvd.Sum, name="topk", compression=topk(1.0))
    kept, missing = (np.abs(state.given - state.sent - it).max() for it in (0, rest))
    return float(kept), float(missing)


UNEVEN = [[0, 0, 1, 1], [0, 1, 2, 3], [0, 0, 0, 1], [0, 1, 0, 1]]
ONE_HOST = [[0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 1, 2]]  # On it nothing is compressed.
SIX_RANKS = [[0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]


@pytest.mark.parametrize(
    ("hosts", "recovery"),
    [
        (UNEVEN, "rollback"),
        (ONE_HOST, "forward"),
        pytest.param(UNEVEN, "forward", marks=slow),
        pytest.param(ONE_HOST, "rollback", marks=slow),
        pytest.param(SIX_RANKS, "rollback", marks=slow),
    ],
)
def test_what_was_sent_and_what_is_kept_back_are_what_was_put_in_on_any_grid(
    hosts: list[list[int]], recovery: str
) -> None:
    for kept, missing in spawn_ranks(change_grids, len(hosts[0]), hosts, recovery, env=SMALL):
        assert kept > 0
        assert missing == 0


def save_on_one_host(folder: str) -> tuple[float, float]:
    """Has an elastic job move to one host, saves there, and loads on two; returns as above."""
    topk = hvd.Compression.topk
    rank = os.environ["LIGHT_RANK"]
    os.environ["LIGHT_HOST_ID"] = rank
    hvd.init()
    mine = np.round(10 * gradient(0, int(rank), "topk"))
    given = hvd.allreduce(mine, op=hvd.Sum, name="dense")
    state: Any = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, sent=np.zeros(SHAPE))

    @hvd.elastic.run(recovery="forward")
    def loop(state: Any) -> None:
        if os.environ["LIGHT_HOST_ID"] == rank:
            state.sent = hvd.allreduce(mine, op=hvd.Sum, name="topk", compression=topk(0.02))
            os.environ["LIGHT_HOST_ID"] = "one"
            state.commit()
            raise HorovodInternalError("all ranks fail")
        hvd.save_compression_state(folder)

    loop(state)
    hvd.shutdown()
    os.environ["LIGHT_HOST_ID"] = rank
    hvd.init()
    hvd.load_compression_state(folder)
    zeros = np.zeros(SHAPE, np.float32)
    rest = hvd.allreduce(zeros, op=hvd.Sum, name="topk", compression=topk(1.0))
    kept, missing = (np.abs(given - state.sent - it).max() for it in (0, rest))
    return float(kept), float(missing)


def test_what_is_kept_back_on_one_host_is_saved_there(tmp_path: Path) -> None:
    for kept, missing in spawn_ranks(save_on_one_host, 2, str(tmp_path), env=SMALL):
        assert kept > 0
        assert missing == 0


def average(folder: str, dtype: str, is_first: bool) -> tuple[float, float]:
    """Averages a few times in a world of four, and then sends all in another one of two.

    Returns what was kept back, and what has not come of what was put in, as averages.
    """
    topk = hvd.Compression.topk
    how: dict[str, Any] = {"op": hvd.Average, "prescale_factor": 0.5}
    hvd.init()
    total = Path(folder) / "total.npy"
    if is_first:
        given = sent = np.zeros(SHAPE)
        for step in range(4):
            mine = np.round(8 * gradient(step, hvd.rank(), "topk")).astype(dtype)
            given = given + hvd.allreduce(mine.astype(np.float64), name="dense", **how)
            sent = sent + hvd.allreduce(mine, name="topk", compression=topk(0.02), **how)
        hvd.save_compression_state(folder)
        if hvd.rank() == 0:
            np.save(total, given - sent)
        return float(np.abs(given - sent).max()), 0.0
    left = np.load(total)
    assert hvd.load_compression_state(folder) == 1
    zeros = np.zeros(SHAPE, dtype)
    rest = hvd.allreduce(zeros, name="topk", compression=topk(1.0), **how)
    return float(np.abs(left).max()), float(np.abs(left - rest).max())


@pytest.mark.parametrize(
    ("hosts", "dtype"),
    [
        ([0, 1, 2, 3], "float32"),
        # Averages of float16 are divided before they are compressed, where a host has two ranks.
        ([0, 0, 1, 1], "float16"),
    ],
)
def test_what_is_kept_back_of_averages_counts_as_with_as_many_ranks_as_then(
    hosts: list[int], dtype: str, tmp_path: Path
) -> None:
    spawn_ranks(average, 4, str(tmp_path), dtype, True, hosts=hosts, env=SMALL)
    for kept, missing in spawn_ranks(
        average, 2, str(tmp_path), dtype, False, hosts=[0, 1], env=SMALL
    ):
        assert kept > 1
        assert missing == 0


@few_grids
def test_results_are_those_of_a_training_whose_world_never_ended(
    grid: Grid, env: dict[str, str], blocks: Blocks
) -> None:
    del blocks
    assert grid.run(compare, env=SMALL | env) == [[]] * grid.ranks


def test_nothing_is_lost_where_training_rolls_forward_to_three_steps_before() -> None:
    assert spawn_ranks(roll_forward, 2, env=SMALL, hosts=[0, 1]) == [([], True)] * 2


def test_what_process_sets_lose_where_training_rolls_forward_is_said() -> None:
    said = "what compression kept back in process sets is lost: they have ended with their world"
    assert spawn_ranks(roll_forward_with_a_set, 3, env=SMALL, hosts=[0, 1, 1]) == [[said], [], []]
