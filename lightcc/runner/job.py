"""One job on the launcher's side: a loop over the agents' pipes, signals and three deadlines.

The job moves through: reaching the hosts (bounded by --start-timeout), running, and ending. It
starts to end when every rank has exited, when the first one has failed (after a moment in which
the others may fail by themselves, which shows who was first), or when a signal asks for it. Ctrl-C
passes SIGINT on once; ranks that are still there `INTERRUPT_GRACE_S` later, or at a second Ctrl-C,
are killed. SIGTERM gives them `--grace`, and SIGUSR1 and SIGUSR2 are passed on. Agents do the
killing, with their own deadlines, even when the launcher is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import sys
import time
from typing import TYPE_CHECKING

from lightcc.runner.agent import agent, frames
from lightcc.runner.output import TRACEBACK_S, RankStream, Sink
from lightcc.runner.summary import (
    RankEnd,
    early_leaver,
    failure_lines,
    first_failure,
    hint,
    signal_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from lightcc.runner.agent.link import Link
    from lightcc.runner.arguments import LaunchOptions

FAILURE_GRACE_S = 0.5  # For others to fail by themselves after the first failure.
INTERRUPT_GRACE_S = 10.0  # From the first Ctrl-C to SIGTERM.
_LEAVE_S = agent.TERMINATE_GRACE_S + agent.KILL_GRACE_S + 5.0  # For agents to end everything.
_CHUNK_BYTES = 65536
_MAX_TEXT = 1000
_OF_RANKS = (frames.STDOUT, frames.STDERR, frames.RESULT, frames.EXIT)
_KILL_AT_ONCE = 3  # This many Ctrl-C end even a launcher whose terminal is blocked.


class Job:
    """Runs to the end and returns the exit code."""

    def __init__(self, options: LaunchOptions, links: list[Link]) -> None:
        """Takes over `links`, whose agents have been started."""
        self._options = options
        self._links = links
        self._selector = selectors.DefaultSelector()
        self._host_of_rank = {slot.rank: slot.host for slot in options.slots}
        self._losses: list[str] = []  # Which output could not be written.
        self._out = Sink(sys.stdout.buffer, "standard output", self._on_loss)
        self._err = Sink(sys.stderr.buffer, "standard error", self._on_loss)
        self._streams: dict[tuple[int, bytes], RankStream] = {}
        width = len(str(len(options.slots) - 1))
        for slot in options.slots:
            self._open_streams(slot.rank, f"rank.{slot.rank:0{width}d}")
        self.results: dict[int, bytearray] = {}  # What ranks wrote to their result pipes.
        self._failures: list[RankEnd] = []
        self._ended = 0  # Ranks that failed because the launcher ended them.
        self._error = ""  # Why the job failed, when it was not a rank.
        self._signal: int | None = None
        self._interrupts = 0
        self._ending = False
        self._closing = False
        self._deadlines: list[tuple[float, Callable[[], None]]] = []

    # -- The loop ---------------------------------------------------------------------------------

    def run(self) -> int:
        """Serves agents and signals until every agent has left."""
        wakeup_read, wakeup_write = os.pipe()
        os.set_blocking(wakeup_read, False)
        os.set_blocking(wakeup_write, False)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *agent.PASSED_ON):
            if signal.getsignal(signum) is not signal.SIG_IGN:  # As under nohup.
                signal.signal(signum, self._in_handler)
        self._selector.register(
            wakeup_read, selectors.EVENT_READ, lambda: self._on_signals(wakeup_read)
        )
        for link in self._links:
            self._watch(link)
        self._after(self._options.start_timeout_s, self._on_start_timeout)
        try:
            while not self._is_over():
                for key, _ in self._selector.select(self._timeout_s()):
                    key.data()
                self._run_deadlines()
        except BrokenPipeError:  # Whoever read our output has left.
            self._send_all(frames.KILL)
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 128 + signal.SIGPIPE
        finally:
            for link in self._links:
                link.close_stdin()
        return self._report()

    def _is_over(self) -> bool:
        return all(link.gone for link in self._links)

    def _watch(self, link: Link) -> None:
        register = self._selector.register
        register(link.stdout_fd, selectors.EVENT_READ, lambda: self._on_stdout(link))
        if link.stderr_fd >= 0:
            register(link.stderr_fd, selectors.EVENT_READ, lambda: self._on_stderr(link))
        self._flush(link)

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._deadlines.append((time.monotonic() + seconds, action))

    def _timeout_s(self) -> float | None:
        if not self._deadlines:
            return None
        return max(0.0, min(when for when, _ in self._deadlines) - time.monotonic())

    def _run_deadlines(self) -> None:
        now = time.monotonic()
        due = [action for when, action in self._deadlines if when <= now]
        self._deadlines = [entry for entry in self._deadlines if entry[0] > now]
        for action in due:
            action()

    # -- Signals ----------------------------------------------------------------------------------

    def _in_handler(self, signum: int, _frame: FrameType | None) -> None:
        if signum == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts >= _KILL_AT_ONCE:
                os._exit(128 + signum)  # The agents see end of file and end the ranks.

    def _on_signals(self, fd: int) -> None:
        for signum in os.read(fd, 4096):
            if signum in agent.PASSED_ON:
                self._send_all(frames.SIGNAL, signum)
                continue
            again = self._signal is not None
            self._signal = self._signal or signum
            if again:
                self._send_all(frames.KILL)
            elif signum == signal.SIGINT and all(link.ready for link in self._links):
                self._say("interrupted: stopping ranks (Ctrl-C again kills them)")
                self._ending = True
                self._send_all(frames.SIGNAL, signal.SIGINT)
                self._after(INTERRUPT_GRACE_S, self._end)
            elif signum == signal.SIGTERM:
                self._say(f"SIGTERM: the ranks have {self._options.grace_s:g} s to end (--grace)")
                self._end(by_signal=True)
            else:
                self._end()

    # -- Agents -----------------------------------------------------------------------------------

    def _on_stdout(self, link: Link) -> None:
        data = _read(link.stdout_fd)
        if data is None:
            return
        if not data:
            self._on_agent_gone(link)
            return
        try:
            for frame in link.receive(data):
                self._on_frame(link, frame)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self._on_agent_broken(link, f"sent something unusable: {str(error)[:200]}")
            link.kill()  # Nothing more that it says counts.

    def _on_stderr(self, link: Link) -> None:
        if not self._is_watched(link.stderr_fd):
            return  # Ended by an event of the same round.
        data = _read(link.stderr_fd)
        if data is None:
            return
        if not data:
            self._selector.unregister(link.stderr_fd)
            return
        link.said += data.splitlines()
        del link.said[:-20]
        for line in data.splitlines():
            self._say(f"{link.host}: {line.decode(errors='replace')}", verbose=True)

    def _on_frame(self, link: Link, frame: frames.Frame) -> None:
        if frame.kind in _OF_RANKS and frame.rank not in link.ranks:
            msg = f"it speaks for rank {frame.rank}, which never ran there"
            raise ValueError(msg)
        if frame.kind in (frames.STDOUT, frames.STDERR):
            self._streams[frame.rank, frame.kind].feed(frame.payload)
        elif frame.kind == frames.RESULT:
            self.results.setdefault(frame.rank, bytearray()).extend(frame.payload)
        elif frame.kind == frames.EXIT:
            link.waiting.discard(frame.rank)
            self._on_rank_end(RankEnd(frame.rank, link.host, int(frame.payload)))
        elif frame.kind == frames.HELLO:
            about = json.loads(frame.payload)
            self._say(
                f"{link.host}: ranks {sorted(link.waiting)} on {about['hostname']!r:.80}, "
                f"launched by Python {about['python']!r:.80}",
                verbose=True,
            )
            if len(link.waiting) > (cores := int(about["cores"])):
                shared = "1 core" if cores == 1 else f"{cores} cores"
                self._say(f"{link.host}: {len(link.waiting)} ranks share {shared}: they take turns")
        elif frame.kind == frames.DRAIN:
            self._on_drain(link)
        elif frame.kind == frames.FATAL:
            text = frame.payload.decode(errors="replace")[:_MAX_TEXT]
            self._on_agent_broken(link, "".join(c if c.isprintable() else "?" for c in text))

    def _on_rank_end(self, end: RankEnd) -> None:
        words = self._take_leave(end)
        failed = end.code != 0 or end.lost
        if not failed or self._ending:  # Else the summary shows it.
            words.release()
        if failed:
            if self._ending:
                self._ended += 1
            else:
                if not self._failures:
                    self._after(FAILURE_GRACE_S, self._end)
                self._failures.append(end)
        if not any(link.waiting for link in self._links):
            self._close()

    def _take_leave(self, end: RankEnd) -> RankStream:
        """Ends the streams of a rank that has ended; returns that with its last words."""
        for kind in (frames.STDOUT, frames.STDERR):
            self._streams[end.rank, kind].finish()
        words = self._streams[end.rank, frames.STDERR]
        end.tail, end.said = list(words.tail), words.ends_with_traceback
        self._say(end.describe(), verbose=True)
        return words

    def _on_agent_broken(self, link: Link, text: str) -> None:
        self._error = self._error or f"host {link.host}: {text}"
        self._end()

    def _on_drain(self, link: Link) -> None:
        """Ends the job, whose ranks are fixed: a host is about to leave."""
        if not self._ending:
            text = f"host {link.host} leaves: its worker got SIGTERM"
            self._say(f"{text}; the ranks have {self._options.grace_s:g} s to end (--grace)")
            self._error = self._error or text
            self._end(by_signal=True)

    def _on_agent_gone(self, link: Link) -> None:
        """End of file: expected after its ranks have ended, else host or connection are lost."""
        self._drain_stderr(link)
        for fd in (link.stdout_fd, link.stderr_fd, link.stdin_fd):
            if self._is_watched(fd):
                self._selector.unregister(fd)
        how = link.end()
        if link.waiting:
            self._on_host_lost(link, how)

    def _is_watched(self, fd: int) -> bool:
        return fd >= 0 and fd in self._selector.get_map()

    def _on_host_lost(self, link: Link, how: str) -> None:
        """Blames the host for the ranks that were there."""
        words = b" ".join(link.said[-3:]).decode(errors="replace").strip()
        if not self._ending:
            what = "was lost" if link.ready else "could not be reached"
            self._error = f"host {link.host} {what}: {how}"
            self._error += f": {words}" if words else ""
        lost, link.waiting = sorted(link.waiting), set()
        for rank in lost:
            self._on_rank_end(RankEnd(rank, link.host, 0, lost=True))

    def _drain_stderr(self, link: Link) -> None:
        while self._is_watched(link.stderr_fd):
            before = len(link.said)
            self._on_stderr(link)
            if len(link.said) == before:
                break

    # -- Ending -----------------------------------------------------------------------------------

    def _on_start_timeout(self) -> None:
        late = [link.host for link in self._links if not link.ready]
        if late and not self._ending:
            self._error = (
                f"no answer from {', '.join(late)} within {self._options.start_timeout_s:g} s "
                "(--start-timeout)"
            )
            self._end()

    def _end(self, *, by_signal: bool = False) -> None:
        """Has every rank ended, a signal giving it more time; agents without answer are killed."""
        self._ending = True
        self._send_all(frames.TERMINATE, int(by_signal))
        for link in self._links:
            if not link.ready and not link.gone:
                link.kill()
        self._after(_LEAVE_S + by_signal * self._options.grace_s, self._abandon)

    def _close(self) -> None:
        if self._closing:
            return
        self._closing = True
        for link in self._links:
            if self._is_watched(link.stdin_fd):
                self._selector.unregister(link.stdin_fd)
            link.close_stdin()
        self._after(_LEAVE_S, self._abandon)

    def _abandon(self) -> None:
        for link in self._links:
            if not link.gone:
                link.kill()

    def _send_all(self, kind: bytes, rank: int = 0) -> None:
        for link in self._links:
            if not link.gone and not self._closing:
                link.send(kind, rank)
                self._flush(link)

    def _flush(self, link: Link) -> None:
        try:
            while link.unsent:
                del link.unsent[: os.write(link.stdin_fd, link.unsent)]
        except BlockingIOError:
            if not self._is_watched(link.stdin_fd):
                self._selector.register(
                    link.stdin_fd, selectors.EVENT_WRITE, lambda: self._flush(link)
                )
            return
        except OSError:  # It is gone; its end of file says so.
            link.unsent.clear()
        if self._is_watched(link.stdin_fd):
            self._selector.unregister(link.stdin_fd)

    # -- Output -----------------------------------------------------------------------------------

    def _open_streams(self, rank: int, folder: str) -> None:
        """Opens the streams of one rank; `folder` is where copies go, if they are wanted."""
        options = self._options
        directory = None
        if options.output_directory is not None:
            directory = options.output_directory / folder
            directory.mkdir(parents=True, exist_ok=True)
        for kind, name, sink in (
            (frames.STDOUT, "stdout", self._out),
            (frames.STDERR, "stderr", self._err),
        ):
            copy_to = None
            if directory is not None:
                path = directory / name
                copy_to = Sink(path.open("wb", buffering=0), str(path), self._on_loss)
            self._streams[rank, kind] = RankStream(
                sink,
                f"[{rank}]<{name}>: ".encode() if options.prefix else b"",
                timestamps=options.timestamps,
                copy_to=copy_to,
                on_traceback=self._on_traceback if kind == frames.STDERR else None,
                on_terminal=(sys.stdout if kind == frames.STDOUT else sys.stderr).isatty(),
            )

    def _on_traceback(self, stream: RankStream) -> None:
        """A rank that ends with it leaves it to the summary; one that goes on does not."""
        self._after(TRACEBACK_S, stream.release)

    def _on_loss(self, text: str) -> None:
        """The ranks go on: a job may be worth more than its log. The exit code tells."""
        self._losses.append(text)
        self._say(f"warning: {text} from here on, the ranks go on")

    def _say(self, text: str, *, verbose: bool = False) -> None:
        if not verbose or self._options.verbose:
            with contextlib.suppress(OSError):  # There is nobody left to tell.
                sys.stderr.write(f"lightccrun: {text}\n")
                sys.stderr.flush()

    def failure(self) -> tuple[str, int | None]:
        """Returns why the job failed, in one line, and the rank to blame; "" if it did not fail."""
        if self._signal is not None:
            return f"ended by {signal_name(self._signal)}", None
        failures = [end for end in self._failures if not end.lost]
        if not failures:
            return self._error, None
        first = first_failure(failures)
        left = early_leaver(failures, self._host_of_rank)
        return (left, None) if left else (first.describe(), first.rank)

    def _show_tracebacks(self, failures: list[RankEnd]) -> None:
        """Writes what is still held, rank by rank, and that of the rank to blame last."""
        first = first_failure(failures).rank if failures else -1
        for (rank, _), stream in sorted(self._streams.items()):
            if rank != first:
                stream.release()
        if first >= 0:
            self._streams[first, frames.STDERR].release()

    def _report(self) -> int:
        """Writes the summary and returns the exit code."""
        self._show_tracebacks(self._failures)
        if self._signal is not None:
            self._say(f"ended by {signal_name(self._signal)}")
            return 128 + self._signal
        failures = [end for end in self._failures if not end.lost] or self._failures
        if failures and not (self._error and failures[0].lost):
            left = early_leaver(failures, self._host_of_rank)
            lines = failure_lines(failures, self._ended, left)
            if about := hint(first_failure(failures), self._options.command):
                lines.append(f"lightccrun: {about}".encode())
            with contextlib.suppress(OSError):
                sys.stderr.buffer.write(b"\n".join(lines) + b"\n")
                sys.stderr.flush()
            return first_failure(failures).exit_code
        if self._error:
            self._say(self._error)
            return 1
        for text in self._losses:
            self._say(text)
        return 1 if self._losses else 0


def _read(fd: int) -> bytes | None:
    """Returns what is there, nothing at end of file, None if nothing has come yet."""
    try:
        return os.read(fd, _CHUNK_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""
