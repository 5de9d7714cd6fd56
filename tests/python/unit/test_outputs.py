"""What the engine's binding takes beside the tensors: outputs, sequences, and a time to wait."""

from __future__ import annotations

import numpy as np
import pytest

import lightcc as hvd
from lightcc import _core, _world
from lightcc._ops.reductions import Sum
from lightcc.testing import spawn_ranks

pytestmark = pytest.mark.multiproc


def results_go_where_they_are_told() -> None:
    hvd.init()
    world, rank, size = _world.current(), hvd.rank(), hvd.size()
    gathered = np.zeros((size, 3), np.float32)
    mine = np.full(3, rank, np.float32)
    assert _core.wait(world.allgather(mine, False, None, 0, True, gathered)) is gathered
    assert gathered.tolist() == [[float(i)] * 3 for i in range(size)]

    # The input may be the output's own part.
    together = np.full((size, 2), -1, np.int64)
    together[rank] = rank
    _core.wait(world.allgather(together[rank], False, None, 0, True, together.reshape(-1)))
    assert together.tolist() == [[i, i] for i in range(size)]

    inputs = [np.arange(2 * size, dtype=np.float64), np.ones(size, np.float64)]
    parts = [np.zeros(2), np.zeros(1)]
    handle = world.reducescatter(inputs, True, None, Sum, 1.0, 1.0, 0, True, parts)
    assert _core.wait(handle)[0] is parts[0]
    assert parts[0].tolist() == [size * 2.0 * rank, size * (2.0 * rank + 1)]
    assert parts[1].tolist() == [size]

    received = np.zeros(size, np.int32)
    sent = np.arange(size, dtype=np.int32) + 10 * rank
    output, splits = _core.wait(world.alltoall(sent, None, None, 0, True, received))
    assert output is received
    assert received.tolist() == [rank + 10 * i for i in range(size)]
    assert splits.tolist() == [1] * size


def test_results_go_into_the_callers_tensors() -> None:
    spawn_ranks(results_go_where_they_are_told, 2)


def wrong_outputs_are_refused() -> None:
    hvd.init()
    world = _world.current()
    ones = np.ones(4, np.float32)
    with pytest.raises(ValueError, match="output tensor is of float64"):
        world.allgather(ones, False, None, 0, False, np.ones(4))
    with pytest.raises(ValueError, match="There are 2 tensors and 1 outputs"):
        world.allgather([ones, ones], True, None, 0, False, [ones])
    with pytest.raises(ValueError, match="output"):
        _core.wait(world.allgather(ones, False, None, 0, True, np.ones(5, np.float32)))


def test_outputs_that_do_not_fit_are_refused() -> None:
    spawn_ranks(wrong_outputs_are_refused, 1)


def sequences_have_orders_of_their_own() -> list[float]:
    hvd.init()
    world, rank = _world.current(), hvd.rank()
    tensors = {name: np.full(1, value) for name, value in (("a", 1.0), ("b", 10.0))}
    order = ("a", "b") if rank == 0 else ("b", "a")
    handles = [
        world.allreduce(
            tensors[name], False, True, None, Sum, 1.0, 1.0, 0, False, None, sequence=name
        )
        for name in order
    ]
    for handle in handles:
        _core.wait(handle)
    return [float(tensors["a"][0]), float(tensors["b"][0])]


def test_ranks_need_not_agree_on_the_order_of_two_sequences() -> None:
    assert spawn_ranks(sequences_have_orders_of_their_own, 2) == [[2.0, 20.0]] * 2


def a_wait_may_end_before_the_operation() -> None:
    hvd.init()
    world, rank = _world.current(), hvd.rank()
    tensor = np.ones(2)
    if rank == 0:
        handle = world.allreduce(tensor, False, True, "late", Sum, 1.0, 1.0, 0)
        with pytest.raises(hvd.CollectiveTimeoutError, match=r"not complete after 0.2 s"):
            _core.wait(handle, 0.2)
        assert not _core.poll(handle)
        hvd.allreduce(np.ones(1), name="go")
    else:
        hvd.allreduce(np.ones(1), name="go")
        handle = world.allreduce(tensor, False, True, "late", Sum, 1.0, 1.0, 0)
    assert _core.wait(handle, 60.0) is tensor
    assert tensor.tolist() == [2.0, 2.0]


def test_a_wait_that_was_too_short_can_be_repeated() -> None:
    spawn_ranks(a_wait_may_end_before_the_operation, 2)
