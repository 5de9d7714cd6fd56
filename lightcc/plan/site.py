"""The hosts of a job and what joins them, and ways of running all-reduces there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

#: What codes take, as a share of the bytes of what they stand for.
CODE_SHARES = {"": 1.0, "int8": (1 + 2 / 128) / 4, "int4": (0.5 + 2 / 128) / 4}
#: An element in a list of top-k, with its index.
ENTRY_BYTES = 4 + 2


@dataclass(frozen=True)
class SlowHost:
    """A host that is behind the others."""

    host: int
    compute: float = 1.0  # Its computing takes so many times as long.
    link: float = 1.0  # Its link has the others' rate divided by this.


@dataclass(frozen=True)
class Site:
    """The hosts of a job; neighbours share a rack."""

    hosts: int
    gpus: int  # Ranks of each host.
    link_bps: float  # The rate of a host's link in each direction.
    tcp_bps: float  # What TCP reaches on it.
    rack: int = 16  # Hosts of a rack.
    oversubscription: float = 1.0  # The rates of a rack's hosts over the rate of its up-link.
    slow: tuple[SlowHost, ...] = ()

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.hosts * self.gpus

    @property
    def has_uplinks(self) -> bool:
        """Whether links between racks can be full before those of hosts are."""
        return self.oversubscription > 1 and self.hosts > self.rack

    def slowness(self, of: Literal["compute", "link"]) -> npt.NDArray[np.float64]:
        """Returns how many times as long as others each host takes; shape [hosts]."""
        times = np.ones(self.hosts)
        for slow in self.slow:
            times[slow.host] *= getattr(slow, of)
        return times


@dataclass(frozen=True)
class Variant:
    """A way of running the all-reduces of a step."""

    name: str
    two_level: bool = True
    compression: str = ""  # topk, int8, int4.
    ratio: float = 0.01  # The share that top-k sends.
    fusion: str = "auto_fusion"
    line_rate: bool = False  # HARP or RDMA carry the data, not TCP.
    ring: bool = False  # All ranks in one ring, as other libraries have it.
    variables: dict[str, str] = field(default_factory=dict)
    min_bytes: int = 1 << 20  # Smallest tensor that is compressed (LIGHT_TOPK_THRESHOLD).

    def compresses(self, num_bytes: int) -> bool:
        """Whether a gradient of `num_bytes` is compressed."""
        return bool(self.compression) and num_bytes >= self.min_bytes

    def members(self, site: Site) -> tuple[int, int]:
        """Returns the members of an all-reduce, and the ranks that carry the data of each."""
        return (site.hosts, site.gpus) if self.two_level else (site.ranks, 1)
