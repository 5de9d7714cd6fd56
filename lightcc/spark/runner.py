"""`run`: calls a function on ranks that Spark starts."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import threading
import uuid
import warnings
from typing import TYPE_CHECKING, Any

import pyspark

from lightcc.exceptions import CollectiveTimeoutError, HorovodInternalError, ShutDownError
from lightcc.horovod.runner.cluster import rank_environment
from lightcc.runner.call import CallError, rank_input
from lightcc.runner.store import JobStore
from lightcc.spark.task import STARTED, Job, RankEnd, run_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import TextIO

_DEFAULT_START_TIMEOUT_S = 600.0
_POLL_S = 0.1
_CANCEL_S = 5.0


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: Iterable[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Calls `fn(*args, **kwargs)` on the ranks of a new job and returns the results by rank.

    Each rank is a fresh process of a Spark task, and `fn` calls `hvd.init()` itself. What travels
    is pickled with cloudpickle where that is installed.

    Args:
        fn: What every rank calls.
        args: Its positional arguments.
        kwargs: Its named arguments.
        num_proc: Number of ranks; `None`: `spark.default.parallelism`.
        start_timeout: Seconds until all tasks run; `None`: `HOROVOD_SPARK_START_TIMEOUT`, or 600.
        use_mpi: Without effect but for a warning.
        use_gloo: Without effect: it is what lightcc does.
        extra_mpi_args: As `use_mpi`.
        env: Variables of the ranks, beside those of the executors and the driver's own that begin
            with `LIGHT_`, `LIGHTCC_` or `HOROVOD_`.
        stdout: Gets what ranks printed, each line with its rank, when all have ended. `None`: the
            executors' logs get it at once.
        stderr: The same of standard error.
        verbose: Without effect.
        nics: Network interfaces of every executor that may be used; the first by name is.
        prefix_output_with_timestamp: Without effect.
        executable: The interpreter of the ranks; `None`: the executors' Python.

    Raises:
        ValueError: An argument is not allowed.
        TypeError: `fn` or its arguments cannot be pickled.
        RuntimeError: There is no SparkContext, or a rank failed: a
            `lightcc.runner.call.CallError`, whose `__cause__` is what `fn` raised there.
        TimeoutError: The tasks did not all start in time.
    """
    del use_gloo, verbose, prefix_output_with_timestamp
    if use_mpi or extra_mpi_args:
        text = "use_mpi and extra_mpi_args have no effect: lightcc carries the data itself"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    context = pyspark.SparkContext._active_spark_context  # noqa: SLF001  there is no other way
    if context is None:
        msg = "Could not find an active SparkContext, are you running in a PySpark session?"
        raise RuntimeError(msg)
    count = context.defaultParallelism if num_proc is None else num_proc
    if count < 1:
        msg = f"num_proc={num_proc}: expected at least 1"
        raise ValueError(msg)
    call = rank_input(fn, tuple(args), dict(kwargs or {}))
    store = JobStore(context.getConf().get("spark.driver.host") or "127.0.0.1")
    try:
        job = Job(
            call=call,
            environment=rank_environment(nics) | dict(env or {}),
            rendezvous=store.address,
            secret=store.secret,
            executable=executable,
            keeps_stdout=stdout is not None,
            keeps_stderr=stderr is not None,
        )
        ends = _Stage(context, job, count).run(_start_timeout_s(start_timeout))
    finally:
        store.stop()
    _write(ends, stdout, stderr)
    return _results(ends)


def run_elastic(*args: Any, **kwargs: Any) -> list[Any]:
    """Refuses: a barrier stage cannot change its tasks.

    Raises:
        NotImplementedError: Always.
    """
    del args, kwargs
    msg = (
        "lightcc.spark.run_elastic: this version has no elastic jobs on Spark; use run(), "
        "lightccrun --listen with lightcc-worker on the executors, or lightcc.ray"
    )
    raise NotImplementedError(msg)


class _Stage:
    """The barrier stage of a job, in a thread, so that it can be cancelled."""

    def __init__(self, context: Any, job: Job, count: int) -> None:
        self._context = context
        self._job = job
        self._count = count
        self._group = f"lightcc-{uuid.uuid4().hex}"
        self._ends: list[RankEnd] = []
        self._error: Exception | None = None

    def run(self, start_timeout_s: float) -> list[RankEnd]:
        """Returns how the ranks ended, by rank."""
        core = importlib.import_module("lightcc._core")
        store = core.StoreClient(self._job.rendezvous, self._job.secret)
        thread = pyspark.InheritableThread(target=self._collect, daemon=True)
        is_late = threading.Event()

        def watch() -> None:
            with contextlib.suppress(ShutDownError, HorovodInternalError):
                try:
                    store.get(STARTED, start_timeout_s)
                except CollectiveTimeoutError:
                    is_late.set()

        watcher = threading.Thread(target=watch, name="lightcc-spark-start", daemon=True)
        watcher.start()
        thread.start()
        try:
            while thread.is_alive() and not is_late.is_set():
                thread.join(_POLL_S)
        finally:
            store.close()
            watcher.join()
            if thread.is_alive():  # Late, or Ctrl-C.
                self._context.cancelJobGroup(self._group)
                # Spark itself may go on to wait for cores: tasks that come then find no store.
                thread.join(_CANCEL_S)
        if is_late.is_set():
            msg = (
                f"Timed out waiting for Spark tasks to start. {self._count} ranks need "
                f"{self._count} tasks at once, which did not all run within {start_timeout_s:g} s "
                "(start_timeout). Give Spark more cores, or ask for fewer ranks (num_proc)."
            )
            raise TimeoutError(msg) from self._error
        if self._error is not None:
            raise self._error
        return sorted(self._ends)

    def _collect(self) -> None:
        job = self._job

        def task(_: Iterator[int]) -> Iterator[RankEnd]:
            return run_rank(job)

        self._context.setJobGroup(self._group, "lightcc.spark.run", interruptOnCancel=True)
        tasks = self._context.parallelize(range(self._count), self._count)
        try:
            self._ends = tasks.barrier().mapPartitions(task).collect()
        except Exception as error:  # noqa: BLE001  it is raised in the caller's thread
            self._error = error


def _start_timeout_s(given: float | None) -> float:
    text = os.environ.get("HOROVOD_SPARK_START_TIMEOUT") or str(_DEFAULT_START_TIMEOUT_S)
    try:
        value = float(text if given is None else given)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        msg = f"start_timeout={given}, HOROVOD_SPARK_START_TIMEOUT={text}: expected seconds > 0"
        raise ValueError(msg)
    return value


def _write(ends: list[RankEnd], stdout: TextIO | None, stderr: TextIO | None) -> None:
    for name, stream in (("stdout", stdout), ("stderr", stderr)):
        if stream is not None:
            for end in ends:
                for line in getattr(end, name).decode(errors="replace").splitlines():
                    stream.write(f"[{end.rank}]<{name}>:{line}\n")


def _results(ends: list[RankEnd]) -> list[Any]:
    values, failed = [], []
    for end in ends:
        outcome = pickle.loads(end.outcome) if end.outcome else None  # noqa: S301  our own ranks
        if outcome is None or outcome.error is not None:
            failed.append((end, None if outcome is None else outcome.error))
        else:
            values.append(outcome.value)
    if failed:
        # What others raise because of a failure is no reason.
        end, error = min(failed, key=lambda it: isinstance(it[1], HorovodInternalError))
        text = f"rank {end.rank} on {end.host}: "
        text += f"exit code {end.code}" if error is None else f"{type(error).__name__}: {error}"
        raise CallError(text, end.rank) from error
    return values
