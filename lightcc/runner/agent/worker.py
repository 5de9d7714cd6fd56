"""`lightcc-worker`: dials in to `lightccrun --listen`, and runs the ranks that it gets.

It needs neither ssh nor a fixed address, so it serves pods, batch jobs and machines that come and
go. Ranks have this process's environment and working directory.

What may pass is tried again: a name that does not resolve yet, a launcher that does not listen yet,
a worker of the same name that is about to be found dead. Another secret is an error at once.

As the first process of a container it also reaps what its descendants leave behind, and passes
signals on.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING

from lightcc._discovery import variables
from lightcc._flags import Parser
from lightcc.runner.agent.agent import PASSED_ON, Agent
from lightcc.runner.dial import handshake
from lightcc.runner.grace import SIGNAL_GRACE_S
from lightcc.runner.hosts import MAX_RANKS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from lightcc.runner.dial.seal import Seal

_RETRY_S = 1.0
_CONNECT_S = 10.0
_MAX_SECONDS = 1e9
_LAUNCHER_LOST = 75  # EX_TEMPFAIL: whoever restarts workers should do so.
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser; `lightcc-worker --help` is its text."""
    parser = Parser(
        prog="lightcc-worker",
        description="Joins the job of `lightccrun --listen` and runs ranks of it here.",
        epilog="Exit codes: 0 the job is over, or SIGTERM has drained this worker; 1 it could not "
        "join; 2 wrong flags; 75 the launcher was lost.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--join", required=True, metavar="HOST:PORT", help="where the launcher listens")
    add("--slots", type=_slots, default=1, metavar="N", help="maximum number of ranks here (1)")
    add("--name", default=os.uname().nodename, help="this host's name in the job (its host name)")
    add(
        "--secret-file",
        metavar="FILE",
        help="the job's secret; without it LIGHT_SECRET or LIGHT_SECRET_FILE",
    )
    add("--join-timeout", type=seconds, default=600.0, metavar="S", help="seconds to try (600)")
    add(
        "--grace",
        type=seconds,
        default=SIGNAL_GRACE_S,
        metavar="S",
        help="seconds that ranks have after SIGTERM, before the job goes on without them "
        f"({SIGNAL_GRACE_S:g})",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the worker; returns the exit code."""
    parser = make_parser()
    args = parser.parse_args(argv)
    try:
        address = handshake.split_address(args.join)
        about = handshake.Worker(
            handshake.check_name(args.name), args.slots, sys.version.split()[0]
        )
        secret = variables.secret(secret_variables(args.secret_file))
    except ValueError as error:
        parser.error(str(error))
    if os.getpid() == 1:
        status = _run_as_init()
        if status is not None:
            return status
    try:
        connection, seal = _join(address, secret, about, args.join_timeout)
    except handshake.DialError as error:
        sys.stderr.write(f"lightcc-worker: error: cannot join {args.join}: {error}\n")
        return 1
    sys.stderr.write(f"lightcc-worker: joined {args.join} as {about.name}\n")
    return _serve(connection, seal, secret, args.grace)


def _slots(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= value <= MAX_RANKS:
        msg = f"'{text}' is not a number of slots (1 to {MAX_RANKS})"
        raise argparse.ArgumentTypeError(msg)
    return value


def seconds(text: str) -> float:
    """Reads a flag's number of seconds, which may be 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < _MAX_SECONDS:
        msg = f"'{text}' is not a number of seconds (at least 0)"
        raise argparse.ArgumentTypeError(msg)
    return value


def secret_variables(path: str | None) -> dict[str, str]:
    """Returns the variables that have the secret: of the file, or those of the environment."""
    return dict(os.environ) if path is None else {"LIGHT_SECRET_FILE": path}


def _join(
    address: tuple[str, int], secret: str, about: handshake.Worker, timeout_s: float
) -> tuple[socket.socket, Seal]:
    """Dials until the launcher lets this worker in.

    Raises:
        DialError: It does not, or not in time.
    """
    until = time.monotonic() + timeout_s
    said = ""
    while True:
        try:
            return _dial(address, secret, about)
        except (handshake.DialError, OSError) as error:
            final = isinstance(error, handshake.DialError) and not error.again
            text = str(error)
            if final or time.monotonic() + _RETRY_S > until:
                text += "" if final else f" (tried for --join-timeout {timeout_s:g} s)"
                raise handshake.DialError(text, again=False) from error
        if text != said:
            said = text
            sys.stderr.write(f"lightcc-worker: not yet: {text}; trying again\n")
        time.sleep(_RETRY_S)


def _dial(
    address: tuple[str, int], secret: str, about: handshake.Worker
) -> tuple[socket.socket, Seal]:
    connection = socket.create_connection(address, timeout=_CONNECT_S)
    try:
        seal = handshake.join(connection, secret, about)
        handshake.watch_peer(connection)
    except (handshake.DialError, OSError):
        connection.close()
        raise
    return connection, seal


def _serve(connection: socket.socket, seal: Seal, secret: str, grace_s: float) -> int:
    os.environ.pop("LIGHT_SECRET_FILE", None)
    os.environ["LIGHT_SECRET"] = secret  # For the ranks: it does not travel.
    agent = Agent(
        connection.fileno(), os.dup(connection.fileno()), seal=seal, drain_grace_s=grace_s
    )
    agent.run()
    if agent.left_in_order:
        return 0
    sys.stderr.write("lightcc-worker: error: the connection to the launcher was lost\n")
    return _LAUNCHER_LOST


def _run_as_init() -> int | None:
    """Lets a child be the worker; returns its exit code here, and `None` in the child."""
    child = os.fork()
    if child == 0:
        return None

    def pass_on(signum: int, _frame: FrameType | None) -> None:
        os.kill(child, signum)

    for signum in (*_ENDING_SIGNALS, *PASSED_ON):
        signal.signal(signum, pass_on)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
