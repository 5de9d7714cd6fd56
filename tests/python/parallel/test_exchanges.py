"""allgather, broadcast, alltoall, send and recv between ranks; objects, barriers."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from arrays import DTYPES, SHAPES, check_same, pattern
from grids import TWO, every_grid, several_ranks

import lightcc as hvd
from lightcc.testing import RankFailedError

if TYPE_CHECKING:
    from grids import Grid

pytestmark = pytest.mark.multiproc

FLOAT32 = np.dtype("float32")
TAILS: list[tuple[int, ...]] = [(), (3,), (2, 0), (5, 7)]
#: All dtypes of one shape, and all shapes of one dtype: the C++ tests have every pair.
DTYPES_AND_TAILS = [(dtype, (3,)) for dtype in DTYPES] + [(FLOAT32, tail) for tail in TAILS]
DTYPES_AND_SHAPES = [(dtype, (17,)) for dtype in DTYPES] + [
    (FLOAT32, shape) for shape in [*SHAPES, (100_003,)]
]


def allgather_concatenates_in_rank_order() -> None:
    ranks = range(hvd.size())
    started = []
    for (dtype, tail), rows in itertools.product(DTYPES_AND_TAILS, ("same", "none", "different")):
        counts = {
            "same": [4 for _ in ranks],
            "none": [3 if r == hvd.size() - 1 else 0 for r in ranks],
            "different": [1 + 37 * r for r in ranks],
        }[rows]
        inputs = [pattern(dtype, (counts[r], *tail), r) for r in ranks]
        handle = hvd.allgather_async(inputs[hvd.rank()])
        started.append((handle, np.concatenate(inputs), (str(dtype), tail, rows)))
    for handle, expected, what in started:
        check_same(hvd.synchronize(handle), expected, what)
    big = [pattern(FLOAT32, (60_000 + r, 3), r) for r in ranks]
    check_same(hvd.allgather(big[hvd.rank()]), np.concatenate(big), "big")
    results = hvd.grouped_allgather([np.full(hvd.rank(), 7), np.full((2, 2), hvd.rank())])
    check_same(results[0], np.full(sum(ranks), 7))
    check_same(results[1], np.repeat(np.arange(hvd.size()), 4).reshape(-1, 2))


def broadcast_brings_the_roots_contents() -> None:
    started = []
    for (dtype, shape), root in itertools.product(DTYPES_AND_SHAPES, range(hvd.size())):
        x, y = pattern(dtype, shape, hvd.rank()), pattern(dtype, shape, hvd.rank())
        expected = pattern(dtype, shape, root)
        what = (str(dtype), shape, root)
        handles = hvd.broadcast_async(x, root), hvd.broadcast_async_(y, root)
        started.append((*handles, y, expected, what))
    for new, in_place, y, expected, what in started:
        check_same(hvd.synchronize(new), expected, what)
        assert hvd.synchronize(in_place) is y, what
        check_same(y, expected, what)


def blocks(sender: int, receiver: int, kind: str) -> int:
    """How many rows `sender` has for `receiver`."""
    return {"even": 2, "uneven": sender + 2 * receiver, "to_first": 5 * (receiver == 0)}[kind]


def alltoall_exchanges_blocks() -> None:
    n, me = hvd.size(), hvd.rank()
    started = []
    for (dtype, tail), kind in itertools.product(DTYPES_AND_TAILS, ("even", "uneven", "to_first")):
        rows = {(s, r): blocks(s, r, kind) for s in range(n) for r in range(n)}
        inputs = [
            [pattern(dtype, (rows[s, r], *tail), s * 10 + r) for r in range(n)] for s in range(n)
        ]
        splits = [rows[me, r] for r in range(n)]
        handle = hvd.alltoall_async(
            np.concatenate(inputs[me]), splits=None if kind == "even" else splits
        )
        expected = np.concatenate([inputs[s][me] for s in range(n)])
        received = np.array([rows[s, me] for s in range(n)], np.int32)
        started.append((handle, expected, received, (str(dtype), tail, kind)))
    for handle, expected, received, what in started:
        output, received_splits = hvd.synchronize(handle)
        check_same(output, expected, what)
        check_same(received_splits, received, what)
    # Rows beyond the splits stay at home.
    output, _ = hvd.alltoall(np.arange(n + 3), splits=[1] * n)
    check_same(output, np.full(n, me))


def objects_reach_all_ranks() -> None:
    n, me = hvd.size(), hvd.rank()
    assert hvd.allgather_object({"rank": me}) == [{"rank": r} for r in range(n)]
    assert hvd.allgather_object("x" * 1000 * me, name="n") == ["x" * 1000 * r for r in range(n)]
    for root in range(n):
        obj = {"root": root, "data": list(range(5000))}
        got = hvd.broadcast_object(obj if me == root else None, root)
        assert got == obj
        assert (got is obj) == (me == root)
        assert hvd.broadcast_object(me, root, name="named") == root


EXCHANGES = [
    allgather_concatenates_in_rank_order,
    broadcast_brings_the_roots_contents,
    alltoall_exchanges_blocks,
    objects_reach_all_ranks,
]


@every_grid
def test_exchanges_bring_the_right_contents(grid: Grid) -> None:
    grid.run_all(EXCHANGES)


def alltoall_refuses_splits_that_do_not_fit() -> None:
    text = "splits not provided, but first dimension of tensor is not an even multiple of the"
    with pytest.raises(ValueError, match=f"^{text}"):
        hvd.alltoall(np.zeros(hvd.size() + 1))
    with pytest.raises(ValueError, match=r"^Number of entries in splits does not equal number of"):
        hvd.alltoall(np.zeros(4), splits=[1] * (hvd.size() + 1))


def send_and_recv_pass_arrays_around_a_ring() -> None:
    n, me = hvd.size(), hvd.rank()
    after, before = (me + 1) % n, (me - 1) % n
    for dtype, shape in DTYPES_AND_SHAPES:
        received = pattern(dtype, shape, 50)
        sent = hvd.send_async(pattern(dtype, shape, me), after)
        result = hvd.recv(received, before)
        assert result is received
        check_same(received, pattern(dtype, shape, before), (str(dtype), shape))
        assert hvd.synchronize(sent) is None


def send_and_recv_match_by_name_and_direction() -> None:
    if hvd.rank() < 2:
        other = 1 - hvd.rank()
        x, y = np.full(5, hvd.rank()), np.full(7, -1)
        # Started in opposite orders; both directions use one name.
        if hvd.rank() == 0:
            sent = hvd.send_async(x, other, name="a")
            received = hvd.recv_async(y[:5], other, name="a")
        else:
            received = hvd.recv_async(y[:5], other, name="a")
            sent = hvd.send_async(x, other, name="a")
        hvd.synchronize(sent)
        hvd.synchronize(received)
        check_same(y, np.array([other] * 5 + [-1] * 2))


def peer_must_be_another_rank() -> None:
    for peer in (hvd.rank(), -1, hvd.size()):
        with pytest.raises(ValueError, match=f"{peer}"):
            hvd.send(np.zeros(1), peer)
        with pytest.raises(ValueError, match=f"{peer}"):
            hvd.recv(np.zeros(1), peer)


def nobody_leaves_a_barrier_before_all_have_entered() -> None:
    hvd.barrier()
    pending = hvd.allreduce_async(np.ones(3), op=hvd.Sum)
    if hvd.rank() == 0:
        time.sleep(0.1)
    entered = time.monotonic()
    hvd.barrier()
    left = time.monotonic()
    check_same(hvd.synchronize(pending), np.full(3, float(hvd.size())))
    # CLOCK_MONOTONIC is one clock for all processes of a machine.
    assert left >= max(hvd.allgather_object(entered))


@several_ranks
def test_ranks_send_receive_and_wait_for_one_another(grid: Grid) -> None:
    grid.run_all(
        [
            alltoall_refuses_splits_that_do_not_fit,
            send_and_recv_pass_arrays_around_a_ring,
            send_and_recv_match_by_name_and_direction,
            peer_must_be_another_rank,
            nobody_leaves_a_barrier_before_all_have_entered,
        ]
    )


def wrong_on_purpose() -> None:
    hvd.init()
    check_same(hvd.allreduce(np.ones(1), op=hvd.Sum), np.array([-1.0]), "wrong")


def test_a_wrong_result_fails_these_tests() -> None:
    with pytest.raises(RankFailedError, match="wrong"):
        TWO.run(wrong_on_purpose)
