"""What one bucket of gradients does, by algorithm and compression (docs/inside/algorithms.md)."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

from lightcc import _core
from lightcc.bench.layer_table import GRADIENT_BYTES
from lightcc.plan.levels import make_levels
from lightcc.plan.network import Exchange, Ring, Work
from lightcc.plan.site import CODE_SHARES, ENTRY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightcc.plan.costs import Costs
    from lightcc.plan.levels import Level
    from lightcc.plan.network import Stage
    from lightcc.plan.site import Site, Variant

_MAX_FLOOD, _MAX_FLOOD_IN_ALL = 16 << 10, 64 << 10
_MIN_CHUNK, _CHUNK_FACTOR = 256 << 10, 48e3  # A chunk has sqrt(bytes of the bucket * this).
_MIN_PIECE, _MAX_PIECE, _STAGING = 32 << 10, 512 << 10, 4 << 20  # Bytes in a direct exchange.
_MIN_LEVEL_PIECE = 128 << 10  # The same on levels.
_DIRECT_DEPTH, _GRID_DEPTH, _BATCH_DEPTH = 4, 3, 1  # Chunks under way together.
_BATCH_BYTES = GRADIENT_BYTES << 20  # A batch of compressed tensors ends when it has so many.
_HEADER_BYTES = 16


class Buckets:
    """Makes the stages of buckets."""

    def __init__(self, site: Site, variant: Variant, costs: Costs) -> None:
        self._site, self._variant, self._costs = site, variant, costs
        self._members, self._abreast = variant.members(site)

    def chunks(self, sizes: Sequence[int]) -> tuple[list[list[Stage]], int]:
        """Returns the stages of each chunk of a bucket, and how many chunks go side by side.

        The bucket has gradients of these sizes in bytes, all of them compressed or none.
        """
        total = sum(sizes)
        if self._site.hosts == 1:
            return [self._within(total, [])], 1
        if self._variant.ring:
            return [[Ring(total)]], 1
        if self._variant.compresses(sizes[0]):
            batches = _batches(sizes)
            return [self._within(it, self._packed(it)) for it in batches], _BATCH_DEPTH
        chunk, depth = self._chunk_bytes(total)
        count = max(1, math.ceil(total / chunk))
        # Without blocks the chunks are those of one operation.
        operation = total / count if self._abreast > 1 else total
        dense = self._dense(total / count, self._levels(operation))
        return [self._within(total / count, dense)] * count, depth

    def _levels(self, data: float) -> list[Level]:
        """Returns the levels of an operation of `data` between hosts, from the lowest up."""
        widths = _core.grid_widths(self._members, int(data / self._abreast))
        return _grid(self._members, tuple(widths))

    def _chunk_bytes(self, total: int) -> tuple[float, int]:
        if self._abreast > 1:
            return max(_MIN_CHUNK, math.sqrt(total * _CHUNK_FACTOR)), _GRID_DEPTH
        row = self._levels(total)[0].width
        piece = min(max(_MIN_PIECE, total / (row * _DIRECT_DEPTH)), _MAX_PIECE)
        if row > 2:
            piece = min(piece, _STAGING / (_DIRECT_DEPTH * (row - 1)))
        if row < self._members:
            piece = max(piece, _MIN_LEVEL_PIECE)
        return row * piece, _DIRECT_DEPTH

    def _within(self, data: float, between: list[Stage]) -> list[Stage]:
        """Returns `between` with what the ranks of a host do in memory before and after it."""
        if self._site.gpus == 1 or not self._variant.two_level:
            return between
        half = Work(data * self._costs.host_s_per_byte / 2)
        return [half, *between, half]

    def _dense(self, data: float, levels: Sequence[Level]) -> list[Stage]:
        """Returns an all-reduce: to the owners of shares, level by level, and back."""
        if not levels:
            return []
        each, level = data / self._abreast, levels[0]
        if each <= _MAX_FLOOD and (level.width - 1) * each <= _MAX_FLOOD_IN_ALL:
            return [Exchange(level, data, whole=True), *self._dense(data, levels[1:])]
        share: list[Stage] = [Exchange(level, data)]
        return [*share, *self._dense(data / level.width, levels[1:]), *share]

    def _packed(self, data: float) -> list[Stage]:
        """Returns what happens to compressed tensors between hosts."""
        hosts, kind, ratio = self._members, self._variant.compression, self._variant.ratio
        [level] = _grid(hosts, (hosts,))
        compress = Work(data / self._abreast * self._costs.compress_s_per_byte)
        if kind != "topk":
            codes = data * CODE_SHARES[kind]
            if hosts == 2:
                return [compress, Exchange(level, codes, whole=True)]
            return [compress, Exchange(level, codes), *self._gather(codes)]
        lists = data * ratio * ENTRY_BYTES / GRADIENT_BYTES
        ways = _topk_shares(hosts, ratio)
        way = min(ways, key=ways.__getitem__)
        if way == "dense":
            return [compress, *self._dense(data, self._levels(data))]
        stages: list[Stage] = [compress, Exchange(level, _HEADER_BYTES * self._abreast, whole=True)]
        if way == "pieces":
            return [*stages, Exchange(level, lists), *self._gather(data)]
        for level in self._levels(lists * hosts):
            stages.append(Exchange(level, lists, whole=True))
            lists *= level.width
        return stages

    def _gather(self, data: float) -> list[Stage]:
        """Returns an all-gather of equal parts of `data`, down the levels."""
        stages: list[Stage] = []
        for level in self._levels(data):
            stages.insert(0, Exchange(level, data))
            data /= level.width
        return stages


#: Levels of a grid; variants share them.
_grid = functools.lru_cache(maxsize=64)(make_levels)


def _topk_shares(hosts: int, ratio: float) -> dict[str, float]:
    """Returns what a host sends of its bytes, by how the elements of top-k can travel."""
    entry, others = ratio * ENTRY_BYTES / GRADIENT_BYTES, hosts - 1
    crossing = others / hosts
    return {"lists": others * entry, "pieces": crossing * (entry + 1), "dense": crossing * 2}


def min_sent(num_bytes: int, variant: Variant, site: Site) -> float:
    """Returns what each host must send of a gradient, with two levels and this compression."""
    kind = variant.compression if variant.compresses(num_bytes) else ""
    if kind == "topk":
        return num_bytes * min(_topk_shares(site.hosts, variant.ratio).values())
    codes = num_bytes * CODE_SHARES[kind]
    return codes if kind and site.hosts == 2 else 2 * (site.hosts - 1) / site.hosts * codes


def _batches(sizes: Sequence[int]) -> Iterator[int]:
    """Yields the bytes of each batch of compressed tensors."""
    batch = 0
    for size in sizes:
        batch += size
        if batch >= _BATCH_BYTES:
            yield batch
            batch = 0
    if batch:
        yield batch
