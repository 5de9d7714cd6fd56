"""The processors and links of all hosts, in virtual time.

A time is one for each member of an all-reduce: a host, or a rank where all-reduces are flat. What
keeps a processor or a link busy follows what kept it busy before, in the order of calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightcc.plan.costs import Costs
    from lightcc.plan.levels import Floats, Indices, Level
    from lightcc.plan.site import Site, Variant

_RING_LANES = 4  # Chunks side by side in a ring.
_RING_PIECE = 8 << 10  # Bytes; no message of a ring is smaller for its sake.


@dataclass(frozen=True)
class Work:
    """Processors are busy."""

    seconds: float


@dataclass(frozen=True)
class Exchange:
    """Members of each row send to the others of it."""

    level: Level
    data: float  # Bytes of a row, those of all ranks of a host together.
    whole: bool = False  # A message has all of a row's data, or a member's share.


@dataclass(frozen=True)
class Ring:
    """All ranks send around."""

    data: float


Stage = Work | Exchange | Ring


class _Links:
    """What joins parts of the members: both directions of hosts' links, or of racks' up-links."""

    def __init__(self, part_of: Indices, s_per_byte: Floats) -> None:
        self.part_of = part_of  # The part of each member; shape [members].
        self.s_per_byte = s_per_byte  # Shape [parts].
        self.out = np.zeros(len(s_per_byte))  # When each direction is free.
        self.into = np.zeros(len(s_per_byte))
        self._begins = np.searchsorted(part_of, np.arange(len(s_per_byte)))
        self._alone = len(part_of) == len(s_per_byte)  # Each part has one member.
        self._loads: dict[tuple[Level, bool], Floats] = {}

    def load(self, stage: Exchange) -> Floats:
        """Returns the bytes that each part sends; shape [parts]."""
        key = (stage.level, stage.whole)
        if key not in self._loads:
            self._loads[key] = stage.level.outside(self.part_of, whole=stage.whole)
        return self._loads[key] * stage.data

    def first(self, times: Floats) -> Floats:
        return times if self._alone else np.minimum.reduceat(times, self._begins)

    def last(self, times: Floats) -> Floats:
        return times if self._alone else np.maximum.reduceat(times, self._begins)

    def take(self, direction: Floats, ends: Floats, load: Floats) -> Floats:
        """Keeps a direction busy where there is a load; returns until when, by member."""
        np.copyto(direction, ends, where=load > 0)
        return np.where(load > 0, ends, 0.0)[self.part_of]


class Network:
    """What the members of all-reduces have; all of it is free at 0."""

    def __init__(self, site: Site, variant: Variant, costs: Costs) -> None:
        self._costs, self._ranks = costs, site.ranks
        self.members, self._abreast = variant.members(site)
        rate = site.link_bps if variant.line_rate else site.tcp_bps
        has_peers = self.members > 2 and not variant.line_rate
        #: What an exchange reaches of links' rates.
        self._reached = costs.shared_rate if has_peers else 1.0
        host_of = np.arange(self.members) // (self.members // site.hosts)
        wire_bits = 8 * costs.wire_bytes_per_byte / self._reached
        self._hosts = _Links(host_of, wire_bits / rate * site.slowness("link"))
        self._links = [self._hosts]
        if site.has_uplinks:
            racks = -(-site.hosts // site.rack)
            rate = site.link_bps * site.rack / site.oversubscription
            self._links.append(_Links(host_of // site.rack, np.full(racks, wire_bits / rate)))
        self._processor = np.zeros(self.members)
        self._sent = np.zeros(site.hosts)

    @property
    def wire_bytes(self) -> float:
        """What the host that sent most has sent, with headers."""
        return float(self._sent.max()) * self._costs.wire_bytes_per_byte

    def play(self, stage: Stage, ready: Floats) -> Iterator[Floats]:
        """Plays a stage, which each member begins when it is ready.

        Yields:
            Times of members, after which it goes on; at last their ends.
        """
        if isinstance(stage, Exchange):
            yield from self._exchange(stage, ready)
        elif isinstance(stage, Ring):
            yield self._ring(stage.data, ready)
        else:
            self._processor = np.maximum(self._processor, ready) + stage.seconds
            yield self._processor

    def _exchange(self, stage: Exchange, ready: Floats) -> Iterator[Floats]:
        """Has all send, and then, when the last message is there, has them take in theirs."""
        peers = stage.level.peers
        sent = stage.data / self._abreast * (peers if stage.whole else stage.level.shares)
        busy = self._costs.message_s * peers + self._costs.tcp_s_per_byte / 2 * sent
        each = busy / np.maximum(peers, 1.0)
        begin = np.maximum(self._processor, ready)
        left = self._processor = begin + busy
        for links in self._links:
            load = links.load(stage)
            end = np.maximum(links.out, links.first(begin + each))
            end = np.maximum(end + load * links.s_per_byte, links.last(self._processor))
            left = np.maximum(left, links.take(links.out, end, load))
        self._sent += self._hosts.load(stage)
        arrived = stage.level.latest(left) + self._costs.latency_s
        yield arrived
        for links in self._links:
            load = links.load(stage)
            seconds = load * links.s_per_byte
            end = np.maximum(links.into, links.last(arrived) - seconds) + seconds
            arrived = np.maximum(arrived, links.take(links.into, end, load))
        self._processor = np.maximum(self._processor, arrived - busy + each) + busy
        yield self._processor

    def _ring(self, data: float, ready: Floats) -> Floats:
        """Runs one ring of all ranks, which waits for its slowest link in every step."""
        costs, steps = self._costs, 2 * (self._ranks - 1)
        part = data / self._ranks
        piece = min(part, max(_RING_PIECE, part / _RING_LANES))
        chunks = max(1.0, part / piece)
        lanes = min(_RING_LANES, chunks)
        link = piece * max(float(it.s_per_byte.max()) for it in self._links) * self._reached
        processor = 2 * costs.message_s + piece * costs.tcp_s_per_byte
        step = max(link + processor + costs.latency_s, lanes * max(link, processor))
        self._sent += steps * part
        return np.full_like(ready, ready.max() + chunks / lanes * steps * step)
