"""Readings for other programs: JSON, and Prometheus' text format, which lightcc-top shows.

Both name everything that a file names, and nothing else. For Prometheus, times are in seconds and
names end as is the custom there: `harp_session_smoothed_rtt_seconds`, `harp_engine_turns_total`.
Information is a sample of value 1 with labels, `harp_session_info`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightcc._stats.prometheus import Families
from lightcc.harp.stat.files import DEAD
from lightcc.harp.stat.layout import COUNTER, GAUGE, INFO, LABEL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightcc.harp.stat.files import Process, Reading
    from lightcc.harp.stat.layout import Field, Record
    from lightcc.harp.stat.rates import Rates

# -- JSON -----------------------------------------------------------------------------------------


def as_json(reading: Reading, rates: Rates) -> dict[str, Any]:
    """Returns a reading as values of JSON, with rates where there are some."""
    return {
        "processes": [_process(one, rates) for one in reading.processes],
        "problems": [{"file": str(one.path), "problem": one.text} for one in reading.problems],
    }


def _process(process: Process, rates: Rates) -> dict[str, Any]:
    def record(*chain: Record) -> dict[str, Any]:
        last = chain[-1]
        value: dict[str, Any] = dict(last.values)
        change = rates.of(process.path, *chain)
        if change:
            value["per_second"] = dict(change)
        if len(chain) <= len(_BELOW):
            name = _BELOW[len(chain) - 1]
            value[f"{name}_shown"] = [record(*chain, one) for one in last.below]
            value[f"{name}_there_are"] = last.there_are
        return value

    return {
        "pid": process.pid,
        "state": process.state,
        "file": str(process.path),
        "created_unix_ns": process.created_unix_ns,
        "silent_s": process.silent_s(),
        "engines": [record(one) for one in process.engines],
    }


_BELOW = ("sessions", "paths")  # What an engine has, and what a session has.


# -- Prometheus -----------------------------------------------------------------------------------


def as_prometheus(reading: Reading) -> str:
    """Returns a reading in Prometheus' text format. Of dead processes only that they are dead."""
    families = Families()
    for process in reading.processes:
        labels = {"pid": process.pid}
        families.add(
            "harp_process_up",
            "gauge",
            "1: runs; 0: has ended and left its file",
            labels,
            int(process.state != DEAD),
        )
        silent = process.silent_s()
        if process.state == DEAD:
            continue
        if silent is not None:
            text = "Since the process last wrote its counters"
            families.add("harp_process_silent_seconds", "gauge", text, labels, silent)
        for engine in process.engines:
            _add(families, "engine", labels, engine)
    text = "Files of counters that could not be read"
    families.add("harp_stat_problems", "gauge", text, {}, len(reading.problems))
    return families.text()


def _add(families: Families, level: str, above: Mapping[str, object], record: Record) -> None:
    labels = {**above, **record.of_kind(LABEL)}
    for field in record.fields:
        value = record.values[field.name]
        if field.kind in (COUNTER, GAUGE) and isinstance(value, int):
            name, scaled = _metric(level, field, value)
            kind = "counter" if field.kind == COUNTER else "gauge"
            families.add(name, kind, field.help or field.name, labels, scaled)
    info = record.of_kind(INFO)
    if info:
        text = f"What there is to know of a HARP {level}"
        families.add(f"harp_{level}_info", "gauge", text, {**labels, **info}, 1)
    below = {"engine": "session", "session": "path"}.get(level)
    if below is not None:
        text = f"There are, but are not shown, for each {level}"
        hidden = max(record.there_are - len(record.below), 0)
        families.add(f"harp_{level}_{below}s_hidden", "gauge", text, labels, hidden)
        for one in record.below:
            _add(families, below, labels, one)


def _metric(level: str, field: Field, value: int) -> tuple[str, float]:
    name = field.name
    scaled: float = value
    if field.unit == "ns":
        name, scaled = name.removesuffix("_ns") + "_seconds", value / 1e9
    elif field.unit == "bytes/s":
        name += "_bytes_per_second"
    return f"harp_{level}_{name}" + ("_total" if field.kind == COUNTER else ""), scaled
