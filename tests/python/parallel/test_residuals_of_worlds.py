"""Residuals of compression, where a world of the same ranks follows another one."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from compressed_models import SMALL, CompressedGrid, cases

import lightcc as hvd
from lightcc.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from arrays import Array

pytestmark = pytest.mark.multiproc

SHAPE = (40, 30)
STEPS = 12
WAYS: dict[str, Any] = {"topk": hvd.Compression.topk(0.02), "int4": hvd.Compression.int4}


def gradient(step: int, rank: int, way: str) -> Array:
    numbers = np.random.default_rng([step, rank, len(way)])
    return numbers.normal(size=SHAPE).astype(np.float32)


def reduce(step: int, way: str) -> Array:
    mine = gradient(step, hvd.rank(), way)
    return np.array(hvd.allreduce(mine, op=hvd.Sum, name=way, compression=WAYS[way]))


def listen() -> list[str]:
    """Returns a list that gets what is said of residuals."""
    texts: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("lightcc.elastic").addHandler(handler)
    return texts


def train(recovery: str, ends: BaseException | None, *, again: bool = False) -> dict[str, Array]:
    """Trains; its world ends once, between two steps.

    Args:
        recovery: As of `run`.
        ends: What ends it; `None`: nothing does.
        again: Whether the next world fails before training has begun in it.
    """
    hvd.init()
    state: Any = hvd.elastic.ObjectState(
        hvd.broadcast_object, hvd.rank, step=0, sums={way: np.zeros(SHAPE) for way in WAYS}
    )
    endings = [] if ends is None else [ends]
    sync, failures = state.sync, [HorovodInternalError("it fails at once")] if again else []

    def fail_or_sync() -> None:
        if failures and not endings:
            raise failures.pop()
        sync()

    state.sync = fail_or_sync

    @hvd.elastic.run(recovery=recovery)
    def loop(state: Any) -> None:
        while state.step < STEPS:
            state.sums = {way: state.sums[way] + reduce(state.step, way) for way in WAYS}
            state.step += 1
            if recovery == "forward" or state.step == 7:
                state.commit()
            if state.step == 7 and endings:
                raise endings.pop()

    loop(state)
    assert not endings
    assert not failures
    hvd.shutdown()
    return dict(state.sums)


def compare() -> tuple[list[str], list[str]]:
    """Returns what was said, and which trainings have other results than an undisturbed one."""
    texts = listen()
    expected = train("rollback", None)
    found = {
        "rolls back": train("rollback", HorovodInternalError("all ranks fail")),
        "rolls forward": train("forward", HorovodInternalError("all ranks fail")),
        "goes on": train("rollback", HostsUpdatedInterrupt(skip_sync=True)),
        "fails twice": train("forward", HorovodInternalError("all ranks fail"), again=True),
    }
    differing = [
        f"{way}: {what}"
        for what, sums in found.items()
        for way in WAYS
        if not np.array_equal(sums[way], expected[way])
    ]
    return texts, differing


@cases("at", "two_hosts")
def test_results_are_those_of_a_training_whose_world_never_ended(at: CompressedGrid) -> None:
    assert at.run(compare) == [([], [])] * 4


def fail_within_a_step() -> tuple[float, bool]:
    """Has all ranks fail where a step has been sent and not committed, and makes it again.

    Returns how much of the first time was not sent, and whether just that counts twice at the end.
    """
    hvd.init()
    zeros = np.zeros(SHAPE, np.float32)
    state: Any = hvd.elastic.ObjectState(
        hvd.broadcast_object, hvd.rank, step=0, given=zeros, sent=zeros
    )
    unsent = zeros
    failures = ["the world fails here"]
    topk = hvd.Compression.topk

    @hvd.elastic.run
    def loop(state: Any) -> None:
        nonlocal unsent
        while state.step < 4:
            mine = np.round(10 * gradient(state.step, hvd.rank(), "topk"))  # Sums are exact.
            given = hvd.allreduce(mine, op=hvd.Sum, name="dense")
            sent = hvd.allreduce(mine, op=hvd.Sum, name="topk", compression=topk(0.02))
            if state.step == 2 and failures:
                unsent = given - sent
                raise HorovodInternalError(failures.pop())
            state.given, state.sent = state.given + given, state.sent + sent
            state.step += 1
            state.commit()

    loop(state)
    rest = hvd.allreduce(zeros, op=hvd.Sum, name="topk", compression=topk(1.0))
    return float(np.abs(unsent).max()), np.array_equal(state.sent + rest - state.given, unsent)


def test_a_residual_stays_where_the_state_goes_back_to_its_commit() -> None:
    for unsent, counts_twice in spawn_ranks(fail_within_a_step, 2, env=SMALL, hosts=[0, 1]):
        assert unsent > 0
        assert counts_twice


def change_grids(hosts: list[list[int]]) -> tuple[list[str], list[float]]:
    """Trains in one world after another, each with other hosts, and then sends all.

    Returns what was said, and after each world what the residuals had come to.
    """
    texts, at = listen(), 0
    topk = hvd.Compression.topk

    def move() -> None:
        nonlocal at
        os.environ["LIGHT_HOST_ID"] = str(hosts[at][int(os.environ["LIGHT_RANK"])])
        at += 1

    move()
    hvd.init()
    zeros = np.zeros(SHAPE, np.float32)
    state: Any = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, given=zeros, sent=zeros)
    rests: list[float] = []

    @hvd.elastic.run
    def loop(state: Any) -> None:
        if at > 1:  # Nothing but residuals is sent.
            rest = hvd.allreduce(zeros, op=hvd.Sum, name="topk", compression=topk(1.0))
            rests.append(float(np.abs(state.given - state.sent - rest).max()))
        state.given = state.sent = zeros
        for step in range(4):
            mine = np.round(10 * gradient(step, hvd.rank(), "topk"))  # Sums are exact.
            state.given = state.given + hvd.allreduce(mine, op=hvd.Sum, name="dense")
            sent = hvd.allreduce(mine, op=hvd.Sum, name="topk", compression=topk(0.02))
            state.sent = state.sent + sent
        state.commit()
        if at < len(hosts):
            move()
            raise HorovodInternalError("all ranks fail")

    loop(state)
    return texts, rests


BEGINS = "residuals of compression begin at zero, of tensors: "
ALL = BEGINS + ", ".join(f"1 on rank {rank}" for rank in range(4))


@pytest.mark.parametrize(
    ("hosts", "said", "is_kept"),
    [
        # Each rank is a host, or hosts have different numbers of ranks.
        ([[0, 1, 2, 3], [0, 0, 0, 1]], [], [True]),
        ([[0, 0, 1, 1], [0, 1, 2, 3], [0, 0, 1, 1]], [ALL, ALL], [False, False]),
        # Ranks 1 and 2 have the other shard.
        ([[0, 0, 1, 1], [0, 1, 0, 1]], [BEGINS + "1 on rank 1, 1 on rank 2"], [False]),
        # Nothing is compressed on one host.
        ([[0, 1, 2, 3], [0, 0, 0, 0], [0, 1, 2, 3]], [ALL], [False, True]),
    ],
)
def test_who_has_the_same_shard_keeps_its_residual(
    hosts: list[list[int]], said: list[str], is_kept: list[bool]
) -> None:
    found = spawn_ranks(change_grids, 4, hosts, env=SMALL)
    assert [texts for texts, _ in found] == [said, [], [], []]
    for _, rests in found:
        assert [rest == 0 for rest in rests] == is_kept


def average(folder: str, dtype: str, is_first: bool) -> tuple[float, float]:
    """Averages a few times in a world of four, and then sends all in another one of two.

    Returns the residual, and what has not come of what was put in, as averages.
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
def test_residuals_of_averages_that_are_loaded_count_as_with_as_many_ranks_as_then(
    hosts: list[int], dtype: str, tmp_path: Path
) -> None:
    spawn_ranks(average, 4, str(tmp_path), dtype, True, hosts=hosts, env=SMALL)
    for kept, missing in spawn_ranks(
        average, 2, str(tmp_path), dtype, False, hosts=[0, 1], env=SMALL
    ):
        assert kept > 1
        assert missing == 0
