"""Ranks that disagree, repeat themselves, wait, or stop early: errors say what is wrong."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from arrays import check_same
from grids import THREE, several_ranks

import lightcc as hvd

if TYPE_CHECKING:
    from collections.abc import Callable

    from grids import Grid

pytestmark = pytest.mark.multiproc


def zeros(*shape: int, dtype: str = "float32") -> Any:
    return np.zeros(shape, dtype)


#: What the last rank does, what the others do, and how the error begins: Horovod's texts. The C++
#: tests have others.
DISAGREEMENTS: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "dtype": (
        lambda: hvd.allreduce(zeros(3, dtype="int32"), name="x"),
        lambda: hvd.allreduce(zeros(3), name="x"),
        r"Mismatched data types: One rank had type \w+, but another rank had type \w+\.",
    ),
    "gathered shape": (
        lambda: hvd.allgather(zeros(6, 4), name="x"),
        lambda: hvd.allgather(zeros(2, 3), name="x"),
        r"Mismatched ALLGATHER tensor shapes: One rank sent a tensor with dimension 1 equal to \d, "
        r"but another rank sent a tensor with dimension 1 equal to \d\.",
    ),
    "member of a group": (
        lambda: hvd.grouped_allreduce([zeros(3), zeros(4)], name="x"),
        lambda: hvd.grouped_allreduce([zeros(3), zeros(5)], name="x"),
        "Mismatched ALLREDUCE tensor shapes",
    ),
}


def disagreement_is_an_error_on_all_ranks_and_the_world_goes_on() -> None:
    for kind, (last, others, text) in DISAGREEMENTS.items():
        # The same name again and again: a failed operation must leave nothing behind.
        for _ in range(2):
            with pytest.raises(hvd.RankMismatchError) as error:
                (last if hvd.rank() == hvd.size() - 1 else others)()
            assert re.match(text, str(error.value)), (kind, str(error.value))
        expected = np.full(3, float(hvd.size()))
        check_same(hvd.allreduce(np.ones(3), op=hvd.Sum, name="x"), expected, kind)


def memory_in_flight_is_refused_where_one_writes_and_can_be_used_afterwards() -> None:
    x = np.ones(8)

    def start() -> list[int]:
        return [
            hvd.allreduce_async_(x[2:6], op=hvd.Sum, name="writes"),
            hvd.allreduce_async(x[6:], op=hvd.Sum, name="reads"),
        ]

    if hvd.rank() == 0:
        handles = start()
        with pytest.raises(ValueError, match=r"'allreduce.o' has memory that 'allreduce.writes'"):
            hvd.allreduce_async(x[:3], op=hvd.Sum, name="o")
        with pytest.raises(ValueError, match=r"'broadcast.o' .* 'allreduce.reads', which.* reads:"):
            hvd.broadcast_async_(x[7:], 1, name="o")
        hvd.barrier()
    else:
        hvd.barrier()
        handles = start()
    for handle in handles:
        hvd.synchronize(handle)
    check_same(hvd.broadcast_(x, 1), np.array([1.0] * 2 + [hvd.size()] * 4 + [1.0] * 2))


def name_in_flight_is_refused_and_can_be_used_afterwards() -> None:
    x = np.ones(4)
    text = (
        r"^Requested to allreduce, allgather, or broadcast a tensor with the same name as another "
        r"tensor that is currently being processed"
    )

    def start() -> list[int]:
        return [
            hvd.allreduce_async(x, op=hvd.Sum, name="twice"),
            hvd.grouped_allreduce_async([x, x], op=hvd.Sum, name="group"),
        ]

    if hvd.rank() == 0:
        handles = start()
        assert not hvd.poll(handles[0])
        with pytest.raises(ValueError, match=text):
            hvd.allreduce_async(x, op=hvd.Sum, name="twice")
        with pytest.raises(ValueError, match=text):
            hvd.grouped_allreduce_async([x, x], op=hvd.Sum, name="group")
        hvd.barrier()
    else:
        hvd.barrier()
        handles = start()
    expected = np.full(4, float(hvd.size()))
    check_same(hvd.synchronize(handles[0]), expected)
    check_same(hvd.synchronize(handles[1])[1], expected)
    # Done: the name is free.
    check_same(hvd.allreduce(x, op=hvd.Sum, name="twice"), expected)


# --- join ----------------------------------------------------------------------------------------


def join_lets_ranks_with_less_data_wait() -> None:
    n, me = hvd.size(), hvd.rank()
    for named in (False, True, True):
        for step in range(2 * me + 1):
            active = sum(step < 2 * rank + 1 for rank in range(n))
            name = f"step{step}" if named else None
            total = hvd.allreduce(np.ones(3), op=hvd.Sum, name=name)
            check_same(total, np.full(3, float(active)), step)
            name = f"average{step}" if named else None
            average = hvd.allreduce(np.ones(1, np.float32), name=name)
            check_same(average, np.array([active], np.float32) * np.float32(1 / n), step)
        assert hvd.join() == n - 1
        # Unnamed operations match again, though some ranks issued fewer of them before.
        check_same(hvd.allreduce(np.ones(2), op=hvd.Sum), np.full(2, float(n)))


def operations_that_cannot_go_on_with_join_say_so() -> None:
    if hvd.rank() != 0:
        calls: list[Callable[[], Any]] = [
            lambda: hvd.allgather(zeros(2), name="g"),
            lambda: hvd.broadcast(zeros(2), 1, name="b"),
            lambda: hvd.alltoall(zeros(12), name="a"),
            lambda: hvd.reducescatter(zeros(12), name="r"),
        ]
        for call in calls:
            with pytest.raises(
                hvd.HorovodInternalError, match="is not supported with Join at this time"
            ):
                call()
    hvd.join()
    check_same(hvd.allgather(np.full(1, hvd.rank())), np.arange(hvd.size()))


# --- waiting -------------------------------------------------------------------------------------


class AlarmError(Exception):
    pass


def interrupted_wait_can_be_repeated() -> None:
    def start() -> int:
        return hvd.allreduce_async(np.ones(3), op=hvd.Sum)

    def ring(_signal: int, _frame: object) -> None:
        raise AlarmError

    if hvd.rank() == 0:
        signal.signal(signal.SIGALRM, ring)
        handle = start()
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(AlarmError):
            hvd.synchronize(handle)
        assert not hvd.poll(handle)
        hvd.barrier()
    else:
        hvd.barrier()
        handle = start()
    check_same(hvd.synchronize(handle), np.full(3, float(hvd.size())))


def python_threads_run_while_one_waits() -> None:
    ticks = 0
    if hvd.rank() == 0:
        stop = threading.Event()

        def tick() -> None:
            nonlocal ticks
            while not stop.wait(0.01):
                ticks += 1

        thread = threading.Thread(target=tick)
        thread.start()
        hvd.barrier()
        stop.set()
        thread.join()
        assert ticks >= 5
    else:
        time.sleep(0.3)
        hvd.barrier()


@several_ranks
def test_ranks_agree_or_are_told_and_wait_for_one_another(grid: Grid) -> None:
    grid.run_all(
        [
            disagreement_is_an_error_on_all_ranks_and_the_world_goes_on,
            memory_in_flight_is_refused_where_one_writes_and_can_be_used_afterwards,
            name_in_flight_is_refused_and_can_be_used_afterwards,
            join_lets_ranks_with_less_data_wait,
            operations_that_cannot_go_on_with_join_say_so,
            interrupted_wait_can_be_repeated,
            python_threads_run_while_one_waits,
        ]
    )


# --- the end -------------------------------------------------------------------------------------


def leave_early() -> str:
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 0:
        hvd.shutdown()
        return "left"
    try:
        hvd.allreduce(np.ones(3))
    except hvd.HorovodInternalError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing happened"


@several_ranks
def test_shutdown_of_one_rank_ends_what_others_wait_for(grid: Grid) -> None:
    texts = grid.run(leave_early)
    assert texts[0] == "left"
    for text in texts[1:]:
        assert text.startswith("ShutDownError: ")
        assert "shut down" in text


def subset() -> tuple[int, int, int]:
    job_rank = int(os.environ["LIGHT_RANK"])
    comm = [2, 0] if job_rank in (0, 2) else [1]
    hvd.init(comm=comm)
    total = hvd.allreduce(np.array([job_rank]), op=hvd.Sum)
    return hvd.rank(), hvd.size(), int(total[0])


def test_comm_makes_worlds_of_some_ranks() -> None:
    assert THREE.run(subset) == [(1, 2, 2), (0, 1, 1), (0, 2, 2)]
