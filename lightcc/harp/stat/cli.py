"""The command line of `harp-stat`.

Exit code: 0; 1 where there was nothing to show, which is said on stderr; 2 for a wrong command.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lightcc._flags import Parser
from lightcc.harp.stat.export import as_json
from lightcc.harp.stat.files import DEFAULT_FOLDER, Reading, default_folder, read_folder
from lightcc.harp.stat.layout import StatFileError
from lightcc.harp.stat.rates import Rates
from lightcc.harp.stat.table import as_table

if TYPE_CHECKING:
    from collections.abc import Sequence

_MIN_INTERVAL_S = 0.1  # HARP writes no oftener.
_MAX_INTERVAL_S = 86400.0


def _seconds(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or not _MIN_INTERVAL_S <= value <= _MAX_INTERVAL_S:
        raise ValueError(text)
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _checked(convert: object, text: str, allowed: str) -> object:
    try:
        return convert(text)  # type: ignore[operator]
    except ValueError:
        msg = f"{text!r}: expected {allowed}"
        raise argparse.ArgumentTypeError(msg) from None


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="harp-stat",
        description="Shows the counters of processes that use HARP, while they run.",
        epilog="Without options: totals, once. What each counter means: docs/harp/stat.md. "
        "lightcc-top has them for Prometheus.",
    )
    parser.add_argument(
        "--interval",
        metavar="S",
        type=lambda text: _checked(_seconds, text, "seconds from 0.1 to 86400"),
        help="show rates per second, every S seconds",
    )
    parser.add_argument(
        "--count",
        metavar="N",
        type=lambda text: _checked(_positive, text, "a number from 1 on"),
        help="end after N intervals (of 1 s without --interval)",
    )
    parser.add_argument(
        "--pid",
        type=lambda text: _checked(_positive, text, "the number of a process"),
        help="show only this process",
    )
    parser.add_argument("--paths", action="store_true", help="also show each path")
    parser.add_argument(
        "--dir",
        metavar="FOLDER",
        type=Path,
        default=default_folder(),
        help=f"where processes publish (HARP_STAT_DIR, else {DEFAULT_FOLDER})",
    )
    parser.add_argument("--json", action="store_true", help="everything, as JSON on one line")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs harp-stat; `argv` without the program's name. Returns the exit code."""
    options = _parser().parse_args(argv)
    repeats = options.interval is not None or options.count is not None
    try:
        return _repeat(options) if repeats else _show_once(options)
    except StatFileError as error:
        return _complain(f"{options.dir} {error}")
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:  # Whoever read us has seen enough; nobody is to flush later.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _complain(text: str) -> int:
    sys.stderr.write(f"harp-stat: {text}\n")
    return 1


def _nothing(options: argparse.Namespace) -> int:
    if options.pid is not None:
        return _complain(f"process {options.pid} publishes nothing of HARP in {options.dir}")
    return _complain(
        f"no process publishes anything of HARP in {options.dir} (a process does so while it has"
        " connections or listens, unless HARP_STAT=0)"
    )


def _complain_of(reading: Reading) -> int:
    for one in reading.problems:
        _complain(f"{one.path} {one.text}")
    return 0 if reading.processes else 1


def _show_once(options: argparse.Namespace) -> int:
    reading = read_folder(options.dir, options.pid)
    if not reading.processes and not reading.problems:
        return _nothing(options)
    rates = Rates(None, reading)
    if options.json:
        _say(json.dumps(as_json(reading, rates)) + "\n")
    else:
        _say(as_table(Reading(reading.processes, ()), rates, with_paths=options.paths))
    return _complain_of(reading)


def _repeat(options: argparse.Namespace) -> int:
    interval_s = options.interval if options.interval is not None else 1.0
    before = read_folder(options.dir, options.pid)
    due = time.monotonic()
    shown = 0
    has_found = False
    while options.count is None or shown < options.count:
        due = max(due + interval_s, time.monotonic())
        time.sleep(due - time.monotonic())
        now = read_folder(options.dir, options.pid)
        has_found = has_found or bool(now.processes)
        rates = Rates(before, now)
        if options.json:
            _say(json.dumps(as_json(now, rates)) + "\n")
        else:
            text = as_table(now, rates, is_rate=True, with_paths=options.paths)
            _say(f"-- {time.strftime('%H:%M:%S')}, per second\n{text or 'nothing'}\n")
        before = now
        shown += 1
    return 0 if has_found else _nothing(options)
