"""`run`: calls a function on ranks that Spark starts."""

from __future__ import annotations

import contextlib
import importlib
import pickle
import threading
import warnings
from typing import TYPE_CHECKING, Any

from lightcc.exceptions import CollectiveTimeoutError, HorovodInternalError, ShutDownError
from lightcc.horovod.runner.cluster import rank_environment
from lightcc.runner.call import CallError, rank_input
from lightcc.runner.store import JobStore
from lightcc.spark.session import (
    Tasks,
    active_context,
    driver_host,
    num_ranks,
    start_timeout_s,
    too_late,
)
from lightcc.spark.task import STARTED, Job, RankEnd, run_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import TextIO


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
    context = active_context()
    count = num_ranks(context, num_proc)
    call = rank_input(fn, tuple(args), dict(kwargs or {}))
    store = JobStore(driver_host(context))
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
        ends = _run_stage(context, job, count, start_timeout_s(start_timeout))
    finally:
        store.stop()
    _write(ends, stdout, stderr)
    return _results(ends)


def _run_stage(context: Any, job: Job, count: int, timeout_s: float) -> list[RankEnd]:
    """Runs the barrier stage of a job; returns how the ranks ended, by rank.

    Raises:
        TimeoutError: The tasks did not all start in time.
    """
    core = importlib.import_module("lightcc._core")
    store = core.StoreClient(job.rendezvous, job.secret)
    is_late = threading.Event()

    def watch() -> None:
        with contextlib.suppress(ShutDownError, HorovodInternalError):
            try:
                store.get(STARTED, timeout_s)
            except CollectiveTimeoutError:
                is_late.set()

    def task(_: Iterator[int]) -> Iterator[RankEnd]:
        return run_rank(job)

    tasks = Tasks(context, "lightcc.spark.run", count)
    watcher = threading.Thread(target=watch, name="lightcc-spark-start", daemon=True)
    watcher.start()
    tasks.start(task, barrier=True)
    try:
        tasks.wait(unless=is_late.is_set)
    finally:
        store.close()
        watcher.join()
        tasks.cancel()  # Late, or Ctrl-C: tasks that come then find no store.
    if is_late.is_set():
        raise too_late(count, timeout_s) from tasks.error
    if tasks.error is not None:
        raise tasks.error
    return sorted(tasks.results)


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
