"""Handles: what poll() and synchronize() say, once, twice, never, after the end, and on Ctrl-C."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from arrays import check_same

import lightcc as hvd

pytestmark = pytest.mark.usefixtures("world")


def test_handle_is_an_integer_that_is_never_reused() -> None:
    seen = [hvd.allreduce_async(np.zeros(1)) for _ in range(3)]
    assert all(type(handle) is int for handle in seen)
    for handle in seen:
        hvd.synchronize(handle)
    hvd.shutdown()
    hvd.init()
    seen.append(hvd.allreduce_async(np.zeros(1)))
    assert len(set(seen)) == 4
    assert max(seen) < 2**31
    hvd.synchronize(seen[-1])


def test_synchronize_gives_the_result_once() -> None:
    handle = hvd.allreduce_async(np.arange(3), op=hvd.Sum)
    check_same(hvd.synchronize(handle), np.arange(3))
    with pytest.raises(ValueError, match=f"^Handle {handle} was not created or has been cleared"):
        hvd.synchronize(handle)


def test_unknown_handles_can_neither_be_synchronized_nor_polled() -> None:
    for handle in (0, -1, 10**15):
        for use in (hvd.poll, hvd.synchronize):
            with pytest.raises(ValueError, match=f"^Handle {handle} was not created or has been"):
                use(handle)


def test_poll_becomes_true_and_keeps_the_handle() -> None:
    handle = hvd.allreduce_async(np.arange(3), op=hvd.Sum)
    polled = threading.Event()
    while not hvd.poll(handle):
        polled.wait(0.001)
    assert hvd.poll(handle)
    check_same(hvd.synchronize(handle), np.arange(3))


def test_handle_of_a_world_that_ended_is_an_error_not_a_result() -> None:
    handle = hvd.allreduce_async(np.zeros(1))
    hvd.shutdown()
    assert hvd.poll(handle)
    with pytest.raises(hvd.ShutDownError, match="shut down"):
        hvd.synchronize(handle)
    with pytest.raises(ValueError, match="was not created"):
        hvd.synchronize(handle)


def test_many_operations_may_be_in_flight() -> None:
    xs = [np.full(i % 7, i, np.int32) for i in range(500)]
    handles = [hvd.allreduce_async(x, op=hvd.Sum, name=f"x{i}") for i, x in enumerate(xs)]
    for handle, x in zip(reversed(handles), reversed(xs), strict=True):
        check_same(hvd.synchronize(handle), x)


def test_threads_may_call_at_the_same_time() -> None:
    errors: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for i in range(200):
                x = np.full(3, thread * 1000 + i)
                check_same(hvd.allreduce(x, op=hvd.Sum, name=f"t{thread}.{i}"), x)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
