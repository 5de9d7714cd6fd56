"""Done callbacks: called once, whatever the end, and what they may not do."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import pytest
from processes import run_to_end

import lightcc as hvd
from lightcc import _core

pytestmark = pytest.mark.usefixtures("world")


class Calls:
    """A callback that keeps what it was called with, and what `run` did then."""

    def __init__(self, run: Any = None) -> None:
        self.results: list[Any] = []
        self._run = run or hvd.synchronize
        self._called = threading.Event()

    def __call__(self, handle: int) -> None:
        try:
            self.results.append(self._run(handle))
        except Exception as error:  # noqa: BLE001  kept for the test
            self.results.append(error)
        self._called.set()

    def wait(self) -> Any:
        assert self._called.wait(60)
        assert len(self.results) == 1
        return self.results[0]


def test_callback_gets_the_result_without_a_wait() -> None:
    calls = Calls()
    _core.add_done_callback(hvd.allreduce_async(np.arange(3), op=hvd.Sum), calls)
    assert list(calls.wait()) == [0, 1, 2]


def test_callback_of_a_handle_that_is_done_is_called_at_once() -> None:
    handle = hvd.allreduce_async(np.arange(3), op=hvd.Sum)
    while not hvd.poll(handle):
        threading.Event().wait(0.001)
    calls = Calls()
    _core.add_done_callback(handle, calls)
    assert len(calls.results) == 1


def test_several_callbacks_of_one_handle_are_all_called() -> None:
    handle = hvd.allreduce_async(np.zeros(1))
    several = [Calls(lambda handle: handle) for _ in range(3)]
    for calls in several:
        _core.add_done_callback(handle, calls)
    assert [calls.wait() for calls in several] == [handle] * 3
    hvd.synchronize(handle)


def test_callback_may_start_operations_and_wait_for_them() -> None:
    def run(_: int) -> list[float]:
        started = hvd.allreduce_async(np.ones(2), op=hvd.Sum)
        return [*hvd.allreduce(np.full(1, 3.0)), *hvd.synchronize(started)]

    calls = Calls(run)
    _core.add_done_callback(hvd.allreduce_async(np.zeros(1)), calls)
    assert calls.wait() == [3, 1, 1]


def test_callback_cannot_shut_down() -> None:
    calls = Calls(lambda _: hvd.shutdown())
    handle = hvd.allreduce_async(np.zeros(1))
    _core.add_done_callback(handle, calls)
    assert "inside a done callback" in str(calls.wait())
    assert list(hvd.synchronize(hvd.allreduce_async(np.ones(1)))) == [1]


def test_exception_of_a_callback_goes_to_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    called = threading.Event()

    def hook(unraisable: Any) -> None:
        seen.append(unraisable.exc_value)
        called.set()

    monkeypatch.setattr(sys, "unraisablehook", hook)
    handle = hvd.allreduce_async(np.zeros(1))
    _core.add_done_callback(handle, lambda _: 1 / 0)
    assert called.wait(60)
    assert isinstance(seen[0], ZeroDivisionError)
    hvd.synchronize(handle)


def test_callbacks_run_before_shutdown_returns() -> None:
    results = []
    for _ in range(20):
        calls = Calls()
        _core.add_done_callback(hvd.allreduce_async(np.zeros(1)), calls)
        hvd.shutdown()
        results.append(len(calls.results))
        hvd.init()
    assert results == [1] * 20


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="was not created or has been cleared"):
        _core.add_done_callback(10**15, print)
    handle = hvd.allreduce_async(np.zeros(1))
    with pytest.raises(TypeError, match="called with the handle; found a int"):
        _core.add_done_callback(handle, 3)  # type: ignore[arg-type]
    hvd.synchronize(handle)


def test_callbacks_at_the_end_of_the_interpreter_run_once() -> None:
    code = """
import numpy as np, lightcc as hvd
from lightcc import _core
hvd.init()
for i in range(50):
    _core.add_done_callback(hvd.allreduce_async(np.zeros(1000)), lambda handle: print("called"))
"""
    done = run_to_end([sys.executable, "-c", code], timeout=120, check=True)
    assert done.stdout.split() == ["called"] * 50
    assert done.stderr == ""
