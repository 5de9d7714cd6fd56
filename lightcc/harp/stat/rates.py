"""What counters did between two readings.

A record is the same one where file, engine and its labels are. Rates are over the writer's own
times, so that a reading that comes late does not make a process look slow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightcc.harp.stat.layout import COUNTER, LABEL

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lightcc.harp.stat.files import Process, Reading
    from lightcc.harp.stat.layout import Record

Key = tuple[object, ...]


def key_of(record: Record) -> Key:
    """Returns what tells a record from others of its table."""
    return tuple(record.of_kind(LABEL).values())


class Rates:
    """Rates per second of the counters of one reading, where an earlier one has them, too."""

    def __init__(self, before: Reading | None, now: Reading) -> None:
        self._rates: dict[Key, dict[str, float]] = {}
        earlier = {one.path: one for one in before.processes} if before else {}
        for process in now.processes:
            if process.path in earlier:
                self._compare(process, earlier[process.path])

    def of(self, path: Path, *records: Record) -> Mapping[str, float]:
        """Returns those of the last record, which lies below the others; none where unknown."""
        return self._rates.get((path, *map(key_of, records)), {})

    def _compare(self, now: Process, before: Process) -> None:
        engines = {key_of(engine): engine for engine in before.engines}
        for engine in now.engines:
            earlier = engines.get(key_of(engine))
            passed_s = (engine.written_ns - earlier.written_ns) / 1e9 if earlier else 0.0
            if earlier is not None and passed_s > 0:
                self._note((now.path,), engine, earlier, passed_s)

    def _note(self, above: Key, now: Record, before: Record, passed_s: float) -> None:
        key = (*above, key_of(now))
        earlier = before.of_kind(COUNTER)
        self._rates[key] = {
            name: (value - was) / passed_s
            for name, value in now.of_kind(COUNTER).items()
            if isinstance(was := earlier.get(name), int) and isinstance(value, int)
        }
        below = {key_of(one): one for one in before.below}
        for one in now.below:
            if key_of(one) in below:
                self._note(key, one, below[key_of(one)], passed_s)
