"""A reading in Prometheus' text format: `lightcc_*` of the ranks, `harp_*` of HARP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightcc._stats.prometheus import Families
from lightcc._stats.statistics import COUNTER, METRICS
from lightcc.harp.stat.export import as_prometheus as harp_as_prometheus
from lightcc.harp.stat.files import default_folder, read_folder
from lightcc.harp.stat.layout import StatFileError

if TYPE_CHECKING:
    from pathlib import Path

    from lightcc.top.reading import Reading


def as_prometheus(reading: Reading) -> str:
    """Returns everything that the ranks of this machine, and HARP in them, count."""
    families = Families()
    for one in reading.ranks:
        labels = {"job": one.job, "rank": one.rank, "pid": one.pid}
        info = labels | {"size": one.size, "host": one.hostname}
        families.add("lightcc_rank_info", "gauge", "What there is to know of a rank", info, 1)
        for metric in METRICS:
            name = f"lightcc_{metric.name}" + ("_total" if metric.kind == COUNTER else "")
            families.add(name, metric.kind, metric.meaning, labels, one.counters[metric.name])
        text = "Operations that a rank was the last to ask for"
        for rank, count in enumerate(one.counters["last_asked"]):
            late = {"job": one.job, "rank": rank}
            families.add("lightcc_last_asked_total", COUNTER, text, late, count)
        text = "Own time for a step of a rank that is slow, by the median rank's"
        for slow in one.counters["slow_ranks"]:
            labels = {"job": one.job, "rank": slow["rank"]}
            families.add("lightcc_slow_rank_factor", "gauge", text, labels, slow["factor"])
    text = "Processes that do not answer"
    families.add("lightcc_silent_processes", "gauge", text, {}, len(reading.silent))
    return families.text() + _harp(default_folder())


def _harp(folder: Path) -> str:
    try:
        return harp_as_prometheus(read_folder(folder))
    except StatFileError:
        return ""  # The folder cannot be read: HARP publishes nothing there.
