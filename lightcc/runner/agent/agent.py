"""The agent: one per host, the parent of the host's ranks.

It reads one job from standard input, starts the ranks, sends their output and exits to standard
output as frames, and obeys signals. End of file on standard input means that the launcher or the
connection is gone: the ranks are then ended, so that nothing outlives the job. Should the agent
itself be killed, PR_SET_PDEATHSIG ends the ranks.

A worker that has dialled in (`worker`) is the same over a sealed connection. SIGTERM drains it: the
launcher is asked to take its ranks elsewhere, and what is left after a grace period is ended.

One thread and one selector; no call blocks. A rank is a session of its own, and what is signalled
is always its process group. A rank's first process is reaped only when the job ends or the launcher
stops the rank, because as long as it is a zombie its group's number cannot belong to somebody else.

Workers of an elastic job inherit files in memory for commits, which live as long as the agent
(`lightcc/_discovery/kept_commits.py`).

A job may have an input (`functions`): every rank then finds it on its standard input, and may
write a result to one more pipe. Else a rank may have the launcher's own (`stdin_fd`).

Started by path with `python -I -S` (locally) or as `lightcc.runner.agent.remote`, so it imports
nothing but the standard library and `frames`. It does not handle a rank's descendants that leave
the process group (daemons): those are on their own.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import json
import math
import os
import selectors
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __package__:
    from lightcc.runner.agent import frames
else:  # Started by path.
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import frames  # type: ignore[import-not-found, no-redef, unused-ignore]

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightcc.runner.dial.seal import Seal

TERMINATE_GRACE_S = 5.0  # From SIGTERM to SIGKILL, where a rank has failed.
#: What ranks get that the launcher or the agent gets.
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
KILL_GRACE_S = 5.0  # From SIGKILL to giving up on what the kernel cannot kill.
DRAIN_S = 0.5  # How long output may follow the exit of the process that wrote it.
_CHUNK_BYTES = 65536
_MAX_BACKLOG_BYTES = (
    1 << 20
)  # Above this, ranks are no longer read: they wait, as for a slow terminal.
_GROUP_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class _Rank:
    """One started rank."""

    def __init__(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        self.rank = rank
        self.process = process
        self.pipes: dict[int, int] = {}  # Open ones; once it has exited, what it left in each.
        self.result_fd: int | None = None  # The reading end, while it is open.
        self.exit_code: int | None = None  # Known once the process has exited.
        self.report_by = 0.0  # From then on a descendant's output is not waited for.
        self.reported = False
        self.group_gone = False
        self.stopped = False  # The launcher does not want it any more.
        self.kill_at = math.inf

    def check_exit(self) -> bool:
        """Learns of the exit without reaping; returns whether it is news."""
        if self.exit_code is not None:
            return False
        result = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            return False
        exited = result.si_code == os.CLD_EXITED
        self.exit_code = result.si_status if exited else -result.si_status
        self.report_by = time.monotonic() + DRAIN_S
        self.pipes = {fd: _readable_bytes(fd) for fd in self.pipes}
        return True

    def is_drained(self, now: float) -> bool:
        """Returns whether all that it wrote has been read, as far as its exit shows."""
        return not self.pipes or (now >= self.report_by and max(self.pipes.values()) <= 0)

    def signal_group(self, signum: int) -> None:
        if not self.group_gone:
            try:
                os.killpg(self.process.pid, signum)
            except ProcessLookupError:
                self.group_gone = True
            except PermissionError:
                pass  # A setuid program: its end cannot be hurried.

    def check_group(self) -> None:
        """Reaps what has exited of the group and learns whether anything is left of it."""
        if self.exit_code is None or self.group_gone:
            return
        self.process.wait()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-self.process.pid, os.WNOHANG)[0]:
                pass
        self.signal_group(0)


def _readable_bytes(fd: int) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return count[0]


def _die_with_parent(parent: int) -> Callable[[], None]:
    """Returns what the child runs between fork and exec."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # The agent died before prctl took effect.
            os._exit(1)

    return in_child


class Agent:
    """The whole program. `run` returns when every rank and its group are gone."""

    def __init__(
        self,
        stdin_fd: int,
        stdout_fd: int,
        *,
        seal: Seal | None = None,
        drain_grace_s: float | None = None,
    ) -> None:
        """Prepares the program.

        Args:
            stdin_fd: Whence the launcher's frames come.
            stdout_fd: Where frames for the launcher go.
            seal: Of a connection that strangers may change.
            drain_grace_s: How long SIGTERM leaves the ranks for a good end. `None`: it ends them.
        """
        self._stdin_fd = stdin_fd
        self._stdout_fd = stdout_fd
        self._seal = seal
        self._drain_grace_s = drain_grace_s
        self._grace_s = TERMINATE_GRACE_S  # After SIGTERM; the job says it.
        self._drained_by: float | None = None
        self._dismissed = False
        self._selector = selectors.DefaultSelector()
        self._reader = frames.FrameReader()
        self._out = bytearray()
        self._launcher_gone = False
        self._input_fd: int | None = None
        self._commit_fds: tuple[int, ...] = ()
        self._ranks: list[_Rank] = []
        self._paused: list[tuple[int, Callable[[], None]]] = []
        self._ending = False
        self._kill_at = 0.0
        self._give_up_at = 0.0

    # -- The loop ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Serves one job to its end."""
        wakeup_read, wakeup_write = os.pipe()
        for fd in (self._stdin_fd, self._stdout_fd, wakeup_read, wakeup_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, *PASSED_ON):
            signal.signal(signum, lambda _signum, _frame: None)
        self._selector.register(
            wakeup_read, selectors.EVENT_READ, lambda: self._on_signals(wakeup_read)
        )
        self._selector.register(self._stdin_fd, selectors.EVENT_READ, self._on_stdin)
        hello = {
            "hostname": os.uname().nodename,
            "python": sys.version.split()[0],
            "cores": len(os.sched_getaffinity(0)),
        }
        self._put(frames.MAGIC)
        self._send(frames.HELLO, 0, json.dumps(hello).encode())
        while not self._finished():
            for key, _ in self._selector.select(self._timeout_s()):
                key.data()
            self._advance()

    @property
    def left_in_order(self) -> bool:
        """Whether the launcher said that the job is over, or this host was asked to leave."""
        return self._dismissed or self._drained_by is not None

    def _finished(self) -> bool:
        if not self._ending:
            return False
        given_up = time.monotonic() >= self._give_up_at
        ranks_gone = all(rank.group_gone and rank.reported for rank in self._ranks)
        return given_up or (ranks_gone and (self._launcher_gone or not self._out))

    def _timeout_s(self) -> float | None:
        now = time.monotonic()
        times = [
            rank.report_by - now
            for rank in self._ranks
            if rank.exit_code is not None
            and not rank.reported
            and (rank.report_by > now or rank.is_drained(now))  # Due since _advance() looked.
        ]
        times += [max(_GROUP_POLL_S, r.kill_at - now) for r in self._ranks if r.kill_at < math.inf]
        if self._ending:
            times.append(_GROUP_POLL_S)
        elif self._drained_by is not None:
            times.append(self._drained_by - now)
        return max(0.0, min(times)) if times else None

    def _advance(self) -> None:
        """Does what time and exits ask for."""
        now = time.monotonic()
        for rank in self._ranks:
            rank.check_exit()
            if rank.exit_code is not None and not rank.reported and rank.is_drained(now):
                rank.reported = True
                self._read_result(rank, to_the_end=True)
                self._send(frames.EXIT, rank.rank, str(rank.exit_code).encode())
        for rank in [rank for rank in self._ranks if rank.stopped]:
            self._advance_stop(rank, now)
        if self._drained_by is not None and (not self._ranks or now >= self._drained_by):
            self._end(TERMINATE_GRACE_S)
        if self._ending:
            if now >= self._kill_at:
                self._signal_all(signal.SIGKILL)
                self._kill_at = self._give_up_at
            for rank in self._ranks:
                rank.check_group()
        if self._paused and len(self._out) < _MAX_BACKLOG_BYTES // 2:
            for fd, callback in self._paused:
                self._selector.register(fd, selectors.EVENT_READ, callback)
            self._paused.clear()

    def _advance_stop(self, rank: _Rank, now: float) -> None:
        if rank.reported:  # What it left behind ends with it.
            rank.signal_group(signal.SIGKILL)
            rank.process.wait()
            self._ranks.remove(rank)
        elif now >= rank.kill_at:
            rank.signal_group(signal.SIGKILL)
            rank.kill_at = math.inf

    # -- From the launcher ------------------------------------------------------------------------

    def _on_signals(self, fd: int) -> None:
        signums = set(os.read(fd, 4096)) - {int(signal.SIGCHLD)}
        for signum in signums.intersection(PASSED_ON):
            self._signal_all(signum)
        if not signums.difference(PASSED_ON):
            return
        if self._drain_grace_s is None:
            self._end(self._grace_s if signal.SIGTERM in signums else TERMINATE_GRACE_S)
        elif self._drained_by is not None:
            self._end(TERMINATE_GRACE_S)
        else:
            self._drained_by = time.monotonic() + self._drain_grace_s
            self._send(frames.DRAIN, 0, b"")

    def _on_stdin(self) -> None:
        try:
            data = os.read(self._stdin_fd, _CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(self._stdin_fd)
            self._end(TERMINATE_GRACE_S)
            return
        try:
            opened = data if self._seal is None else self._seal.unwrap(data)
            for frame in self._reader.feed(opened):
                self._on_frame(frame)
        except (frames.FrameError, ValueError, KeyError, TypeError) as error:
            self._fail(f"the launcher sent something unusable: {error}")

    def _on_frame(self, frame: frames.Frame) -> None:
        if frame.kind == frames.JOB:
            self._start(json.loads(frame.payload))
        elif frame.kind == frames.INPUT:
            self._keep_input(frame.payload)
        elif frame.kind == frames.STOP:
            self._stop(frame.rank)
        elif frame.kind == frames.SIGNAL:
            self._signal_all(frame.rank)
        elif frame.kind == frames.PING:
            self._send(frames.PONG, 0, b"")
        elif frame.kind in (frames.TERMINATE, frames.KILL, frames.BYE):
            self._dismissed = True
            if frame.kind == frames.KILL:
                self._end(0.0)
            elif frame.kind == frames.TERMINATE:
                self._end(self._grace_s if frame.rank else TERMINATE_GRACE_S)

    def _end(self, grace_s: float) -> None:
        """Ends all ranks: SIGTERM now and SIGKILL after `grace_s`. May be called again to hurry."""
        kill_at = time.monotonic() + grace_s
        if not self._ending:
            self._ending = True
            # What a dying rank leaves behind becomes our child, not that of a perhaps slow init.
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            self._signal_all(signal.SIGTERM)
            self._signal_all(signal.SIGCONT)  # A stopped process would not see it.
            self._kill_at = kill_at
        self._kill_at = min(self._kill_at, kill_at)
        self._give_up_at = self._kill_at + KILL_GRACE_S

    def _stop(self, number: int) -> None:
        for rank in self._ranks:
            if rank.rank == number and not rank.stopped:
                rank.stopped = True
                if rank.exit_code is None:
                    rank.signal_group(signal.SIGTERM)
                    rank.signal_group(signal.SIGCONT)  # A stopped process would not see it.
                    rank.kill_at = time.monotonic() + TERMINATE_GRACE_S

    def _signal_all(self, signum: int) -> None:
        for rank in self._ranks:
            rank.signal_group(signum)

    # -- Ranks ------------------------------------------------------------------------------------

    def _keep_input(self, data: bytes) -> None:
        if self._input_fd is None:
            self._input_fd = os.memfd_create("lightcc-input")
        with os.fdopen(os.dup(self._input_fd), "ab") as file:
            file.write(data)

    def _open_commits(self) -> None:
        """Makes the files for commits, once."""
        if not self._commit_fds:
            names = (f"lightcc-commit-{name}" for name in ("index", "a", "b"))
            self._commit_fds = tuple(map(os.memfd_create, names))

    def _start(self, job: dict[str, Any]) -> None:
        if self._ending:
            return
        try:
            os.chdir(job["cwd"])
        except OSError as error:
            self._fail(f"cannot change to the working directory {job['cwd']}: {error.strerror}")
            return
        self._grace_s = float(job["grace_s"])
        in_child = _die_with_parent(os.getpid())
        for entry in job["ranks"]:
            defaults: dict[str, str] = job.get("defaults", {}) | entry.get("defaults", {})
            environment = defaults | os.environ | job["environment"] | entry["environment"]
            rank = int(entry["rank"])
            if "LIGHT_WORKER" in entry["environment"]:
                self._open_commits()
                fds = ",".join(map(str, self._commit_fds))
                environment = environment | {"LIGHT_COMMIT_FDS": fds}
            stdin = entry.get("stdin_fd", os.devnull)
            self._start_rank(rank, job["command"], environment, in_child, stdin)

    def _start_rank(
        self,
        rank: int,
        command: list[str],
        environment: dict[str, str],
        in_child: Callable[[], None],
        stdin_from: str | int,
    ) -> None:
        result: tuple[int, int] | None = None
        if self._input_fd is not None:
            stdin_from = f"/proc/self/fd/{self._input_fd}"
            result = os.pipe()
            environment = environment | {frames.RESULT_FD: str(result[1])}
        try:
            # A path is opened for each rank, so that each reads from the beginning.
            with open(stdin_from, "rb", buffering=0) as stdin:  # noqa: PTH123  or a descriptor
                process = subprocess.Popen(
                    command,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=environment,
                    start_new_session=True,
                    pass_fds=self._commit_fds + (() if result is None else result[1:]),
                    preexec_fn=in_child,  # Safe: this process has one thread.
                )
        except OSError as error:
            if result is not None:
                os.close(result[0])
            hint = f"; did you mean python {command[0]}?" if command[0].endswith(".py") else ""
            text = f"lightccrun: cannot run '{command[0]}': {error.strerror}{hint}\n"
            self._send(frames.STDERR, rank, text.encode())
            code = 127 if isinstance(error, FileNotFoundError) else 126
            self._send(frames.EXIT, rank, str(code).encode())
            return
        finally:
            if result is not None:
                os.close(result[1])
        started = _Rank(rank, process)
        self._ranks.append(started)
        if result is not None:
            self._watch_result(started, result[0])
        for pipe, kind in ((process.stdout, frames.STDOUT), (process.stderr, frames.STDERR)):
            if pipe is not None:
                self._watch(started, pipe.fileno(), kind)

    def _watch(self, rank: _Rank, fd: int, kind: bytes) -> None:
        os.set_blocking(fd, False)

        def on_output() -> None:
            if len(self._out) >= _MAX_BACKLOG_BYTES:
                self._selector.unregister(fd)
                self._paused.append((fd, on_output))
                return
            try:
                data = os.read(fd, _CHUNK_BYTES)
            except BlockingIOError:
                return
            if data:
                self._send(kind, rank.rank, data)
                rank.pipes[fd] -= len(data)
            else:
                self._selector.unregister(fd)
                del rank.pipes[fd]

        rank.pipes[fd] = 0
        self._selector.register(fd, selectors.EVENT_READ, on_output)

    def _watch_result(self, rank: _Rank, fd: int) -> None:
        os.set_blocking(fd, False)
        rank.result_fd = fd

        def on_result() -> None:
            if rank.result_fd is None:  # Read to the end by an event of the same round.
                return
            if len(self._out) >= _MAX_BACKLOG_BYTES:
                self._selector.unregister(fd)
                self._paused.append((fd, on_result))
            else:
                self._read_result(rank, to_the_end=False)

        self._selector.register(fd, selectors.EVENT_READ, on_result)

    def _read_result(self, rank: _Rank, *, to_the_end: bool) -> None:
        """Passes on what the rank has written of its result; all of it, if the rank has exited."""
        fd = rank.result_fd
        if fd is None:
            return
        while True:
            try:
                data = os.read(fd, _CHUNK_BYTES)
            except BlockingIOError:
                if to_the_end:
                    break  # A descendant holds the pipe open, but the rank has written all it had.
                return
            if not data:
                break
            self._send(frames.RESULT, rank.rank, data)
            if not to_the_end:
                return
        rank.result_fd = None
        self._paused = [entry for entry in self._paused if entry[0] != fd]
        if fd in self._selector.get_map():
            self._selector.unregister(fd)
        os.close(fd)

    # -- To the launcher --------------------------------------------------------------------------

    def _fail(self, text: str) -> None:
        self._send(frames.FATAL, 0, text.encode())
        self._end(TERMINATE_GRACE_S)

    def _send(self, kind: bytes, rank: int, payload: bytes) -> None:
        if self._launcher_gone:
            return
        self._put(frames.encode(kind, rank, payload))
        self._flush()
        if self._out and self._stdout_fd not in self._selector.get_map():
            self._selector.register(self._stdout_fd, selectors.EVENT_WRITE, self._flush)

    def _put(self, data: bytes) -> None:
        self._out += data if self._seal is None else self._seal.wrap(data)

    def _flush(self) -> None:
        try:
            while self._out:
                del self._out[: os.write(self._stdout_fd, self._out)]
        except BlockingIOError:
            return
        except OSError:
            self._launcher_gone = True
            self._out.clear()
            self._end(TERMINATE_GRACE_S)
        if self._stdout_fd in self._selector.get_map():
            self._selector.unregister(self._stdout_fd)


def main() -> int:
    """Runs one job from standard input."""
    Agent(sys.stdin.fileno(), sys.stdout.fileno()).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
