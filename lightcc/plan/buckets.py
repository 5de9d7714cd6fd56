"""What one bucket of gradients does, by algorithm and compression (docs/inside/algorithms.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightcc import _core
from lightcc.bench.layer_table import GRADIENT_BYTES
from lightcc.plan.levels import make_levels
from lightcc.plan.site import CODE_BYTES, INDEX_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightcc.plan.costs import Costs
    from lightcc.plan.levels import Level
    from lightcc.plan.site import Site, Variant

_MAX_FLOOD, _MAX_FLOOD_IN_ALL = 16 << 10, 64 << 10
_MIN_CHUNK, _CHUNK_FACTOR = 256 << 10, 48e3  # A chunk has sqrt(bytes of the bucket * this).
_MIN_PIECE, _MAX_PIECE, _STAGING = 32 << 10, 512 << 10, 4 << 20  # Bytes in a direct exchange.
_MIN_LEVEL_PIECE = 128 << 10  # The same on levels.
_DIRECT_DEPTH, _GRID_DEPTH, _BATCH_DEPTH = 4, 3, 1  # Chunks under way together.
_BATCH_BYTES = GRADIENT_BYTES << 20  # A batch of compressed tensors ends when it has so many.
_HEADER_BYTES = 16


@dataclass(frozen=True)
class Work:
    """Processors are busy."""

    seconds: float


@dataclass(frozen=True)
class Exchange:
    """Members of each row send to each other."""

    level: Level
    data: float  # Bytes of a row, those of all ranks of a host together.
    whole: bool = False  # A message has all of a row's data, or a member's share.


@dataclass(frozen=True)
class Ring:
    """All ranks send around."""

    data: float


Stage = Work | Exchange | Ring


class Buckets:
    """Makes the stages of buckets."""

    def __init__(self, site: Site, variant: Variant, costs: Costs) -> None:
        self._site, self._variant, self._costs = site, variant, costs
        self._abreast = site.gpus if variant.two_level else 1
        members = site.hosts if variant.two_level else site.ranks
        self._members = members
        self._all = make_levels(members, [members])[0] if members > 1 else None
        self._levels_of: dict[tuple[int, ...], list[Level]] = {}

    def chunks(self, sizes: Sequence[int]) -> tuple[list[list[Stage]], int]:
        """Returns the stages of each chunk of a bucket, and how many chunks go side by side.

        Args:
            sizes: Bytes of the gradients, all of them compressed or none.
        """
        total = sum(sizes)
        if self._site.hosts == 1:
            return [self._within(total, [])], 1
        if self._variant.ring:
            return [[Ring(total)]], 1
        if self._variant.compresses(sizes[0]):
            return [self._within(sum(b), self._packed(sum(b))) for b in _batches(sizes)], (
                _BATCH_DEPTH
            )
        chunk, depth = self._chunk_bytes(total)
        count = max(1, math.ceil(total / chunk))
        # Without blocks the chunks are those of one operation.
        operation = total / count / self._abreast if self._abreast > 1 else total
        dense = list(self._dense(total / count, self.levels(operation)))
        return [self._within(total / count, dense)] * count, depth

    def levels(self, num_bytes: float) -> list[Level]:
        """Returns the levels of an operation of `num_bytes` between hosts, from the lowest up."""
        widths = tuple(_core.grid_widths(self._members, int(num_bytes)))
        if widths not in self._levels_of:
            self._levels_of[widths] = make_levels(self._members, widths)
        return self._levels_of[widths]

    def _chunk_bytes(self, total: int) -> tuple[float, int]:
        members = self._members
        if self._abreast > 1:
            return max(_MIN_CHUNK, math.sqrt(total * _CHUNK_FACTOR)), _GRID_DEPTH
        row = self.levels(total)[0].width
        piece = min(max(_MIN_PIECE, total / (row * _DIRECT_DEPTH)), _MAX_PIECE)
        if row > 2:
            piece = min(piece, _STAGING / (_DIRECT_DEPTH * (row - 1)))
        if row < members:
            piece = max(piece, _MIN_LEVEL_PIECE)
        return row * piece, _DIRECT_DEPTH

    def _within(self, data: float, between: list[Stage]) -> list[Stage]:
        """Returns `between` with what the ranks of a host do in memory before and after it."""
        if self._site.gpus == 1 or not self._variant.two_level:
            return between
        half = Work(data * self._costs.host_s_per_byte / 2)
        return [half, *between, half]

    def _dense(self, data: float, levels: list[Level]) -> Iterator[Stage]:
        """Yields an all-reduce: to the owners of shares, level by level, and back."""
        back: list[Stage] = []
        for level in levels:
            each = data / self._abreast
            if each <= _MAX_FLOOD and (level.width - 1) * each <= _MAX_FLOOD_IN_ALL:
                yield Exchange(level, data, whole=True)
                continue
            yield Exchange(level, data)
            back.append(Exchange(level, data))
            data /= level.width
        yield from reversed(back)

    def _packed(self, data: float) -> list[Stage]:
        """Returns what happens to compressed tensors between hosts."""
        if self._all is None:
            return []
        compress: list[Stage] = [
            Work(data / self._abreast * self._costs.compress_s_per_byte),
        ]
        hosts, kind, ratio = self._members, self._variant.compression, self._variant.ratio
        if kind != "topk":
            codes = data * CODE_BYTES[kind] / GRADIENT_BYTES
            if hosts == 2:
                return [*compress, Exchange(self._all, codes, whole=True)]
            return [*compress, Exchange(self._all, codes), *self._gather(codes)]
        lists = data * ratio * (INDEX_BYTES + GRADIENT_BYTES) / GRADIENT_BYTES
        way = topk_way(hosts, ratio)
        if way == "dense":
            return [*compress, *self._dense(data, self.levels(data / self._abreast))]
        headers = Exchange(self._all, _HEADER_BYTES * self._abreast, whole=True)
        if way == "pieces":
            return [*compress, headers, Exchange(self._all, lists), *self._gather(data)]
        stages = [*compress, headers]
        for level in self.levels(lists * hosts / self._abreast):
            stages.append(Exchange(level, lists, whole=True))
            lists *= level.width
        return stages

    def _gather(self, data: float) -> list[Stage]:
        """Returns an all-gather of equal parts of `data`, down the levels."""
        stages: list[Stage] = []
        for level in self.levels(data / self._abreast):
            stages.insert(0, Exchange(level, data))
            data /= level.width
        return stages


def topk_way(hosts: int, ratio: float) -> str:
    """Returns how top-k's elements travel: what sends the fewest bytes."""
    ways = {way: _topk_bytes(way, hosts, ratio) for way in ("lists", "pieces", "dense")}
    return min(ways, key=ways.__getitem__)


def _topk_bytes(way: str, hosts: int, ratio: float) -> float:
    """Returns what a member sends for each element of its shard."""
    entry = ratio * (INDEX_BYTES + GRADIENT_BYTES)
    if way == "lists":
        return (hosts - 1) * entry
    share = (hosts - 1) / hosts
    return share * (entry + GRADIENT_BYTES if way == "pieces" else 2 * GRADIENT_BYTES)


def min_sent(num_bytes: int, variant: Variant, site: Site) -> float:
    """Returns what each host must send of a gradient, with two levels and this compression."""
    hosts = site.hosts
    dense = 2 * (hosts - 1) / hosts * num_bytes
    if not variant.compresses(num_bytes):
        return dense
    if variant.compression == "topk":
        way = topk_way(hosts, variant.ratio)
        return _topk_bytes(way, hosts, variant.ratio) / GRADIENT_BYTES * num_bytes
    codes = CODE_BYTES[variant.compression] / GRADIENT_BYTES
    return codes * (num_bytes if hosts == 2 else dense)


def _batches(sizes: Sequence[int]) -> Iterator[list[int]]:
    batch: list[int] = []
    for size in sizes:
        batch.append(size)
        if sum(batch) >= _BATCH_BYTES:
            yield batch
            batch = []
    if batch:
        yield batch
