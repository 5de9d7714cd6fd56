"""Futures of operations, and where collectives belong that their callbacks start.

A callback runs at once where its operation is done already, or else on another thread, while the
program starts other operations. Ranks differ in that. So what the callbacks of one operation start
has a sequence of its own, in which ranks match it whenever it is started.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from lightcc._binding import _core

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# torch's type has methods without types.
_TorchFuture: Any = torch.futures.Future

_thread = threading.local()


def sequence() -> str | None:
    """Returns the sequence of what this thread starts; `None` where it runs no callback."""
    return getattr(_thread, "sequence", None)


@contextlib.contextmanager
def _numbered_in(name: str | None) -> Iterator[None]:
    before, _thread.sequence = sequence(), name
    try:
        yield
    finally:
        _thread.sequence = before


class Future(_TorchFuture):  # type: ignore[misc]
    """A future whose callbacks may wait for operations that they start.

    Errors are raised by `wait()` and `value()` as they are. C++ knows values only: there an error
    becomes a RuntimeError that names its class.
    """

    def __init__(
        self, sequence: str | None, drive: Callable[[], object], devices: Sequence[Any] = ()
    ) -> None:
        """Makes a future that nobody has completed.

        Args:
            sequence: Of the collectives that its callbacks start.
            drive: Returns when what it depends on is done, or raises. It waits on any thread.
            devices: Where the tensors of its value lie, but for the CPU.
        """
        super().__init__(devices=list(devices))
        self._sequence = sequence
        self._drive = drive
        self._devices = devices

    def wait(self) -> Any:
        """Waits, and returns the value or raises the error."""
        if not self.done():
            _core.let_other_callbacks_run()
            self._drive()
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> Future:
        """Returns a future of what `callback(self)` will have returned."""
        following = Future(self._sequence, self._await, self._devices)

        def run(_: Any) -> None:
            try:
                with _numbered_in(self._sequence):
                    value = callback(self)
            except Exception as error:  # noqa: BLE001  whatever it is belongs to who waits
                following.fail(error)
            else:
                following.set_result(value)

        super().add_done_callback(run)
        return following

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Has `callback(self)` called once, when this is done."""

        def run(_: Any) -> None:
            with _numbered_in(self._sequence):
                callback(self)

        super().add_done_callback(run)

    def fail(self, error: Exception) -> None:
        """Completes it with an error."""
        self._set_unwrap_func(_raise)
        self.set_result(_Failure(error))

    def _await(self) -> None:
        with contextlib.suppress(Exception):  # It is whoever waits for the future that raises it.
            self.wait()


class _Failure:
    """An error in the place of a value.

    DDP's C++ does not ask whether a value is one. It shows it in an error where it is no tensor, or
    pickles it to find tensors.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __str__(self) -> str:
        return f"{type(self.error).__name__}: {self.error}"

    def __reduce__(self) -> NoReturn:
        raise self.error


def _raise(value: Any) -> None:
    if isinstance(value, _Failure):
        raise value.error
