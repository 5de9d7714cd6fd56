"""The launcher's end of one agent: a child process, perhaps ssh, or a worker that dialled in."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightcc.runner.agent import frames

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightcc.runner.dial.handshake import Joiner

_INPUT_FRAME_BYTES = 1 << 20
_MAX_PREAMBLE_BYTES = 65536  # A login shell may say so much before the agent starts.


class Link:
    """What a job knows of one agent, and the bytes that go there.

    Attributes:
        host: As the launcher calls it.
        ranks: All that have been started there.
        waiting: Those that have not ended.
        ready: Whether the agent has answered.
        gone: Whether the connection has ended.
        said: Lines that came beside the frames: ssh's own words.
        unanswered: How many times the agent has been asked since it last said something.
        unsent: What is to be written to `stdin_fd`.
        stdin_fd: Towards the agent.
        stdout_fd: From the agent.
        stderr_fd: Of the program in between; -1 if there is none.
    """

    def __init__(self, host: str, stdin_fd: int, stdout_fd: int, stderr_fd: int = -1) -> None:
        """Takes descriptors, which do not block from now on."""
        self.host = host
        self.ranks: set[int] = set()
        self.waiting: set[int] = set()
        self.ready = False
        self.gone = False
        self.said: list[bytes] = []
        self.unanswered = 0
        self.unsent = bytearray()
        self.stdin_fd, self.stdout_fd, self.stderr_fd = stdin_fd, stdout_fd, stderr_fd
        for fd in (stdin_fd, stdout_fd, stderr_fd):
            if fd >= 0:
                os.set_blocking(fd, False)
        self._reader = frames.FrameReader()
        self._preamble = bytearray()

    def send(self, kind: bytes, rank: int = 0, payload: bytes = b"") -> None:
        """Adds one frame to what is to be written."""
        self.unsent += frames.encode(kind, rank, payload)

    def send_input(self, rank_input: bytes) -> None:
        """Has every rank that is started later find these bytes on its standard input."""
        for begin in range(0, len(rank_input), _INPUT_FRAME_BYTES):
            self.send(frames.INPUT, 0, rank_input[begin : begin + _INPUT_FRAME_BYTES])

    def send_job(self, job: dict[str, Any]) -> None:
        """Has the agent start ranks, once `unsent` is written."""
        ranks = {int(entry["rank"]) for entry in job["ranks"]}
        self.ranks |= ranks
        self.waiting |= ranks
        self.send(frames.JOB, 0, json.dumps(job).encode())

    def receive(self, data: bytes) -> list[frames.Frame]:
        """Returns the frames in what arrived, skipping what a login shell said before the agent."""
        self.unanswered = 0
        if not self.ready:
            self._preamble += data
            shell, magic, data = bytes(self._preamble).partition(frames.MAGIC)
            if not magic:
                del self._preamble[:-_MAX_PREAMBLE_BYTES]
                return []
            self.ready = True
            self.said += shell.splitlines()
        return self._reader.feed(data)

    def close_stdin(self) -> None:
        """Tells the agent that the job is over."""
        raise NotImplementedError

    def kill(self) -> None:
        """Ends the connection, by which the agent ends its ranks."""
        raise NotImplementedError

    def end(self) -> str:
        """Takes in that nothing more will come; returns how the connection ended.

        The descriptors are closed, and no longer named here: other links may get their numbers.
        """
        self.close_stdin()
        self.gone = True
        self.unsent.clear()
        self.stdin_fd = self.stdout_fd = self.stderr_fd = -1
        return self._end()

    def _end(self) -> str:
        """Closes what is open; returns how the connection ended."""
        raise NotImplementedError


class ProcessLink(Link):
    """An agent that is a child of the launcher, or is reached by one."""

    def __init__(
        self,
        host: str,
        argv: list[str],
        job: dict[str, Any],
        rank_input: bytes = b"",
        stdin_fd: int | None = None,
    ) -> None:
        """Starts the agent.

        Args:
            host: As the launcher calls it.
            argv: The program and its arguments.
            job: What the agent is to run.
            rank_input: What every rank finds on standard input.
            stdin_fd: A descriptor that its first rank has as standard input; it is closed here.
        """
        self._program = Path(argv[0]).name
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches the launcher alone.
            pass_fds=() if stdin_fd is None else (stdin_fd,),
        )
        if stdin_fd is not None:
            job["ranks"][0]["stdin_fd"] = stdin_fd
            os.close(stdin_fd)
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        super().__init__(host, *(pipe.fileno() if pipe is not None else -1 for pipe in pipes))
        self.send_input(rank_input)
        self.send_job(job)

    def close_stdin(self) -> None:
        """Tells the agent that the job is over."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def kill(self) -> None:
        """Kills the process."""
        self._process.kill()

    def _end(self) -> str:
        """Waits for the process, which has closed its output."""
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        try:
            code = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return f"{self._program} ended with code {code}"


class DialedLink(Link):
    """A worker that has dialled in. What travels is sealed (`lightcc.runner.dial`)."""

    def __init__(self, joiner: Joiner, on_end: Callable[[str], None]) -> None:
        """Takes over the joiner's connection; `on_end` gets its name when that has ended.

        `reached_at` is the launcher's address that the worker has dialled, `address` its own.
        """
        self.reached_at = joiner.reached_at
        self.address = joiner.address
        self._on_end = on_end
        self._socket = joiner.connection
        self._seal = joiner.seal
        # A selector watches each descriptor once, but both directions are watched here.
        self._out = self._socket.dup()
        super().__init__(joiner.name, self._out.fileno(), self._socket.fileno())
        self._is_open = True

    def send(self, kind: bytes, rank: int = 0, payload: bytes = b"") -> None:
        """Adds one frame to what is to be written."""
        self.unsent += self._seal.wrap(frames.encode(kind, rank, payload))

    def receive(self, data: bytes) -> list[frames.Frame]:
        """Returns the frames in what arrived."""
        return super().receive(self._seal.unwrap(data))

    def close_stdin(self) -> None:
        """Tells the worker that the job is over."""
        if self._is_open:
            self._is_open = False
            self.send(frames.BYE)
            with contextlib.suppress(OSError):
                os.write(self.stdin_fd, self.unsent)
                self._socket.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Ends the connection; the loop sees its end of file."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _end(self) -> str:
        """Closes the connection, and lets another worker have this one's name."""
        self._out.close()
        self._socket.close()
        self._on_end(self.host)
        return "its worker closed the connection, or is not reached any more"
