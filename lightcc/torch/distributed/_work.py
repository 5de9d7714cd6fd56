"""An operation under way, as torch.distributed hands it to the program."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from lightcc._binding import _core
from lightcc.exceptions import CollectiveTimeoutError
from lightcc.torch._profile import region

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import timedelta


class Work(dist.Work):
    """One operation. It has no thread: whoever waits drives the engine, or the engine's own does.

    Errors are typed where they are raised by `wait()`. A torch future knows text only: there they
    are a RuntimeError that names the class.
    """

    def __init__(
        self,
        handle: int | None,
        outputs: Sequence[torch.Tensor],
        finish: Callable[[Any], int | None] | None,
        timeout_s: float,
        what: str,
        source: int = -1,
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
        """
        super().__init__()
        self._handle = handle
        self._outputs = list(outputs)
        self._finish = finish
        self._timeout_s = timeout_s
        self._what = what
        self._source = source
        self._error: Exception | None = None
        self._lock = threading.RLock()
        self._future: Any = None
        self._settled: Any = None  # The future that orders streams, where there is one.
        self._done: threading.Event | None = None

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
            if self._done is not None:
                self._wait_for_callback(self._done, seconds)
            else:
                with self._lock:
                    self._complete(seconds)
        if self._error is not None:
            raise self._error
        if self._settled is not None and self._devices():
            self._settled.wait()  # Another thread has finished: its stream comes before this one.
        return True

    def synchronize(self) -> None:
        """Waits, as `wait()` does."""
        self.wait()

    def is_completed(self) -> bool:
        """Returns whether `wait()` would not wait."""
        if self._done is not None:
            return self._done.is_set()
        with self._lock:
            if self._handle is not None and not _core.poll(self._handle):
                return False
            self._complete(None)
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

    def source_rank(self) -> int:
        """Returns the rank in the group that a received message came from; -1 for others.

        That of a message from any rank is -1 until `wait()` has returned.
        """
        return self._source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Returns a future of the output tensors.

        Its callbacks run on the thread that drives the engine: they may start operations, but
        waiting for one there raises ValueError.
        """
        with self._lock:
            if self._future is None:
                self._future = self._make_future()
            return self._future

    def _make_future(self) -> Any:
        done = threading.Event()
        devices = self._devices()
        base: Any
        if _core.in_done_callback() and not self.is_completed():
            base = future = _FutureInCallback(devices=devices)
        else:
            base = torch.futures.Future(devices=devices)
            future = base.then(self._outcome)
        if self._handle is None:
            self._settle(base)
            return future

        def on_done(_: int) -> None:
            with self._streams_of_its_own():
                with self._lock:
                    self._complete(None)
                done.set()
                self._settle(base)

        self._settled, self._done = base, done
        _core.add_done_callback(self._handle, on_done)
        return future

    def _devices(self) -> list[Any]:
        return list({tensor.device for tensor in self._outputs if tensor.is_cuda})

    @contextlib.contextmanager
    def _streams_of_its_own(self) -> Iterator[None]:
        """Has this thread wait on GPUs with streams that nobody computes on."""
        with contextlib.ExitStack() as stack:
            for device in self._devices():
                stack.enter_context(_stream_of(device))
            yield

    def _settle(self, base: Any) -> None:
        if self._error is None:
            base.set_result(self._outputs)
        elif isinstance(base, _FutureInCallback):
            base.set_exception(self._error)
        else:
            base.set_result(None)  # `_outcome` raises.

    def _outcome(self, _: Any) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._outputs

    def _wait_for_callback(self, done: threading.Event, seconds: float) -> None:
        if done.is_set():
            return
        if _core.in_done_callback():
            raise ValueError(_NO_WAIT)
        if not done.wait(min(seconds, threading.TIMEOUT_MAX)):
            raise self._too_late(seconds)

    def _complete(self, seconds: float | None) -> None:
        """Takes the operation's result. The lock is held."""
        if self._handle is None:
            return
        try:
            result = _core.wait(self._handle, seconds)
            if self._finish is not None:
                with torch.no_grad():
                    source = self._finish(result)
                self._source = self._source if source is None else source
        except CollectiveTimeoutError as error:
            if is_pending(self._handle):
                raise self._too_late(seconds) from None
            self._error = error
        except Exception as error:  # noqa: BLE001  whatever it is belongs to who waits
            self._error = error
        self._handle = None
        self._finish = None
        devices = self._devices() if self._error is None else []
        if devices and self._settled is None:  # For other streams that wait later.
            self._settled = torch.futures.Future(devices=devices)
            self._settled.set_result(self._outputs)

    def _too_late(self, seconds: float | None) -> CollectiveTimeoutError:
        return too_late(self._what, seconds)

    def __del__(self) -> None:
        """Lets the engine drop what nobody has waited for."""
        handle = getattr(self, "_handle", None)
        if handle is not None and self._done is None:
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
        with self._lock:
            if self._future is None:
                every = torch.futures.collect_all([work.get_future() for work in self._works])
                self._future = every.then(self._all_outcomes)
            return self._future

    def _all_outcomes(self, every: Any) -> list[torch.Tensor]:
        for future in every.value():
            future.value()
        return self._outputs


def _stream_of(device: Any) -> Any:
    """Returns a context in which this thread's current stream is one of torch's pool."""
    if hasattr(torch.Stream, "__enter__"):
        return torch.Stream(device=device)
    return torch.cuda.stream(torch.cuda.Stream(device=device))  # An older torch.


_NO_WAIT = "Waiting for an operation is not possible inside a done callback of another."


class _FutureInCallback(torch.futures.Future[Any]):
    """A future that was made inside a callback, where waiting would be for ever."""

    def wait(self) -> Any:
        """Returns the value.

        Raises:
            ValueError: It is not there yet, and this is a callback.
        """
        if not self.done() and _core.in_done_callback():
            raise ValueError(_NO_WAIT)
        return super().wait()


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
