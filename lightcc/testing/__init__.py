"""Runs a function as several ranks, each a fresh process, for tests.

`spawn_ranks` is the whole of it for tests of what works:

    def sum_of_ranks() -> float:
        hvd.init()
        return float(hvd.allreduce(np.float32([hvd.rank()]), op=hvd.Sum)[0])

    def test_sum() -> None:
        assert spawn_ranks(sum_of_ranks, 3) == [3.0, 3.0, 3.0]

`RankProcesses` is for tests of what fails: it hands out process ids, kills and stops ranks, waits
for a point that a rank has marked, and returns each rank's result or exception. Whatever happens,
leaving the `with` block ends every rank. Functions travel by reference (module and name), so they
must be at the top level of a module; arguments and results are pickled. Ranks are never forked from
the test: no lock, thread or framework state leaks into them.

A suite with many such tests calls `warm_up("numpy", "torch")` once. Ranks are then forked from a
process that has imported these modules and done nothing else, which saves seconds for each rank.
`fresh=True` asks for a process that starts from nothing even so.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lightcc.runner.environment import make_secret, slot_environment
from lightcc.runner.hosts import number_ranks
from lightcc.runner.store import start_store
from lightcc.runner.summary import signal_name
from lightcc.testing.warm import WarmChild, WarmProcess

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
Environment = Mapping[str, str] | Sequence[Mapping[str, str]]

_DIRECTORY_VARIABLE = "LIGHTCC_TEST_DIRECTORY"
_DUMP_S = 2.0  # For a rank that hangs to print its stacks.
_AFTER_FAILURE_S = 5.0  # For other ranks to end after the first failure.
_UNKILLABLE_S = 30.0  # For the kernel to end a killed process.
_POLL_S = 0.01
_TAIL_BYTES = 8192


class RankFailedError(AssertionError):
    """A rank raised, died or hung. `rank` is the first one; `results` has all."""

    def __init__(self, message: str, rank: int, results: Sequence[RankResult[Any]]) -> None:
        super().__init__(message)
        self.rank = rank
        self.results = list(results)


@dataclass(frozen=True)
class RankResult(Generic[T]):
    """How one rank ended."""

    rank: int
    value: T | None = None  # What the function returned.
    error: BaseException | None = None  # What it raised (as text in a RuntimeError if unpicklable).
    traceback: str = ""
    exit_code: int | None = None  # Minus the signal for signals; None: it had to be killed.
    timed_out: bool = False
    output: str = ""  # The end of its standard output and error.

    @property
    def ok(self) -> bool:
        """Whether the function returned and the process ended well."""
        return self.error is None and self.exit_code == 0 and not self.timed_out

    def describe(self) -> str:
        """Returns a paragraph for a failing test's report."""
        if self.timed_out:
            what = "did not end in time; its stacks are at the end of its output"
        elif self.error is not None:
            what = f"raised {type(self.error).__name__}: {self.error}"
        elif self.exit_code is not None and self.exit_code < 0:
            what = f"was killed by {signal_name(-self.exit_code)}"
        else:
            what = f"ended with exit code {self.exit_code}"
        parts = [f"rank {self.rank} {what}"]
        if self.traceback:
            parts.append(self.traceback.rstrip())
        if self.output.strip():
            parts.append(f"-- output of rank {self.rank} --\n{self.output.rstrip()}")
        return "\n".join(parts)


def spawn_ranks(
    function: Callable[..., T],
    np: int,
    *args: object,
    env: Environment | None = None,
    timeout_s: float = 120,
    hosts: Sequence[str | int] | None = None,
    fresh: bool = False,
) -> list[T]:
    """Calls `function(*args)` on `np` ranks and returns their results in rank order.

    Args:
        function: At the top level of a module. It calls `init()` itself if it wants to.
        np: Number of ranks.
        *args: Pickled, the same for all ranks.
        env: Variables beside the inherited ones: one mapping for all ranks, or one for each.
        timeout_s: Seconds until ranks that still run are made to print their stacks and are killed.
        hosts: The emulated host of each rank; ranks of different hosts share no memory.
        fresh: Whether ranks start from nothing also after `warm_up()`.

    Raises:
        RankFailedError: A rank raised, died or hung; the text has its traceback, what it printed,
            and the command that runs the test again.
        ValueError: `function` cannot be imported by name.
    """
    with RankProcesses(function, np, *args, env=env, hosts=hosts, fresh=fresh) as processes:
        results = processes.wait(timeout_s, stop_after_failure=True)
    processes.check(results)
    return [result.value for result in results]  # type: ignore[misc]


_warm: list[tuple[str | None, WarmProcess]] = []


def warm_up(*modules: str, for_users_of: str | None = None) -> None:
    """Has ranks forked, from now on, from a process that has imported `modules` and no more.

    That process starts when the first rank needs it. It computes with one thread, and so do its
    ranks. A rank starts from nothing even so if it was asked for with `fresh=True`, or if its
    environment has other variables for the loader, the interpreter or a framework.

    Args:
        *modules: What to import; it must not start threads.
        for_users_of: Only for functions whose module uses this package, `"torch"` for instance.
            Of several calls that fit, the latest counts.
    """
    _warm.append((for_users_of, WarmProcess(modules)))


def _warm_process_for(function: Callable[..., Any]) -> WarmProcess | None:
    for package, process in reversed(_warm):
        if package is None or _uses(function, package):
            return process
    return None


def _uses(function: Callable[..., Any], package: str) -> bool:
    """Whether the module of `function` has something of `package` or its frontend."""
    roots = (package, f"lightcc.{package}")
    for value in vars(sys.modules[function.__module__]).values():
        name = value.__name__ if isinstance(value, ModuleType) else type(value).__module__
        name = getattr(value, "__module__", None) or name
        if any(name == root or str(name).startswith(f"{root}.") for root in roots):
            return True
    return False


def mark(name: str) -> None:
    """Says, in a rank, that it has come to the point `name`; see `RankProcesses.wait_mark`."""
    rank = os.environ["LIGHT_RANK"]
    (Path(os.environ[_DIRECTORY_VARIABLE]) / f"mark.{name}.{rank}").touch()


class RankProcesses(Generic[T]):
    """Ranks that can be watched and killed; use it in a `with` statement.

    Attributes:
        pids: Process id of each rank, also the id of its process group.
    """

    def __init__(
        self,
        function: Callable[..., T],
        np: int,
        *args: object,
        env: Environment | None = None,
        hosts: Sequence[str | int] | None = None,
        fresh: bool = False,
    ) -> None:
        """Prepares the call; arguments as in `spawn_ranks`. Ranks start on entering the block."""
        names = [f"host-{host}" for host in hosts] if hosts is not None else ["localhost"] * np
        environments = [env or {}] * np if env is None or isinstance(env, Mapping) else list(env)
        if len(names) != np or len(environments) != np:
            msg = f"hosts and env, if given for each rank, need {np} entries"
            raise ValueError(msg)
        self.pids: list[int] = []
        self._call = _describe_call(function)
        self._rerun = _rerun_command(self._call, np, args)
        self._arguments = pickle.dumps(args)
        self._slots = number_ranks(names)
        self._emulate_hosts = hosts is not None
        self._environments = environments
        self._directory = Path()
        self._warm = None if fresh else _warm_process_for(function)
        self._processes: list[subprocess.Popen[bytes] | WarmChild] = []
        self._waiters: list[threading.Thread] = []
        self._ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._exit_order: list[int] = []
        self._timed_out: set[int] = set()
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> RankProcesses[T]:
        with contextlib.ExitStack() as cleanup:
            self._directory = Path(tempfile.mkdtemp(prefix="lightcc-ranks-"))
            cleanup.callback(shutil.rmtree, self._directory, ignore_errors=True)
            (self._directory / "call.json").write_text(json.dumps(self._call), encoding="utf-8")
            (self._directory / "arguments.pickle").write_bytes(self._arguments)
            secret = make_secret()
            store = start_store("127.0.0.1", secret)
            cleanup.callback(store.stop)
            cleanup.callback(self._kill_all)
            for slot, extra in zip(self._slots, self._environments, strict=True):
                environment = os.environ | slot_environment(
                    slot, rendezvous=store.address, secret=secret
                )
                environment[_DIRECTORY_VARIABLE] = str(self._directory)
                if self._emulate_hosts:
                    environment["LIGHT_HOST_ID"] = slot.host
                self._start(slot.rank, environment | dict(extra))
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def kill(self, rank: int, signum: int = signal.SIGKILL) -> None:
        """Sends a signal to one rank's process, not to its children."""
        os.kill(self.pids[rank], signum)

    def stop(self, rank: int) -> None:
        """Freezes a rank (SIGSTOP): it lives, and its sockets with it, but it does nothing."""
        self.kill(rank, signal.SIGSTOP)

    def resume(self, rank: int) -> None:
        """Wakes a rank that was stopped."""
        self.kill(rank, signal.SIGCONT)

    def wait_mark(
        self, name: str, *, ranks: Sequence[int] | None = None, timeout_s: float = 30
    ) -> None:
        """Waits until `ranks` (`None`: all) have called `mark(name)`.

        Raises:
            RankFailedError: One of them ended before, or the time is up.
        """
        deadline = time.monotonic() + timeout_s
        waiting = set(range(len(self.pids)) if ranks is None else ranks)
        while True:
            over = {rank for rank in waiting if self._processes[rank].returncode is not None}
            waiting = {r for r in waiting if not (self._directory / f"mark.{name}.{r}").exists()}
            if not waiting:
                return
            late = sorted(waiting & over or waiting)
            if waiting & over or time.monotonic() > deadline:
                self._finish(set(late))
                results = [self._result(rank) for rank in late]
                msg = f"rank {late[0]} did not reach '{name}':\n{results[0].describe()}"
                raise RankFailedError(msg, late[0], results)
            time.sleep(_POLL_S)

    def wait(
        self,
        timeout_s: float = 120,
        *,
        ranks: Sequence[int] | None = None,
        stop_after_failure: bool = False,
    ) -> list[RankResult[T]]:
        """Waits for `ranks` (`None`: all) and returns how each ended, in their order; never raises.

        Args:
            timeout_s: Seconds after which ranks that still run print their stacks and are killed.
            ranks: Which ranks to wait for; the others are left alone.
            stop_after_failure: Whether a few seconds after the first failure the rest is killed.
        """
        chosen = list(range(len(self.pids)) if ranks is None else ranks)
        deadline = time.monotonic() + timeout_s
        while not set(chosen) <= set(self._exit_order):
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 or not self._take_exit(remaining_s):
                break
            if stop_after_failure and self._processes[self._exit_order[-1]].returncode != 0:
                deadline = min(deadline, time.monotonic() + _AFTER_FAILURE_S)
        self._finish(set(chosen))
        return [self._result(rank) for rank in chosen]

    def check(self, results: Sequence[RankResult[T]]) -> None:
        """Raises `RankFailedError` for the rank that failed first, if one did."""
        order = {rank: position for position, rank in enumerate(self._exit_order)}
        failed = sorted(
            (r for r in results if not r.ok), key=lambda r: order.get(r.rank, len(order))
        )
        failed.sort(key=_is_consequence)
        if not failed:
            return
        others = [f"rank {r.rank}: {r.describe().splitlines()[0]}" for r in failed[1:]]
        text = "\n".join([failed[0].describe(), *others, f"run it again: {self._rerun}"])
        raise RankFailedError(text, failed[0].rank, results)

    # -- Processes --------------------------------------------------------------------------------

    def _start(self, rank: int, environment: dict[str, str]) -> None:
        environment.setdefault("PYTHONUNBUFFERED", "1")
        # Modules are found as the test finds them.
        environment["PYTHONPATH"] = os.pathsep.join(entry or "." for entry in sys.path)
        with (self._directory / f"output.{rank}").open("wb") as output:
            process = self._start_process(rank, environment, output.fileno())
        self._processes.append(process)
        self.pids.append(process.pid)
        waiter = threading.Thread(target=self._wait_for_exit, args=(rank, process), daemon=True)
        self._waiters.append(waiter)
        waiter.start()

    def _start_process(
        self, rank: int, environment: dict[str, str], output: int
    ) -> subprocess.Popen[bytes] | WarmChild:
        module, arguments = "lightcc.testing.rank_main", [str(self._directory), str(rank)]
        if self._warm is not None and self._warm.can_start(environment):
            arguments.append(str(self._warm.pid))
            return self._warm.start(module, arguments, environment=environment, output=output)
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments, str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )

    def _wait_for_exit(self, rank: int, process: subprocess.Popen[bytes] | WarmChild) -> None:
        process.wait()
        self._ended.put(rank)

    def _take_exit(self, timeout_s: float) -> bool:
        """Waits for the next exit; returns False when none came in time."""
        try:
            self._exit_order.append(self._ended.get(timeout=timeout_s))
        except queue.Empty:
            return False
        return True

    def _finish(self, ranks: set[int]) -> None:
        """Ends those of `ranks` that still run, with their stacks in their output."""
        late = ranks - set(self._exit_order)
        late = {rank for rank in late if self._processes[rank].returncode is None}
        self._timed_out |= late
        for rank in late:
            self._signal(rank, signal.SIGUSR1)
        deadline = time.monotonic() + _DUMP_S
        while not ranks <= set(self._exit_order):
            if not self._take_exit(max(0.0, deadline - time.monotonic())):
                break
        for rank in ranks - set(self._exit_order):
            self._signal(rank, signal.SIGKILL)
        while not ranks <= set(self._exit_order):
            if not self._take_exit(_UNKILLABLE_S):
                break

    def _signal(self, rank: int, signum: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pids[rank], signum)

    def _kill_all(self) -> None:
        for rank in range(len(self.pids)):
            self._signal(rank, signal.SIGKILL)
        for waiter in self._waiters:
            waiter.join(_UNKILLABLE_S)

    def _result(self, rank: int) -> RankResult[T]:
        output = (self._directory / f"output.{rank}").read_bytes()[-_TAIL_BYTES:]
        timed_out = rank in self._timed_out
        value, error, traceback = None, None, ""
        path = self._directory / f"result.{rank}"
        if path.exists():
            kind, what, traceback = pickle.loads(path.read_bytes())  # noqa: S301 - our own rank's.
            value, error = (what, None) if kind == "value" else (None, what)
        return RankResult(
            rank=rank,
            value=value,
            error=error,
            traceback=traceback,
            exit_code=None if timed_out else self._processes[rank].returncode,
            timed_out=timed_out,
            output=output.decode(errors="replace"),
        )


def _describe_call(function: Callable[..., Any]) -> dict[str, str]:
    """Returns what `rank_main` needs to import `function`."""
    qualname = getattr(function, "__qualname__", "<object>")
    module = sys.modules.get(getattr(function, "__module__", ""))
    if "<" in qualname or module is None:
        msg = f"{qualname} is not at the top level of a module, so a rank cannot import it"
        raise ValueError(msg)
    file = Path(getattr(module, "__file__", None) or "").resolve()
    root = file.parents[module.__name__.count(".") + (file.name == "__init__.py")]
    return {"module": module.__name__, "qualname": qualname, "root": str(root), "file": str(file)}


def _is_consequence(result: RankResult[Any]) -> bool:
    """Whether the rank most likely failed because another one did: it hung, or lost a peer."""
    lost_peer = type(result.error).__name__ in {"PeerFailedError", "ShutDownError"}
    return result.timed_out or lost_peer


def _rerun_command(call: dict[str, str], np: int, args: tuple[object, ...]) -> str:
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if test:
        return shlex.join(["python", "-m", "pytest", test])
    if call["module"] == "__main__":
        return shlex.join(["python", call["file"]])
    arguments = "".join(f", {argument!r}" for argument in args)
    code = (
        f"from lightcc.testing import spawn_ranks; import {call['module']} as m; "
        f"print(spawn_ranks(m.{call['qualname']}, {np}{arguments}))"
    )
    return f"PYTHONPATH={shlex.quote(call['root'])} {shlex.join(['python', '-c', code])}"
