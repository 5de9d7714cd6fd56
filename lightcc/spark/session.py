"""The Spark application of this process, and tasks that it runs for a job."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Any

import pyspark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DEFAULT_START_TIMEOUT_S = 600.0
_POLL_S = 0.1
_CANCEL_S = 5.0


def active_context() -> Any:
    """Returns the SparkContext of this process.

    Raises:
        RuntimeError: There is none.
    """
    context = pyspark.SparkContext._active_spark_context  # noqa: SLF001  there is no other way
    if context is None:
        msg = "Could not find an active SparkContext, are you running in a PySpark session?"
        raise RuntimeError(msg)
    return context


def driver_host(context: Any) -> str:
    """Returns the address under which executors reach this process."""
    return context.getConf().get("spark.driver.host") or "127.0.0.1"


def num_ranks(context: Any, num_proc: int | None) -> int:
    """Returns `num_proc`, or Spark's own number of tasks where it is not given.

    Raises:
        ValueError: It is not positive.
    """
    count = context.defaultParallelism if num_proc is None else num_proc
    if count < 1:
        msg = f"num_proc={num_proc}: expected at least 1"
        raise ValueError(msg)
    return int(count)


def start_timeout_s(given: float | None) -> float:
    """Returns the seconds that tasks have to start.

    Raises:
        ValueError: The argument, or the variable, is no number of seconds.
    """
    text = os.environ.get("HOROVOD_SPARK_START_TIMEOUT") or str(_DEFAULT_START_TIMEOUT_S)
    try:
        value = float(text if given is None else given)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        msg = f"start_timeout={given}, HOROVOD_SPARK_START_TIMEOUT={text}: expected seconds > 0"
        raise ValueError(msg)
    return value


def too_late(ranks: int, timeout_s: float) -> TimeoutError:
    """Returns the error for tasks that did not start in time.

    Args:
        ranks: How many of them were needed.
        timeout_s: Within which time.
    """
    return TimeoutError(
        f"Timed out waiting for Spark tasks to start. {ranks} ranks need {ranks} tasks at once, "
        f"which did not all run within {timeout_s:g} s (start_timeout). Give Spark more cores, or "
        "ask for fewer ranks (num_proc)."
    )


class Tasks:
    """Tasks of one Spark job, which run in a thread of this process so that they can be cancelled.

    Attributes:
        results: What they returned, once all have.
        error: Why they did not.
    """

    def __init__(self, context: Any, name: str, count: int) -> None:
        """Prepares `count` tasks of a job that Spark shows as `name`."""
        self.results: list[Any] = []
        self.error: Exception | None = None
        self._context = context
        self._name = name
        self._count = count
        self._group = f"lightcc-{uuid.uuid4().hex}"
        self._thread: Any = None

    def start(self, task: Callable[[Iterator[int]], Iterator[Any]], *, barrier: bool) -> None:
        """Starts them.

        Args:
            task: What each runs; it yields its results.
            barrier: Whether all run at once, and fail together.
        """

        def collect() -> None:
            self._context.setJobGroup(self._group, self._name, interruptOnCancel=True)
            tasks = self._context.parallelize(range(self._count), self._count)
            try:
                stage = tasks.barrier() if barrier else tasks
                self.results = stage.mapPartitions(task).collect()
            except Exception as error:  # noqa: BLE001  it is raised in the caller's thread
                self.error = error

        self._thread = pyspark.InheritableThread(target=collect, daemon=True)
        self._thread.start()

    def wait(self, *, unless: Callable[[], bool]) -> None:
        """Returns when all have ended, or `unless()` is true."""
        while self._thread is not None and self._thread.is_alive() and not unless():
            self._thread.join(_POLL_S)

    def num_running(self) -> int:
        """Returns how many run at this moment, as far as Spark says."""
        tracker = self._context.statusTracker()
        found = 0
        for job in tracker.getJobIdsForGroup(self._group):
            about = tracker.getJobInfo(job)
            for stage in about.stageIds if about is not None else ():
                of_stage = tracker.getStageInfo(stage)
                found += of_stage.numActiveTasks if of_stage is not None else 0
        return found

    def cancel(self) -> None:
        """Ends those that have not ended. Spark may go on to wait for cores all the same."""
        if self._thread is not None and self._thread.is_alive():
            self._context.cancelJobGroup(self._group)
            self._thread.join(_CANCEL_S)
