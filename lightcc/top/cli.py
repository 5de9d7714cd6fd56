"""The command line of `lightcc-top`.

Exit code: 0; 1 where there was nothing to show, which is said on stderr; 2 for a wrong command.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lightcc._flags import Parser
from lightcc._stats.metrics_http import MetricsServer, parse_address
from lightcc.top.export import as_prometheus
from lightcc.top.reading import Reading, read_ranks
from lightcc.top.screen import as_text, make_screen

if TYPE_CHECKING:
    from collections.abc import Sequence

_MIN_INTERVAL_S = 0.1
_MAX_INTERVAL_S = 86400.0
_NOBODY = (
    "no rank of yours runs on this machine, or none that can be asked (LIGHT_STAT=0, another "
    "network namespace)"
)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not _MIN_INTERVAL_S <= value <= _MAX_INTERVAL_S:
        msg = f"{text!r}: expected seconds from 0.1 to 86400"
        raise argparse.ArgumentTypeError(msg)
    return value


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        msg = f"{text!r}: expected a number from 1 on"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _address(text: str) -> tuple[str, int]:
    try:
        return parse_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="lightcc-top",
        description="Shows what the ranks of this machine do, while they run.",
        epilog="On a terminal the screen is live; elsewhere it is text. docs/running/watching.md "
        "says what each column means.",
    )
    parser.add_argument("--interval", metavar="S", type=_seconds, default=1.0, help="seconds (1)")
    parser.add_argument("--job", metavar="JOB", default="", help="only this job, by its title")
    parser.add_argument("--count", metavar="N", type=_count, help="end after N screens")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--text", action="store_true", help="plain lines, on a terminal too")
    form.add_argument("--json", action="store_true", help="all counters, one line each time")
    form.add_argument("--prometheus", action="store_true", help="all counters, once; HARP's, too")
    form.add_argument(
        "--textfile", metavar="FILE", type=Path, help="write them to FILE at each interval"
    )
    form.add_argument(
        "--serve", metavar="HOST:PORT", type=_address, help="answer GET /metrics for Prometheus"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs lightcc-top; `argv` without the program's name. Returns the exit code."""
    options = _parser().parse_args(argv)
    try:
        if options.prometheus:
            _say(as_prometheus(_read(options.job)))
            return 0
        if options.serve is not None:
            return _serve(options.serve, options.job)
        if options.textfile is not None:
            return _write_textfile(options)
        if sys.stdout.isatty() and not options.text and not options.json:
            return _show_live(options)
        return _show_lines(options)
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:  # Whoever read us has seen enough; nobody is to flush later.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _complain(text: str) -> int:
    sys.stderr.write(f"lightcc-top: {text}\n")
    return 1


def _read(job: str) -> Reading:
    now = read_ranks()
    return replace(now, ranks=tuple(it for it in now.ranks if it.job.startswith(job)))


class _Readings:
    """Readings at intervals, each with the one before."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._interval_s: float = options.interval
        self._left: int | None = options.count
        self._due = time.monotonic()
        self.before: Reading | None = None
        self._job: str = options.job
        self.now = _read(self._job)

    def advance(self) -> bool:
        """Waits and reads again; False when there were enough."""
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                return False
        self._due = max(self._due + self._interval_s, time.monotonic())
        time.sleep(max(0.0, self._due - time.monotonic()))
        self.before, self.now = self.now, _read(self._job)
        return True


def _show_lines(options: argparse.Namespace) -> int:
    readings = _Readings(options)
    if not readings.now.ranks and not readings.now.silent:
        return _complain(_NOBODY)
    while readings.advance():
        if options.json:
            _say(json.dumps({"ranks": [asdict(one) for one in readings.now.ranks]}) + "\n")
        else:
            _say(as_text(make_screen(readings.before, readings.now)) + "\n")
    return 0


def _show_live(options: argparse.Namespace) -> int:
    """Draws on the terminal's other screen, so that what was on this one comes back."""
    readings = _Readings(options)
    _say("\x1b[?1049h")
    try:
        while True:
            columns, rows = shutil.get_terminal_size()
            screen = make_screen(readings.before, readings.now)
            lines = as_text(screen, columns, colours=True).splitlines()
            _say("\x1b[H\x1b[J" + "\n".join(lines[: rows - 1]) + "\n")
            if not readings.advance():
                return 0
    finally:
        _say("\x1b[?1049l")


def _write_textfile(options: argparse.Namespace) -> int:
    """Writes for the node exporter's textfile collector, which must never see half a file."""
    path: Path = options.textfile
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    readings = _Readings(options)
    try:
        while True:
            unfinished.write_text(as_prometheus(readings.now), encoding="utf-8")
            unfinished.replace(path)
            if not readings.advance():
                return 0
    except OSError as error:
        return _complain(f"cannot write {path}: {error.strerror}")


def _serve(address: tuple[str, int], job: str) -> int:
    try:
        server = MetricsServer(address, "lightcc-top", lambda: as_prometheus(_read(job)))
    except OSError as error:
        return _complain(f"cannot listen on {address[0]}:{address[1]}: {error.strerror or error}")
    with server:
        sys.stderr.write(f"lightcc-top: serves {server.url}\n")
        sys.stderr.flush()
        server.serve_forever()
    return 0
