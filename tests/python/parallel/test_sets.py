"""Process sets between ranks: static, dynamic, overlapping, and who may not use them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from arrays import check_same
from grids import TWO_HOSTS

import lightcc as hvd

pytestmark = pytest.mark.multiproc


def static_sets() -> None:
    n_ranks = 4
    even, odd, tail = hvd.ProcessSet([0, 2]), hvd.ProcessSet([3, 1]), hvd.ProcessSet(range(1, 4))
    hvd.init(process_sets=[even, odd, tail])
    me = hvd.rank()
    assert hvd.size() == n_ranks
    assert hvd.process_set_ids() == [0, 1, 2, 3]
    assert hvd.get_process_set_ids_and_ranks() == {
        0: [0, 1, 2, 3],
        1: [0, 2],
        2: [1, 3],
        3: [1, 2, 3],
    }
    mine, other = (even, odd) if me % 2 == 0 else (odd, even)
    assert mine.included() is True
    assert other.included() is False
    assert mine.size() == other.size() == 2
    assert mine.rank() == me // 2
    with pytest.raises(ValueError, match=f"Rank {me} is not a member"):
        other.rank()
    # The same names, at the same time, in sets that share no rank; and unnamed.
    members = mine.ranks or []
    for name in ("x", None):
        total = hvd.allreduce(np.array([me]), op=hvd.Sum, name=name, process_set=mine)
        check_same(total, np.array([sum(members)]))
        average = hvd.allreduce(np.array([me], np.float32), name=name, process_set=mine)
        check_same(average, np.array([sum(members) / 2], np.float32))
        gathered = hvd.allgather(np.full(me + 1, me), name=name, process_set=mine)
        check_same(gathered, np.repeat(members, np.array(members) + 1))
        root = members[1]
        check_same(hvd.broadcast(np.array([me]), root, name, mine), np.array([root]))
        check_same(hvd.alltoall(np.full(2, me), name=name, process_set=mine), np.array(members))
        share = hvd.reducescatter(np.arange(4), op=hvd.Sum, process_set=mine, name=name)
        check_same(share, 2 * np.arange(4)[2 * (me // 2) :][:2])
    assert hvd.broadcast_object(me, members[0], process_set=mine) == members[0]
    assert hvd.allgather_object(me, process_set=mine) == members
    hvd.barrier(mine)
    # Where the whole world meets again, unnamed operations still match.
    if me != 0:
        check_same(hvd.allreduce(np.ones(1), op=hvd.Sum, process_set=tail), np.array([3.0]), "tail")
    check_same(hvd.allreduce(np.ones(1), op=hvd.Sum), np.array([4.0]))
    with pytest.raises(
        ValueError, match=f"^Allreduce: Rank {me} is not a member of the provided process set"
    ):
        hvd.allreduce(np.ones(1), process_set=other)
    if me % 2 == 0:
        text = "^broadcast received invalid root rank 1 for provided process set"
        with pytest.raises(ValueError, match=text):
            hvd.broadcast(np.ones(1), 1, process_set=even)
    hvd.barrier()
    hvd.shutdown()
    assert even.included() is None
    # The same objects can be registered again.
    hvd.init(process_sets=[odd, even])
    assert [odd.process_set_id, even.process_set_id] == [1, 2]
    hvd.barrier()


def test_static_sets_have_collectives_of_their_own() -> None:
    TWO_HOSTS.run(static_sets)


def dynamic_sets() -> None:
    hvd.init(process_sets="dynamic")
    n, me = hvd.size(), hvd.rank()
    for _ in range(3):
        pair = hvd.add_process_set([0, 1])
        alone = hvd.add_process_set(hvd.ProcessSet([n - 1]))
        assert hvd.get_process_set_ids_and_ranks() == {
            0: list(range(n)),
            pair.process_set_id: [0, 1],
            alone.process_set_id: [n - 1],
        }
        if pair.included():
            check_same(hvd.allreduce(np.ones(1), op=hvd.Sum, process_set=pair), np.array([2.0]))
        if alone.included():
            check_same(hvd.allgather(np.array([me]), process_set=alone), np.array([n - 1]))
            check_same(hvd.allreduce(np.ones(1), op=hvd.Sum, process_set=alone), np.ones(1))
        with pytest.raises(ValueError, match="Attempted to add a duplicate process set"):
            hvd.add_process_set([1, 0])
        old = pair.process_set_id
        assert hvd.remove_process_set(pair) is True
        assert hvd.remove_process_set(pair) is False
        assert pair.process_set_id is None
        with pytest.raises(ValueError, match="does not exist, or has not been registered"):
            hvd.barrier(pair)
        again = hvd.add_process_set([1, n - 1])
        assert again.process_set_id == old, "ids are used again"
        if again.included():
            hvd.barrier(again)
        assert hvd.remove_process_set(again)
        assert hvd.remove_process_set(alone)
        assert hvd.process_set_ids() == [0]
        check_same(hvd.allreduce(np.ones(1), op=hvd.Sum), np.array([float(n)]))


def test_dynamic_sets_come_and_go() -> None:
    TWO_HOSTS.run(dynamic_sets)


def a_set_beside_a_stopped_rank_0() -> None:
    pair = hvd.ProcessSet([2, 3])
    hvd.init(process_sets=[pair])
    me = hvd.rank()
    first = int(hvd.allgather(np.array([os.getpid()]))[0])
    if me == 0:
        os.kill(first, signal.SIGSTOP)
    elif pair.included():
        try:
            while ") T " not in Path(f"/proc/{first}/stat").read_text():
                time.sleep(0.01)
            for step in range(3):
                total = hvd.allreduce(
                    np.ones(1000), op=hvd.Sum, process_set=pair, name=f"{step % 2}"
                )
                check_same(total, np.full(1000, 2.0))
        finally:
            hvd.barrier(pair)
            if me == 2:
                os.kill(first, signal.SIGCONT)
    hvd.barrier()


def test_a_set_within_a_host_does_not_wait_for_rank_0() -> None:
    TWO_HOSTS.run(a_set_beside_a_stopped_rank_0)
