"""A reading as tables for people.

Columns are chosen by name, where a file has them; everything else is in `--json`. Counters that
mean trouble are named where they are not zero.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lightcc.harp.stat.files import ALIVE, DEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lightcc.harp.stat.files import Process, Reading
    from lightcc.harp.stat.layout import Record
    from lightcc.harp.stat.rates import Rates

_SILENT_S = 5.0  # HARP writes once a second at least.
_TROUBLE = (
    "wire_send_errors",
    "wire_blocked",
    "wire_handed_over",
    "strangers",
    "sessions_failed",
    "retransmitted_order",
    "retransmitted_timeout",
    "duplicates",
    "bad_auth",
    "bad_packets",
    "no_room",
    "credit_stalls",
    "paths_quarantined",
)
Cells = list[str]


def as_table(
    reading: Reading, rates: Rates, *, is_rate: bool = False, with_paths: bool = False
) -> str:
    """Returns a reading as text.

    Args:
        reading: What to show.
        rates: Its rates.
        is_rate: Counters are shown per second, and "-" where no rate is known.
        with_paths: Paths are shown.
    """
    lines: list[str] = []
    for process in reading.processes:
        lines += [_headline(process), *_process(process, rates, is_rate, with_paths), ""]
    lines += [f"{one.path} {one.text}" for one in reading.problems]
    return "\n".join(lines).rstrip("\n") + "\n" if lines else ""


def _headline(process: Process) -> str:
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(_sane_s(process.created_unix_ns)))
    text = f"process {process.pid}, since {made}"
    silent = process.silent_s()
    if process.state == DEAD:
        text += f": DEAD, it left {process.path} (harp-stat --clean removes it); its last counters:"
    elif process.state != ALIVE:
        text += ": in another PID namespace, so it cannot be told whether it lives"
    elif silent is not None and silent > _SILENT_S:
        text += f": has written nothing for {silent:.0f} s; is it stopped?"
    return text


def _sane_s(unix_ns: int) -> float:
    return min(unix_ns / 1e9, 4e9)  # Beyond it, strftime has its limits.


def _process(process: Process, rates: Rates, is_rate: bool, with_paths: bool) -> Iterator[str]:
    engines: list[Cells] = []
    sessions: list[Cells] = []
    paths: list[Cells] = []
    trouble: list[str] = []
    hidden = 0
    for engine in process.engines:
        per_second = rates.of(process.path, engine)
        show = _shower(engine, per_second, is_rate)
        name = f"{engine.values.get('device', '?')}/{engine.values.get('engine', '?')}"
        engines.append(_engine_cells(name, engine, show))
        trouble += _trouble(name, show)
        hidden += max(engine.there_are - len(engine.below), 0)
        for session in engine.below:
            per_second = rates.of(process.path, engine, session)
            sessions.append(_session_cells(name, session, _shower(session, per_second, is_rate)))
            paths += [_path_cells(name, session, path) for path in session.below]
    yield from _columns(_ENGINE_TITLES, engines)
    if sessions:
        yield from _columns(_SESSION_TITLES, sessions)
    if hidden:
        yield f"  and {hidden} sessions that are not shown"
    if with_paths and paths:
        yield from _columns(_PATH_TITLES, paths)
    yield from trouble


def _shower(
    record: Record, per_second: Mapping[str, float], is_rate: bool
) -> Callable[[str], float | None]:
    """Returns what gives a counter of `record`, or its rate; None where there is none."""

    def show(name: str) -> float | None:
        value = per_second.get(name) if is_rate else record.values.get(name)
        return None if value is None or isinstance(value, str) else value

    return show


_ENGINE_TITLES = [
    "ENGINE",
    "DATAPATH",
    "MODE",
    "SESSIONS",
    "SENT",
    "RECEIVED",
    "PACKETS-OUT",
    "PACKETS-IN",
    "IDLE-TURNS",
]
_SESSION_TITLES = [
    "SESSION",
    "ON",
    "PEER",
    "STATE",
    "AGE",
    "DATA-SENT",
    "SENT-AGAIN",
    "DATA-RECEIVED",
    "RTT",
    "LEAST",
    "WINDOW",
    "IN-FLIGHT",
    "PACED",
    "PATHS",
]
_PATH_TITLES = ["PATH", "OF", "ON", "RTT", "LEAST", "IN-FLIGHT", "QUARANTINED"]


def _engine_cells(name: str, engine: Record, show: Callable[[str], float | None]) -> Cells:
    turns, idle = show("turns"), show("idle_turns")
    return [
        name,
        str(engine.values.get("datapath", "-")),
        str(engine.values.get("mode", "-")),
        _count(engine.values.get("sessions")),
        _bytes(show("wire_bytes_sent")),
        _bytes(show("wire_bytes_received")),
        _count(show("wire_packets_sent")),
        _count(show("wire_packets_received")),
        f"{100 * idle / turns:.0f}%" if turns and idle is not None else "-",
    ]


def _session_cells(name: str, session: Record, show: Callable[[str], float | None]) -> Cells:
    values = session.values
    return [
        str(values.get("session", "-")),
        name,
        str(values.get("peer", "-")),
        str(values.get("state", "-")),
        _time(values.get("age_ns")),
        _bytes(show("data_bytes_sent")),
        _bytes(show("data_bytes_retransmitted")),
        _bytes(show("data_bytes_received")),
        _time(values.get("smoothed_rtt_ns")),
        _time(values.get("minimum_rtt_ns")),
        _count(values.get("window_packets")),
        _count(values.get("in_flight_packets")),
        _rate(values.get("pacing_rate")),
        f"{values.get('usable_paths', '-')}/{values.get('paths', '-')}",
    ]


def _path_cells(name: str, session: Record, path: Record) -> Cells:
    return [
        str(path.values.get("path", "-")),
        str(session.values.get("session", "-")),
        name,
        _time(path.values.get("smoothed_rtt_ns")),
        _time(path.values.get("minimum_rtt_ns")),
        _count(path.values.get("in_flight_packets")),
        "yes" if path.values.get("is_quarantined") else "no",
    ]


def _trouble(name: str, show: Callable[[str], float | None]) -> Iterator[str]:
    found = [f"{one} {_count(value)}" for one in _TROUBLE if (value := show(one))]
    if found:
        yield f"  {name}: " + ", ".join(found)


def _columns(titles: Sequence[str], rows: list[Cells]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    for row in (titles, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  " + "  ".join(cells).rstrip()


# -- Values ---------------------------------------------------------------------------------------


def _scaled(value: object, step: float, units: Sequence[str]) -> str:
    if not isinstance(value, (int, float)):
        return "-"
    size = float(value)
    for index, unit in enumerate(units[:-1]):
        if abs(size) < step - 0.5:
            return f"{size:.0f}{unit}" if index == 0 and size.is_integer() else f"{size:.1f}{unit}"
        size /= step
    return f"{size:.1f}{units[-1]}"


def _bytes(value: object) -> str:
    return _scaled(value, 1000, (" B", " kB", " MB", " GB", " TB"))


def _rate(value: object) -> str:
    """Returns bytes per second; "-" where there is no limit, or nothing known."""
    return f"{_bytes(value)}/s" if value else "-"


def _count(value: object) -> str:
    if isinstance(value, (int, float)) and value < 1e6:
        return f"{value:.0f}" if value == int(value) else f"{value:.1f}"
    return _scaled(value, 1000, ("", "k", "M", "G", "T"))


def _time(value: object) -> str:
    """Returns nanoseconds as people say them; "-" for none."""
    if not isinstance(value, int) or value == 0:
        return "-"
    for factor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if value >= factor:
            return f"{value / factor:.1f} {unit}"
    return f"{value} ns"
