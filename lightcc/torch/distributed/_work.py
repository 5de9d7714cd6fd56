"""An operation under way, as torch.distributed hands it to the program."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from lightcc._binding import _core
from lightcc.exceptions import CollectiveTimeoutError
from lightcc.torch._profile import region
from lightcc.torch.distributed._futures import Future

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta


class Work(dist.Work):
    """One operation. It has no thread: whoever waits drives the engine, or the engine's own does.

    One thread at a time takes the operation's result, or waits for it: the *taker*. All others wait
    for the taker. Errors are typed where they are raised.
    """

    def __init__(
        self,
        handle: int | None,
        outputs: Sequence[torch.Tensor],
        finish: Callable[[Any], int | None] | None,
        timeout_s: float,
        what: str,
        source: int = -1,
        sequence: str | None = None,
    ) -> None:
        """Takes over `handle`.

        Args:
            handle: The engine's operation; `None` where there was nothing to do.
            outputs: What `result()` and the future give.
            finish: Called once with the operation's result, before anybody hears that it is done.
                Returns `source` where only the result tells it.
            timeout_s: How long `wait()` waits where it is not told.
            what: Names operation and group in errors.
            source: Rank in the group that a message comes from.
            sequence: Of collectives that callbacks of the future start; `None`: of no own.
        """
        super().__init__()
        self._handle: Any = handle  # `None` when it is over, which other threads may make it.
        self._outputs = list(outputs)
        self._value: Callable[[], list[Any]] = self.result
        self._finish = finish
        self._timeout_s = timeout_s
        self._what = what
        self._source = source
        self._sequence = sequence
        self._error: Exception | None = None
        self._future: Future | None = None
        self._settled: Any = None  # Orders streams of whoever waits, where there are any.
        self._changed = threading.Condition()  # Guards what follows, and the handle's end.
        self._taker: int | None = None
        self._is_called = False  # The engine calls, or has called, when it is done.
        self._is_notified = False  # It has called while there was a taker.

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until the outputs may be used: on a GPU, by the current stream of this thread.

        Args:
            timeout: At most so long; `None` or nothing positive is the group's timeout.

        Raises:
            CollectiveTimeoutError: It took longer. The operation goes on.
            RankMismatchError: The ranks disagree about the operation. On all ranks.
            HorovodInternalError: A rank failed, fell silent or left. On all ranks.
        """
        seconds = self._timeout_s
        if timeout is not None and timeout.total_seconds() > 0:
            seconds = timeout.total_seconds()
        with region("wait", self._what):
            self._await(seconds)
        if self._error is not None:
            raise self._error
        if self._settled is not None:
            self._settled.wait()  # Another thread has finished: its stream comes before this one.
        return True

    def synchronize(self) -> None:
        """Waits, as `wait()` does."""
        self.wait()

    def is_completed(self) -> bool:
        """Returns whether `wait()` would not wait. It never waits itself."""
        if self._handle is None:
            return True
        with self._changed:
            if self._handle is None or self._taker is not None:
                return self._handle is None
            self._taker = threading.get_ident()
            handle = self._handle
        if not _core.poll(handle):
            self._let_go()
            return self._handle is None
        self._take(None)
        return True

    def is_success(self) -> bool:
        """Returns whether it is done, and without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """Returns the error that it ended with, if it has."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """Returns the output tensors, which hold the results once `wait()` has returned."""
        return self._outputs

    def show(
        self, outputs: list[torch.Tensor], value: Callable[[], list[Any]] | None = None
    ) -> None:
        """Has `result()` return `outputs`, and futures what `value` returns, or the same."""
        self._outputs = outputs
        self._value = value or self.result

    def source_rank(self) -> int:
        """Returns the rank in the group that a received message came from; -1 for others.

        That of a message from any rank is -1 until `wait()` has returned.
        """
        return self._source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Returns a future of the output tensors. It never waits.

        Its callbacks run on a thread of their own, or at once where the operation is done. They may
        start operations and wait for them.
        """
        with self._changed:
            future = self._future
            if future is None:
                future = self._future = Future(self._sequence, self._drive, self._devices())
                is_over = self._handle is None
                is_taken = self._taker is not None
                self._is_called = not is_over and not is_taken
            else:
                return future
        if is_over:
            self._settle(future)
        elif not is_taken:
            _core.add_done_callback(self._handle, self._on_done)
        return future

    def _drive(self) -> None:
        self._await(math.inf)

    def _await(self, seconds: float) -> None:
        """Returns when it is over; raises CollectiveTimeoutError after `seconds`."""
        if self._handle is None:
            return
        _core.let_other_callbacks_run()
        own = threading.get_ident()
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._handle is not None and self._taker is not None:
                if self._taker == own:
                    raise ValueError(_NO_WAIT)
                left = min(deadline - time.monotonic(), threading.TIMEOUT_MAX)
                if left <= 0 or not self._changed.wait(left):
                    raise too_late(self._what, seconds)
            if self._handle is None:
                return
            self._taker = own
        self._take(max(deadline - time.monotonic(), 0.0), seconds)

    def _on_done(self, _: int) -> None:
        with self._changed:
            self._is_notified = self._taker is not None
            if self._is_notified or self._handle is None:
                return
            self._taker = threading.get_ident()
        with contextlib.ExitStack() as streams:  # On which nobody computes.
            for device in self._devices():
                streams.enter_context(_stream_of(device))
            self._take(None)

    def _take(self, left_s: float | None, seconds: float = 0.0) -> None:
        """Waits for the result, `left_s` of `seconds`, and takes it. This thread is the taker."""
        handle = self._handle
        try:
            try:
                result = _core.wait(handle, left_s)
                if self._finish is not None:
                    with torch.no_grad():
                        source = self._finish(result)
                    self._source = self._source if source is None else source
            except CollectiveTimeoutError as error:
                if is_pending(handle):
                    raise too_late(self._what, seconds) from None
                self._error = error
            except Exception as error:  # noqa: BLE001  whatever it is belongs to who waits
                self._error = error
        except BaseException:
            self._let_go()
            raise
        devices = self._devices() if self._error is None else []
        if devices:  # For other streams that wait later.
            self._settled = torch.futures.Future(devices=devices)
            self._settled.set_result(self._outputs)
        with self._changed:
            self._handle = self._finish = self._taker = None
            future = self._future
            self._changed.notify_all()
        if future is not None:
            self._settle(future)

    def _let_go(self) -> None:
        """Ends this thread's being the taker, unless the result has come meanwhile."""
        with self._changed:
            is_done = self._is_notified
            if not is_done:
                self._taker = None
                self._changed.notify_all()
            is_to_be_called = self._future is not None and not self._is_called and not is_done
            self._is_called = self._is_called or is_to_be_called
        if is_done:
            self._take(None)
        elif is_to_be_called:
            _core.add_done_callback(self._handle, self._on_done)

    def _devices(self) -> list[Any]:
        return list({tensor.device for tensor in self._outputs if tensor.is_cuda})

    def _settle(self, future: Future) -> None:
        if self._error is None:
            future.set_result(self._value())
        else:
            future.fail(self._error)

    def __del__(self) -> None:
        """Lets the engine drop what nobody has waited for."""
        handle = getattr(self, "_handle", None)
        if handle is not None and not self._is_called:
            with contextlib.suppress(Exception):
                _core.add_done_callback(handle, _forget)


class Together(Work):
    """Several operations that are waited for as one."""

    def __init__(self, works: Sequence[Work]) -> None:
        """Takes the operations, in the order of their outputs."""
        outputs = [tensor for work in works for tensor in work.result()]
        super().__init__(None, outputs, None, 0.0, "")
        self._works = list(works)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits for all; raises the first error, as `Work.wait()` does."""
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Returns whether all are done."""
        return all(work.is_completed() for work in self._works)

    def exception(self) -> Exception | None:
        """Returns the first error."""
        return next((work.exception() for work in self._works if work.exception()), None)

    def is_success(self) -> bool:
        """Returns whether all are done, and without an error."""
        return self.is_completed() and self.exception() is None

    def get_future(self) -> Any:
        """Returns a future of all output tensors."""
        with self._changed:
            if self._future is not None:
                return self._future
            sequence = self._works[0]._sequence if self._works else None  # noqa: SLF001
            future = self._future = Future(sequence, self._drive, self._devices())
        left = iter(range(len(self._works) - 1, -1, -1))  # Ends once, whichever thread is the last.

        def count(_: Any) -> None:
            if next(left) == 0:
                self._error = self.exception()
                self._settle(future)

        for work in self._works:
            work.get_future().add_done_callback(count)
        if not self._works:
            self._settle(future)
        return future

    def _drive(self) -> None:
        for work in self._works:
            work._drive()  # noqa: SLF001


def _stream_of(device: Any) -> Any:
    """Returns a context in which this thread's current stream is one of torch's pool."""
    if hasattr(torch.Stream, "__enter__"):
        return torch.Stream(device=device)
    return torch.cuda.stream(torch.cuda.Stream(device=device))  # An older torch.


_NO_WAIT = "A callback cannot wait for an operation for which its own thread waits already."


def is_pending(handle: int) -> bool:
    """Returns whether nobody has taken the result of `handle` yet."""
    try:
        _core.poll(handle)
    except ValueError:
        return False
    return True


def too_late(what: str, seconds: float | None) -> CollectiveTimeoutError:
    """Makes the error of an operation that was not complete in time."""
    return CollectiveTimeoutError(
        f"{what} was not complete after {seconds:g} s; other ranks may not have called it. The "
        "timeout is that of the process group, or the one that wait() was given."
    )


def _forget(handle: int) -> None:
    with contextlib.suppress(Exception):
        _core.wait(handle)
