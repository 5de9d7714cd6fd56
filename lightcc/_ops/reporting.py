"""Passes this rank's counters to a logger at intervals: TensorBoard, or any other."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from lightcc._ops import basics
from lightcc._stats.statistics import COUNTER, METRICS

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

_log = logging.getLogger(__name__)


class StatsReporter:
    """Calls a function with the counters until `stop()`; made by `report_stats()`."""

    def __init__(
        self, callback: Callable[[int, dict[str, float]], object], interval_s: float
    ) -> None:
        """Starts the thread; see `report_stats()`."""
        if not 0 < interval_s <= threading.TIMEOUT_MAX:
            msg = f"interval_s is {interval_s!r}: expected a number of seconds > 0"
            raise ValueError(msg)
        self._callback = callback
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._before = basics.stats().scalars()
        self._before_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="lightcc-stats", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Reports once more, and then never again. Idempotent."""
        if not self._stopped.is_set():
            self._stopped.set()
            if self._thread is not threading.current_thread():
                self._thread.join()

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stops."""
        self.stop()

    def _run(self) -> None:
        while True:
            is_last = self._stopped.wait(self._interval_s)
            try:
                now = basics.stats().scalars()
            except ValueError:  # There is no world any more.
                self._stopped.set()
                return
            values = now | self._rates(now)
            try:
                self._callback(int(now["steps"]), values)
            except Exception:  # noqa: BLE001 - a logger's failure must not end the training.
                _log.exception("the callback of report_stats() failed; it is not called again")
                self._stopped.set()
                return
            if is_last:
                return

    def _rates(self, now: dict[str, float]) -> dict[str, float]:
        passed_s = max(time.monotonic() - self._before_s, 1e-9)
        rates = {
            f"{metric.name}_per_second": (now[metric.name] - self._before[metric.name]) / passed_s
            for metric in METRICS
            if metric.kind == COUNTER
        }
        self._before, self._before_s = now, time.monotonic()
        return rates


def report_stats(
    callback: Callable[[int, dict[str, float]], object], interval_s: float = 10.0
) -> StatsReporter:
    """Calls `callback(step, values)` at intervals, in a thread of its own.

    Args:
        callback: Gets the number of steps of DistributedOptimizers, and a dictionary: this rank's
            numbers of `stats()` by name, and of counters also what they gained, as
            `..._per_second`. Where it raises, the log says so and it is not called again.
        interval_s: Seconds between two calls.

    Returns:
        An object with `stop()`, and a context manager. It ends with the world, too.

    Raises:
        ValueError: lightcc is not initialized, or `interval_s` is not a number > 0.
        TypeError: `callback` cannot be called.

    Example:
        >>> import lightcc as hvd
        >>> hvd.init()
        >>> seen = []
        >>> with hvd.report_stats(lambda step, values: seen.append(values)):
        ...     pass
        >>> "payload_bytes_per_second" in seen[0]
        True
    """
    _check_callback(callback)
    return StatsReporter(callback, interval_s)


def _check_callback(callback: object) -> None:
    if not callable(callback):
        msg = f"callback is {callback!r}: expected a function of a step and a dictionary"
        raise TypeError(msg)
