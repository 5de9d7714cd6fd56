"""`run_elastic`: an elastic job whose workers are tasks of Spark.

The launcher runs beside the driver, as `lightccrun --listen` does. Each task is a `lightcc-worker`
that dials in with one slot, so that a task that Spark starts again joins the job again.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightcc.horovod.runner.cluster import rank_environment
from lightcc.runner.arguments import ArgumentsError, LaunchOptions, checked, make_parser
from lightcc.runner.call import CallError, call_on_ranks
from lightcc.runner.environment import make_secret
from lightcc.spark.session import (
    Tasks,
    active_context,
    driver_host,
    num_ranks,
    start_timeout_s,
    too_late,
)
from lightcc.spark.task import RANK_COMMAND, WorkerJob, serve_worker

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import TextIO

_POLL_S = 0.1
_ANY_PORT = 0
_LEAVE_S = 5.0  # For tasks whose worker has been told that the job is over.


def run_elastic(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: Iterable[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls `fn(*args, **kwargs)` on elastic ranks and returns the results by their last ranks.

    `fn` calls `hvd.init()` and wraps its training in `hvd.elastic.run`. Each rank is a process of a
    Spark task. Ranks go on without those that fail, and take in those that Spark starts instead.

    Args:
        fn: What every rank calls.
        args: Its positional arguments.
        kwargs: Its named arguments.
        num_proc: Number of ranks to begin with; `None`: `spark.default.parallelism`.
        min_num_proc: Ranks without which the job does not go on; `None`: `num_proc`.
        max_num_proc: Ranks at most, and tasks that Spark is asked for; `None`: `num_proc`.
        start_timeout: Seconds until `num_proc` tasks run; `None`: `HOROVOD_SPARK_START_TIMEOUT`, or
            600.
        elastic_timeout: Seconds that there may be too few ranks; `None`: 600.
        reset_limit: How often the ranks may change; `None`: always.
        env: Variables of the ranks, beside those of the executors and the driver's own that begin
            with `LIGHT_`, `LIGHTCC_` or `HOROVOD_`.
        stdout: Gets what ranks print, each line with its worker, at once. `None`: standard output.
        stderr: The same of standard error, with what the launcher says.
        verbose: 2 and more: the launcher tells what it does.
        nics: Network interfaces of every executor that may be used; the first by name is.
        prefix_output_with_timestamp: Whether lines begin with the time, too.
        min_np: Old spelling of `min_num_proc`.
        max_np: Old spelling of `max_num_proc`.

    Returns:
        What the ranks of the last world returned, `min_num_proc` of them at least.

    Raises:
        ValueError: An argument is not allowed.
        TypeError: `fn` or its arguments cannot be pickled.
        RuntimeError: There is no SparkContext, Spark gave up, or the job could not go on: a
            `lightcc.runner.call.CallError`, whose `__cause__` is what `fn` raised, if it did.
        TimeoutError: `num_proc` tasks did not start in time.
    """
    for old, value in (("min_np", min_np), ("max_np", max_np)):
        if value is not None:
            text = f"{old} is deprecated, use {old.replace('np', 'num_proc')} instead"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
    context = active_context()
    count = num_ranks(context, num_proc)
    asked = make_parser().parse_args([])
    asked.num_proc = count
    asked.min_num_proc = (min_np if min_num_proc is None else min_num_proc) or count
    asked.max_num_proc = (max_np if max_num_proc is None else max_num_proc) or count
    asked.elastic_timeout, asked.reset_limit = elastic_timeout, reset_limit
    asked.verbose, asked.prefix_output_with_timestamp = verbose > 1, prefix_output_with_timestamp
    asked.listen = f"{driver_host(context)}:1"
    asked.command = list(RANK_COMMAND)
    try:
        options = checked(asked)
    except ArgumentsError as error:
        raise ValueError(_in_words_of_python(str(error))) from None
    assert isinstance(options, LaunchOptions)  # noqa: S101 - there is a command
    options.environment.update(rank_environment(nics) | dict(env or {}))
    with tempfile.TemporaryDirectory(prefix="lightcc-spark-") as folder:
        job = _ElasticJob(context, options, count, asked.max_num_proc, Path(folder))
        timeout_s = start_timeout_s(start_timeout)
        return job.run(fn, tuple(args), dict(kwargs or {}), (stdout, stderr), timeout_s)


class _ElasticJob:
    """The launcher, a process of its own, and the tasks that dial in to it."""

    def __init__(
        self, context: Any, options: LaunchOptions, first: int, max_tasks: int, folder: Path
    ) -> None:
        """Prepares the job.

        Args:
            context: The Spark application.
            options: Of the launcher; the port is replaced.
            first: Ranks to begin with.
            max_tasks: Tasks to ask for.
            folder: A private one.
        """
        self._secret, self._address = make_secret(), folder / "address"
        secret_file = folder / "secret"
        secret_file.touch(mode=0o600)
        secret_file.write_text(self._secret, encoding="ascii")
        assert options.listen is not None  # noqa: S101 - asked for above
        listen = replace(
            options.listen, port=_ANY_PORT, secret_file=secret_file, address_file=self._address
        )
        self._options = replace(options, listen=listen)
        self._first = first
        self._tasks = Tasks(context, "lightcc.spark.run_elastic", max_tasks)
        self._launcher: subprocess.Popen[bytes] | None = None
        self._is_over = threading.Event()
        self._is_late = False

    def run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        streams: tuple[TextIO | None, TextIO | None],
        timeout_s: float,
    ) -> list[Any]:
        """Runs it to its end; parameters as of `run_elastic`."""
        watcher = threading.Thread(
            target=self._watch, args=(timeout_s,), name="lightcc-spark-tasks", daemon=True
        )

        def on_start(launcher: subprocess.Popen[bytes]) -> None:
            self._launcher = launcher
            watcher.start()

        out, err = streams[0] or sys.stdout, streams[1] or sys.stderr
        try:
            values = call_on_ranks(function, args, kwargs, self._options, (out, err), on_start)
            self._let_tasks_end()
        except CallError as error:
            if self._is_late:
                raise too_late(self._first, timeout_s) from None
            if self._tasks.error is not None:
                msg = f"Spark gave up the tasks of the elastic job: {self._tasks.error}"
                raise RuntimeError(msg) from error
            raise
        else:
            return values
        finally:
            self._is_over.set()
            if watcher.ident is not None:
                watcher.join()
            self._tasks.cancel()

    def _watch(self, timeout_s: float) -> None:
        """Starts the tasks when the launcher listens, and ends it when they cannot go on."""
        while not self._address.exists():
            if self._is_over.wait(_POLL_S):
                return
        job = WorkerJob(self._address.read_text(encoding="utf-8"), self._secret)

        def task(_: Iterator[int]) -> Iterator[int]:
            return serve_worker(job)

        self._tasks.start(task, barrier=False)
        until = time.monotonic() + timeout_s
        while not self._is_over.is_set() and self._tasks.num_running() < self._first:
            if time.monotonic() > until or self._tasks.error is not None:
                self._is_late = self._tasks.error is None
                self._end_launcher()
                return
            self._is_over.wait(_POLL_S)
        self._tasks.wait(unless=self._is_over.is_set)
        if self._tasks.error is not None:
            self._end_launcher()

    def _let_tasks_end(self) -> None:
        leave_by = time.monotonic() + _LEAVE_S
        self._tasks.wait(unless=lambda: time.monotonic() > leave_by)

    def _end_launcher(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._launcher is not None:
                self._launcher.terminate()


def _in_words_of_python(text: str) -> str:
    """Names arguments as `run_elastic` does, where the launcher would name its flags."""
    names = {"--min-np": "min_num_proc", "--max-np": "max_num_proc", "-np": "num_proc"}
    names |= {"--reset-limit": "reset_limit", "--elastic-timeout": "elastic_timeout"}
    for flag, name in names.items():
        text = text.replace(flag, name)
    return text
