"""A reading as tables for people.

Columns are chosen by name, where a file has them; everything else is in `--json`. Counters that
mean trouble are named where they are not zero.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeAlias

from lightcc.harp.stat.files import DEAD
from lightcc.harp.stat.layout import COUNTER

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
Column: TypeAlias = "tuple[str, str, Callable[[object], str]]"  # Title, field, how it is shown.


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
        text += f": DEAD, it left {process.path}; its last counters:"
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
        shown = _shown(engine, rates.of(process.path, engine) if is_rate else None)
        name = f"{engine.values.get('device', '?')}/{engine.values.get('engine', '?')}"
        engines.append([name, *_cells(_ENGINE, shown), _share(shown)])
        found = [f"{one} {_count(shown[one])}" for one in _TROUBLE if shown.get(one)]
        trouble += [f"  {name}: " + ", ".join(found)] if found else []
        hidden += max(engine.there_are - len(engine.below), 0)
        for session in engine.below:
            per_second = rates.of(process.path, engine, session) if is_rate else None
            values = _shown(session, per_second)
            number = _text(values.get("session"))
            usable = f"{_text(values.get('usable_paths'))}/{_text(values.get('paths'))}"
            sessions.append([number, name, *_cells(_SESSION, values), usable])
            paths += [
                [_text(path.values.get("path")), number, name, *_cells(_PATH, path.values)]
                for path in session.below
            ]
    yield from _columns(["ENGINE", *_titles(_ENGINE), "IDLE-TURNS"], engines)
    if sessions:
        yield from _columns(["SESSION", "ON", *_titles(_SESSION), "PATHS"], sessions)
    if hidden:
        yield f"  and {hidden} sessions that are not shown"
    if with_paths and paths:
        yield from _columns(["PATH", "OF", "ON", *_titles(_PATH)], paths)
    yield from trouble


def _shown(record: Record, per_second: Mapping[str, float] | None) -> dict[str, object]:
    """Returns the values of a record; with rates, these in place of what is counted."""
    if per_second is None:
        return dict(record.values)
    kept = {one.name: record.values[one.name] for one in record.fields if one.kind != COUNTER}
    return {**kept, **per_second}


def _cells(columns: Sequence[Column], values: Mapping[str, object]) -> Cells:
    return [show(values.get(name)) for _, name, show in columns]


def _titles(columns: Sequence[Column]) -> Cells:
    return [title for title, _, _ in columns]


def _columns(titles: Cells, rows: list[Cells]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    for row in (titles, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  " + "  ".join(cells).rstrip()


# -- Values ---------------------------------------------------------------------------------------


def _text(value: object) -> str:
    return "-" if value is None else str(value)


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


def _share(values: Mapping[str, object]) -> str:
    turns, idle = values.get("turns"), values.get("idle_turns")
    if not isinstance(turns, (int, float)) or not isinstance(idle, (int, float)) or not turns:
        return "-"
    return f"{100 * idle / turns:.0f}%"


_ENGINE: tuple[Column, ...] = (
    ("DATAPATH", "datapath", _text),
    ("MODE", "mode", _text),
    ("SESSIONS", "sessions", _count),
    ("SENT", "wire_bytes_sent", _bytes),
    ("RECEIVED", "wire_bytes_received", _bytes),
    ("PACKETS-OUT", "wire_packets_sent", _count),
    ("PACKETS-IN", "wire_packets_received", _count),
)
_SESSION: tuple[Column, ...] = (
    ("PEER", "peer", _text),
    ("STATE", "state", _text),
    ("AGE", "age_ns", _time),
    ("DATA-SENT", "data_bytes_sent", _bytes),
    ("SENT-AGAIN", "data_bytes_retransmitted", _bytes),
    ("DATA-RECEIVED", "data_bytes_received", _bytes),
    ("RTT", "smoothed_rtt_ns", _time),
    ("LEAST", "minimum_rtt_ns", _time),
    ("WINDOW", "window_packets", _count),
    ("IN-FLIGHT", "in_flight_packets", _count),
    ("PACED", "pacing_rate", _rate),
)
_PATH: tuple[Column, ...] = (
    ("RTT", "smoothed_rtt_ns", _time),
    ("LEAST", "minimum_rtt_ns", _time),
    ("IN-FLIGHT", "in_flight_packets", _count),
    ("QUARANTINED", "is_quarantined", lambda value: "yes" if value else "no"),
)
