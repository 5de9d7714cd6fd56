"""What a bucket of gradients takes, by algorithm and compression (docs/inside/algorithms.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lightcc.bench.layer_table import GRADIENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightcc.plan.costs import Costs

_MAX_DIRECT = 16  # Members of a direct exchange; more form a ring.
_TREE_CHILDREN = 8
_COMPRESSED_AT_ONCE = 2  # Tensors of a compressed bucket that are between hosts together.
_INDEX_BYTES = 2
_CODE_BYTES = {"int8": 1 + 2 / 128, "int4": 0.5 + 2 / 128}
_MIN_CHUNK = 256 << 10
_CHUNK_FACTOR = 48e3  # A chunk has sqrt(bytes of the bucket * this).


@dataclass(frozen=True)
class Site:
    """The hosts of a job."""

    hosts: int
    gpus: int  # Ranks of each host.
    link_bps: float  # The rate of a host's link in each direction.
    tcp_bps: float  # What TCP reaches on it.

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.hosts * self.gpus

    @property
    def tree_depth(self) -> int:
        """Levels of the control tree between rank 0 and the last host, at least 1."""
        depth, reached, level = 1, 1 + _TREE_CHILDREN, _TREE_CHILDREN
        while reached < self.hosts:
            level *= _TREE_CHILDREN
            reached += level
            depth += 1
        return depth


@dataclass(frozen=True)
class Variant:
    """A way of running the all-reduces of a step."""

    name: str
    two_level: bool = True
    compression: str = ""  # topk, int8, int4.
    ratio: float = 0.01  # The share that top-k sends.
    fusion: str = "auto_fusion"
    lanes: int = 1
    line_rate: bool = False  # HARP or RDMA carry the data, not TCP.
    variables: dict[str, str] = field(default_factory=dict)
    min_bytes: int = 1 << 20  # Smallest tensor that is compressed (LIGHT_TOPK_THRESHOLD).


@dataclass(frozen=True)
class BucketCost:
    """What one bucket takes."""

    fixed_s: float  # While the link is free for other lanes.
    busy_s: float  # While the link is busy, or what is slower.
    wire_bytes: float  # Sent by a host, with headers.


def bucket_cost(sizes: Sequence[int], variant: Variant, site: Site, costs: Costs) -> BucketCost:
    """Returns what the all-reduce of tensors of `sizes` bytes takes, in one bucket."""
    if site.ranks == 1:
        return BucketCost(0.0, 0.0, 0.0)
    total = sum(sizes)
    if site.hosts == 1:
        return BucketCost(costs.step_s, total * costs.host_s_per_byte, 0.0)
    if not variant.two_level:
        return _flat(total, variant, site, costs)
    packed = [size for size in sizes if variant.compression and size >= variant.min_bytes]
    dense = total - sum(packed)
    sent = dense * _dense_share(site.hosts)
    sent += sum(packed) * (_packed_share(variant, site.hosts) if packed else 0.0)
    shard = sum(packed) / site.gpus
    # Lists and codes are exchanged at once; only dense tensors take the steps of a ring.
    steps: float = _steps(site.hosts) if dense else 2
    if variant.compression:
        steps *= max(1.0, len(sizes) / _COMPRESSED_AT_ONCE)
    return _pipelined(total, sent, shard, steps, variant, site, costs)


def _dense_share(members: int) -> float:
    """Returns what a member of an all-reduce sends, in shares of the tensor."""
    return 2 * (members - 1) / members


def _steps(members: int) -> int:
    return 2 if members <= _MAX_DIRECT else 2 * (members - 1)


def _packed_share(variant: Variant, hosts: int) -> float:
    """Returns what a host sends of a compressed float32 tensor, in shares of it."""
    if variant.compression == "topk":
        entry = variant.ratio * (_INDEX_BYTES + GRADIENT_BYTES)
        lists = (hosts - 1) * entry
        pieces = (hosts - 1) / hosts * (entry + GRADIENT_BYTES)
        return min(lists, pieces, _dense_share(hosts) * GRADIENT_BYTES) / GRADIENT_BYTES
    codes = _CODE_BYTES[variant.compression] / GRADIENT_BYTES
    return codes if hosts == 2 else codes * _dense_share(hosts)


def _wire(sent: float, variant: Variant, site: Site, costs: Costs) -> tuple[float, float]:
    """Returns the bytes on a host's link and the seconds that they take."""
    wire = sent * costs.wire_bytes_per_byte
    return wire, 8 * wire / (site.link_bps if variant.line_rate else site.tcp_bps)


def _flat(total: int, variant: Variant, site: Site, costs: Costs) -> BucketCost:
    ranks = site.ranks
    per_rank = total * _dense_share(ranks)
    # In a ring one neighbour of each host is elsewhere; in a direct exchange most members are.
    leaving = per_rank
    if ranks <= _MAX_DIRECT:
        leaving *= site.gpus * (ranks - site.gpus) / (ranks - 1)
    wire, on_link = _wire(leaving, variant, site, costs)
    busy = max(on_link, per_rank * costs.tcp_s_per_byte)
    return BucketCost(_steps(ranks) * costs.step_s, busy, wire)


def _pipelined(
    total: int, sent: float, shard: float, steps: float, variant: Variant, site: Site, costs: Costs
) -> BucketCost:
    """Two levels: the slowest stage, and one chunk through the others."""
    wire, on_link = _wire(sent, variant, site, costs)
    stages = [
        max(on_link, sent / site.gpus * costs.tcp_s_per_byte),
        total * costs.host_s_per_byte if site.gpus > 1 else 0.0,
        shard * costs.compress_s_per_byte,
    ]
    chunk = min(1.0, max(math.sqrt(total * _CHUNK_FACTOR), _MIN_CHUNK) / max(total, 1))
    slowest = max(stages)
    within = 2 if site.gpus > 1 else 0  # Into the shard, and out of it.
    fixed = (steps + within) * costs.step_s
    return BucketCost(fixed, slowest + chunk * (sum(stages) - slowest), wire)
