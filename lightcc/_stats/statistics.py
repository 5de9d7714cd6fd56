"""What `lightcc.stats()` returns, and what each number in it means.

One table (`METRICS`) drives everything that shows these numbers: Prometheus, loggers, `lightcc-top`
and docs/running/watching.md. What the engine counts is in `csrc/bindings/stats.cpp`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from lightcc._binding import _core

COUNTER, GAUGE = "counter", "gauge"


class Metric(NamedTuple):
    """A number in `Statistics`."""

    name: str
    kind: str  # COUNTER: it only grows. GAUGE: it may fall.
    unit: str  # "bytes", "seconds", or "".
    meaning: str


METRICS = (
    Metric("steps", COUNTER, "", "Steps of DistributedOptimizers"),
    *(Metric(**row) for row in _core.stat_table()),
    Metric("compression_kept_ratio", GAUGE, "", "The largest kept_ratio of a compressed tensor"),
    Metric("awaited_seconds", GAUGE, "seconds", "How long ranks have waited for another"),
    Metric("slow_factor", GAUGE, "", "The largest factor of a slow rank; 0 where none is slow"),
)


class Record(dict[str, Any]):
    """A dictionary whose entries are attributes as well."""

    def __getattr__(self, name: str) -> Any:
        """Returns an entry.

        Raises:
            AttributeError: There is none of that name.
        """
        try:
            return self[name]
        except KeyError:
            msg = f"'{type(self).__name__}' has no entry {name!r}"
            raise AttributeError(msg, name=name, obj=self) from None


class AllreduceCost(Record):
    """What buckets of all-reduces take on this rank, as a line fitted to all that ran."""

    process_set: int
    carrier: str  #: `"host"`; of GPUs, `"staged"` by way of the host, or `"nccl"`.
    two_level: bool
    max_bytes: int  #: Buckets beyond are done another way.
    samples: int
    seconds: float  #: What a bucket without bytes takes.
    seconds_per_byte: float


class TensorCompression(Record):
    """What compression did for one tensor on this rank. Energies are sums of squares.

    They are of this rank's shard, means over about the last 100 steps, estimated from a sample of
    its elements. What was multiplied by a loss scale still is.
    """

    process_set: int
    name: str
    steps: int  #: That counted; those with a NaN or infinity do not.
    dense_bytes: int  #: What it would have sent uncompressed.
    sent_bytes: int
    input_energy: float  #: Energy of the input: gradients, or what the compressor makes of them.
    kept_energy: float  #: Energy of the residual.
    kept_ratio: float  #: Root of their quotient; 0 where nothing came in.


class SlowRank(Record):
    """A rank that keeps the others waiting in every step, for a sustained time."""

    rank: int
    factor: float  #: Its own time for a step by the median rank's, lately.
    seconds: float  #: For how long it has been slow.


class Statistics(Record):
    """Numbers and lists of one rank; its entries are attributes and those of a dictionary.

    Numbers are those of `METRICS`, integers unless they are ratios or seconds.

    Example:
        >>> import lightcc as hvd
        >>> hvd.init()
        >>> hvd.stats().operations == hvd.stats()["operations"]
        True
    """

    compression: list[TensorCompression]
    last_asked: list[int]  #: Rank 0: by rank, how many operations it was the last to ask for.
    awaited_ranks: list[int]  #: Rank 0: who has not submitted what has waited longest.
    slow_ranks: list[SlowRank]  #: Rank 0: who is slow (LIGHT_SLOW_TIME), by rank.
    allreduce_costs: list[AllreduceCost]
    fusion: list[dict[str, Any]]  #: By DistributedOptimizer; see `lightcc.fusion.Planner`.

    def __repr__(self) -> str:
        """Returns a line for each entry, without those that are 0 or empty."""
        lines = [f"  {name}={value!r}," for name, value in self.items() if value]
        return "\n".join(["Statistics(", *lines, ")"])

    def scalars(self) -> dict[str, float]:
        """Returns the numbers of `METRICS` by name, for a logger."""
        return {metric.name: self[metric.name] for metric in METRICS}


def make_statistics(counters: dict[str, Any], added: dict[str, Any]) -> Statistics:
    """Returns the engine's counters, and what other modules add, as one object."""
    statistics = Statistics(counters | added)
    statistics["allreduce_costs"] = [AllreduceCost(cost) for cost in counters["allreduce_costs"]]
    tensors = [_compression_of(tensor) for tensor in counters["compression"]]
    statistics["compression"] = tensors
    statistics["compression_kept_ratio"] = max((t.kept_ratio for t in tensors), default=0.0)
    slow = [SlowRank(rank) for rank in counters["slow_ranks"]]
    statistics["slow_ranks"] = slow
    statistics["slow_factor"] = max((rank.factor for rank in slow), default=0.0)
    return statistics


def _compression_of(tensor: dict[str, Any]) -> TensorCompression:
    ratio = 0.0
    if tensor["input_energy"] > 0.0:
        ratio = math.sqrt(tensor["kept_energy"] / tensor["input_energy"])
    return TensorCompression(tensor | {"kept_ratio": ratio})
