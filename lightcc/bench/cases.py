"""What is measured: one case is a collective on given element counts; a size range makes many.

Sizes mean what they mean in nccl-tests: the bytes of the buffer that is reduced or broadcast, the
whole gathered buffer for allgather, and a rank's whole input for reducescatter and alltoall. Counts
that must divide by the number of ranks are rounded down to a multiple of it (at least one each).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lightcc.bench.models import gradients

ITEM_BYTES = 4  # All elements are float32, and reductions are sums.
COLLECTIVES = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")
_DIVIDED = ("allgather", "alltoall", "reducescatter")
_SIZE = re.compile(r"^(\d+(?:\.\d+)?)([KMG]?)(?:i?B)?$", re.IGNORECASE)
_MAX_BYTES = 1 << 40
_FACTOR = 4  # From one size of a range to the next.
_MAX_IN_EXCHANGE = 16  # Ranks; docs/inside/algorithms.md.
_INDEX_BYTES = 2  # Each value that top-k sends has an index.
_TOPK_THRESHOLD_BYTES = 1 << 20  # Smaller tensors travel whole.


class SizeError(ValueError):
    """A size or range that cannot be read."""


@dataclass(frozen=True)
class Case:
    """One line of the table, for every library."""

    collective: str
    counts: tuple[int, ...]  # Elements of each tensor; more than one for a model.
    inplace: bool
    model: str = ""

    @property
    def size_bytes(self) -> int:
        """The size that bandwidth is computed from."""
        return sum(self.counts) * ITEM_BYTES

    def bus_factor(self, num_ranks: int) -> float:
        """How many times the size crosses the slowest link, per nccl-tests' PERFORMANCE.md."""
        if self.collective == "allreduce":
            return 2 * (num_ranks - 1) / num_ranks
        return 1.0 if self.collective == "broadcast" else (num_ranks - 1) / num_ranks

    def min_bytes_of_host(self, num_ranks: int, num_hosts: int) -> float:
        """The bytes that the host which sends most cannot avoid to send; two levels reach that."""
        if num_hosts == 1:
            return 0.0
        share = (num_hosts - 1) / num_hosts * self.size_bytes
        if self.collective == "alltoall":
            return share * num_ranks / num_hosts  # Every rank of the host sends its own.
        if self.collective == "broadcast":
            return self.size_bytes
        return 2 * share if self.collective == "allreduce" else share

    def bytes_of_host(
        self, variant: str, num_ranks: int, num_hosts: int, ratio: float | None = None
    ) -> float | None:
        """The bytes that a host sends in an allreduce by the formula of `variant`'s algorithm.

        Without headers, rounding and the counts of sparse lists. A direct exchange between all
        ranks (flat, up to 16 of them) crosses between hosts for every pair of ranks; a ring
        (flat above 16, gloo) has one edge out of each host; two levels send a shard once.
        Top-k sends a value and an index of what it keeps of each large tensor (LIGHT_TOPK_THRESHOLD
        by default) to every other host, and small tensors densely on two levels.
        None: the algorithm is not known (an MPI's), or it is no allreduce.
        """
        name = variant.partition(":")[0]
        if self.collective != "allreduce" or num_hosts == 1:
            return None
        minimum = self.min_bytes_of_host(num_ranks, num_hosts)
        per_host = num_ranks // num_hosts
        ring = 2 * (num_ranks - 1) / num_ranks * self.size_bytes
        exchange = 2 * per_host * (num_ranks - per_host) / num_ranks * self.size_bytes
        formulas = {
            "lightcc": minimum,
            "2d": minimum,
            "flat": exchange if num_ranks <= _MAX_IN_EXCHANGE else ring,
            "gloo": ring,
        }
        if ratio is None:
            return formulas.get(name)
        large = sum(count for count in self.counts if count * ITEM_BYTES >= _TOPK_THRESHOLD_BYTES)
        lists = ratio * large * (ITEM_BYTES + _INDEX_BYTES) * (num_hosts - 1)
        return lists + minimum * (1 - large * ITEM_BYTES / self.size_bytes)


def size_text(size: int) -> str:
    """Returns bytes as the command line takes them: "4K", "1M", "1000"."""
    for shift, suffix in ((30, "G"), (20, "M"), (10, "K")):
        if size >= 1 << shift and size % (1 << shift) == 0:
            return f"{size >> shift}{suffix}"
    return str(size)


def parse_size(text: str) -> int:
    """Returns the bytes of "4K", "1.5M", "256" (K, M, G are powers of 1024).

    Raises:
        SizeError: It is none of these, or zero, or over 1 TiB.
    """
    match = _SIZE.match(text.strip())
    value = float(match[1]) * 1024 ** " KMG".index(match[2].upper() or " ") if match else 0
    if not 1 <= value <= _MAX_BYTES:
        msg = f"'{text}' is not a size; write for example 4K, 1.5M, 256M"
        raise SizeError(msg)
    return int(value)


def parse_sizes(text: str) -> list[int]:
    """Returns the sizes of "4K:256M" (each four times the one before) or of "4K,1M,16M"."""
    if ":" not in text:
        return [parse_size(part) for part in text.split(",")]
    first, last = (parse_size(part) for part in text.split(":", 1))
    if first > last:
        msg = f"'{text}' ends before it begins"
        raise SizeError(msg)
    sizes = [first]
    while sizes[-1] * _FACTOR <= last:
        sizes.append(sizes[-1] * _FACTOR)
    return sizes


def size_case(collective: str, size_bytes: int, num_ranks: int, *, inplace: bool) -> Case:
    """Returns the case of one size, rounded to whole elements (and ranks, where they divide it)."""
    count = max(1, size_bytes // ITEM_BYTES)
    if collective in _DIVIDED:
        count = max(1, count // num_ranks) * num_ranks
    inplace = (inplace and collective == "allreduce") or collective == "broadcast"
    return Case(collective, (count,), inplace)


def model_case(model: str) -> Case:
    """Returns the case of one training step's gradients: all reduced in place, last layer first."""
    return Case("allreduce", tuple(gradients(model)), inplace=True, model=model)
