"""`horovod.runner.util.threads`: functions run in the background."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def in_thread(
    target: Callable[..., Any],
    args: Any = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Calls `target(*args)` in a new thread and returns the thread, started.

    Args:
        target: What to call.
        args: Its arguments.
        name: Of the thread.
        daemon: Whether the interpreter may end without it.
        silent: Whether exceptions of `target` are dropped.

    Raises:
        ValueError: `args` is not a tuple.
    """
    _check_tuple(args)

    def run() -> None:
        with contextlib.suppress(*([Exception] if silent else [])):
            target(*args)

    thread = threading.Thread(target=run, name=name, daemon=daemon)
    thread.start()
    return thread


def on_event(
    event: threading.Event,
    func: Callable[..., Any],
    args: Any = (),
    stop: threading.Event | None = None,
    check_stop_interval_s: float = 1.0,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Calls `func(*args)` in a new thread once `event` is set, unless `stop` was set before.

    Args:
        event: What to wait for.
        func: What to call.
        args: Its arguments.
        stop: Ends the waiting.
        check_stop_interval_s: How often `stop` is looked at, in seconds.
        daemon: Whether the interpreter may end without the thread.
        silent: Whether exceptions of `func` are dropped.

    Raises:
        ValueError: `args` is not a tuple.
    """
    _check_tuple(args)

    def run() -> None:
        interval = None if stop is None else check_stop_interval_s
        while not event.wait(interval):
            if stop is not None and stop.is_set():
                return
        if stop is None or not stop.is_set():
            func(*args)

    return in_thread(run, name=None, daemon=daemon, silent=silent)


def _check_tuple(args: object) -> None:
    if not isinstance(args, tuple):
        msg = f"args is a {type(args).__name__}: expected a tuple, (x,) for one argument"
        raise ValueError(msg)  # noqa: TRY004 - Horovod's type.
