"""`lightcc-pod`: the first process of a pod whose ranks are started from elsewhere.

    lightcc-pod /usr/sbin/sshd -De

Were sshd itself the first process, SIGTERM would end it at once, and the kernel would kill all
ranks with it. Here SIGTERM goes to whoever runs ranks below this process, and the server lives on
until they have ended, but not longer than the grace period. It gets the signal itself where nobody
runs ranks, or when the signal comes once more.

Who runs ranks: lightcc's agents, which drain their host. And processes that mpirun has started,
which may handle SIGTERM themselves; mpirun's own daemons hear nothing, since they would kill them.

It reaps what others leave behind, as the first process of a container must. Where it is not the
first, it takes in orphans all the same, so that nobody escapes.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lightcc._flags import Parser
from lightcc.runner.agent.worker import seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

_POLL_S = 0.1  # How often the ends of others are looked for while the grace period runs.
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_AGENT = b"lightcc.runner.agent.remote"
_RANK_VARIABLES = (b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=")
_CANNOT_RUN = 127
_PR_SET_CHILD_SUBREAPER = 36


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser; `lightcc-pod --help` is its text."""
    parser = Parser(
        prog="lightcc-pod",
        usage="%(prog)s [--grace S] COMMAND [ARGUMENT ...]",
        description="Runs a server, such as sshd, as the first process of a pod, and lets ranks "
        "end in good order when the pod is deleted.",
        epilog="Exit codes: 0 SIGTERM has ended it; 127 the command cannot be run; else that of "
        "the command, or 128 plus the signal that ended it.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--grace",
        type=seconds,
        default=30.0,
        metavar="S",
        help="how long the server outlives SIGTERM while ranks are ending (30)",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the server; returns the exit code."""
    parser = make_parser()
    args = parser.parse_args(argv)
    if not args.command:
        parser.error("a command is needed, for example: lightcc-pod /usr/sbin/sshd -De")
    # Signals are taken one by one with sigtimedwait. As the first process it must block them: the
    # kernel drops those for which it has no handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_ENDING, signal.SIGCHLD))
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        server = os.posix_spawnp(args.command[0], args.command, os.environ, setsigmask=())
    except OSError as error:
        sys.stderr.write(f"lightcc-pod: cannot run '{args.command[0]}': {error.strerror}\n")
        return _CANNOT_RUN
    return _Pod(server, args.grace).run()


class _Pod:
    """The server, and what is awaited before it ends."""

    def __init__(self, server: int, grace_s: float) -> None:
        self._server = server
        self._grace_s = grace_s
        self._until: float | None = None  # Known once a signal has come.
        self._awaited = select.poll()
        self._left: set[int] = set()  # Descriptors of processes in `_awaited`.

    def run(self) -> int:
        while True:
            wait_s = 3600.0 if self._until is None else _POLL_S
            found = signal.sigtimedwait((*_ENDING, signal.SIGCHLD), wait_s)
            code = self._reap()
            if code is not None:
                return code if self._until is None else 0
            if found is not None and found.si_signo != signal.SIGCHLD:
                self._on_signal()
            self._look_for_ends()

    def _reap(self) -> int | None:
        """Reaps whoever has ended; returns the server's exit code if it was among them."""
        code = None
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return code
                if pid == self._server:
                    code = os.waitstatus_to_exitcode(status)
                    code = 128 - code if code < 0 else code
        except ChildProcessError:
            return code

    def _on_signal(self) -> None:
        if self._until is not None:
            self._end_server()
            return
        self._until = time.monotonic() + self._grace_s
        for pid in runners_of_ranks(Path("/proc"), os.getpid()):
            try:
                descriptor = os.pidfd_open(pid)
                signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            except OSError:
                continue  # It has ended meanwhile.
            self._awaited.register(descriptor, select.POLLIN)
            self._left.add(descriptor)

    def _look_for_ends(self) -> None:
        if self._until is None:
            return
        for descriptor, _ in self._awaited.poll(0):
            self._awaited.unregister(descriptor)
            self._left.discard(descriptor)
            os.close(descriptor)
        if not self._left or time.monotonic() >= self._until:
            self._end_server()

    def _end_server(self) -> None:
        os.kill(self._server, signal.SIGTERM)


def runners_of_ranks(proc: Path, first: int) -> list[int]:
    """Returns the processes below `first` that are told to end, none of them below another.

    Args:
        proc: The folder with all processes.
        first: The process that asks.
    """
    parents: dict[int, int] = {}
    found = set()
    for folder in proc.glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            words = (folder / "cmdline").read_bytes().split(b"\0")
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # It has ended meanwhile, or belongs to somebody else.
        pid = int(folder.name)
        parents[pid] = int(stat.rpartition(")")[2].split()[1])
        if _AGENT in words or any(text.startswith(_RANK_VARIABLES) for text in variables):
            found.add(pid)

    def is_chosen(pid: int) -> bool:
        while (pid := parents.get(pid, 0)) not in (0, first):
            if pid in found:
                return False
        return pid == first

    return sorted(filter(is_chosen, found))


if __name__ == "__main__":
    sys.exit(main())
