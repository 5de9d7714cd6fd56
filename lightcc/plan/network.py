"""The processors and links of all hosts, in virtual time.

A time is one for each member of an all-reduce: a host, or a rank where all-reduces are flat. What
keeps a processor or a link busy follows what kept it busy before, in the order of calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from lightcc.plan.costs import Costs
    from lightcc.plan.levels import Floats, Indices, Level
    from lightcc.plan.site import Site, Variant

_RING_LANES = 4  # Chunks side by side in a ring.
_RING_PIECE = 8 << 10  # Bytes; no message of a ring is smaller for its sake.


class _Links:
    """What joins parts of the members: both directions of hosts' links, or of racks' up-links."""

    def __init__(self, part_of: Indices, s_per_byte: Floats) -> None:
        self.part_of = part_of  # The part of each member; shape [members].
        self.s_per_byte = s_per_byte  # Shape [parts].
        self.out = np.zeros(len(s_per_byte))  # When each direction is free.
        self.into = np.zeros(len(s_per_byte))
        self._starts = np.searchsorted(part_of, np.arange(len(s_per_byte)))
        self._alone = len(part_of) == len(s_per_byte)  # Each part has one member.
        self._loads: dict[tuple[Level, bool], Floats] = {}

    def load(self, level: Level, *, whole: bool) -> Floats:
        """Returns what each part sends on a level, in shares of a row's data; shape [parts]."""
        key = (level, whole)
        if key not in self._loads:
            self._loads[key] = level.outside(self.part_of, whole=whole)
        return self._loads[key]

    def first(self, times: Floats) -> Floats:
        return times if self._alone else np.minimum.reduceat(times, self._starts)

    def last(self, times: Floats) -> Floats:
        return times if self._alone else np.maximum.reduceat(times, self._starts)


class Network:
    """What the members of all-reduces have; all of it is free at 0."""

    def __init__(self, site: Site, variant: Variant, costs: Costs) -> None:
        self._costs = costs
        flat = not variant.two_level
        self.members = site.ranks if flat else site.hosts
        self._ranks = site.ranks
        #: Ranks that carry a member's data side by side, each with a processor.
        self.abreast = 1 if flat else site.gpus
        host_of = np.arange(self.members) // (site.gpus if flat else 1)
        self._is_tcp = not variant.line_rate
        s_per_bit = 1 / (site.link_bps if variant.line_rate else site.tcp_bps)
        of_hosts = np.full(site.hosts, 8 * costs.wire_bytes_per_byte * s_per_bit)
        for slow in site.slow:
            of_hosts[slow.host] *= slow.link
        self._hosts = _Links(host_of, of_hosts)
        self._links = [self._hosts]
        if site.has_uplinks:
            rack_of = host_of // site.rack
            rate = site.link_bps * site.rack / site.oversubscription
            racks = int(rack_of[-1]) + 1
            of_racks = np.full(racks, 8 * costs.wire_bytes_per_byte / rate)
            self._links.append(_Links(rack_of, of_racks))
        self._processor = np.zeros(self.members)
        self._sent = np.zeros(site.hosts)

    @property
    def wire_bytes(self) -> float:
        """What the host that sent most has sent, with headers."""
        return float(self._sent.max()) * self._costs.wire_bytes_per_byte

    def work(self, seconds: float, ready: Floats) -> Floats:
        """Keeps every processor busy for so long, and returns when that is over."""
        self._processor = np.maximum(self._processor, ready) + seconds
        return self._processor

    def send(self, level: Level, data: float, ready: Floats, *, whole: bool) -> Floats:
        """Has members send to the others of their rows; returns when the last message is there.

        Args:
            level: Who sends to whom.
            data: Bytes of a row.
            ready: When each member can begin; shape [members].
            whole: Whether each message has all of the data, or a member's share.

        Returns:
            When each member has all that is sent to it, but for its own link and processor.
        """
        busy, each = self._busy(level, data, whole=whole)
        begin = np.maximum(self._processor, ready)
        left = self._processor = begin + busy
        first = begin + each
        for links in self._links:
            load = links.load(level, whole=whole) * data
            seconds = load * links.s_per_byte / self._share()
            end = np.maximum(links.out, links.first(first)) + seconds
            end = np.maximum(end, links.last(self._processor))
            links.out = np.where(load > 0, end, links.out)
            left = np.maximum(left, np.where(load > 0, end, 0.0)[links.part_of])
        self._sent += self._hosts.load(level, whole=whole) * data
        return level.latest(left) + self._costs.latency_s

    def receive(self, level: Level, data: float, arrived: Floats, *, whole: bool) -> Floats:
        """Has members take in what `send()` has sent, as it comes; returns when they have it."""
        for links in self._links:
            load = links.load(level, whole=whole) * data
            seconds = load * links.s_per_byte / self._share()
            end = np.maximum(links.into, links.last(arrived) - seconds) + seconds
            links.into = np.where(load > 0, end, links.into)
            arrived = np.maximum(arrived, np.where(load > 0, end, 0.0)[links.part_of])
        busy, each = self._busy(level, data, whole=whole)
        self._processor = np.maximum(self._processor, arrived - busy + each) + busy
        return self._processor

    def ring(self, data: float, ready: Floats) -> Floats:
        """Runs one ring of all ranks, which waits for its slowest link in every step."""
        costs, steps = self._costs, 2 * (self._ranks - 1)
        part = data / self._ranks
        piece = min(part, max(_RING_PIECE, part / _RING_LANES))
        chunks = max(1.0, part / piece)
        lanes = min(_RING_LANES, chunks)
        link = piece * max(float(links.s_per_byte.max()) for links in self._links)
        processor = 2 * costs.message_s + piece * costs.tcp_s_per_byte
        step = max(link + processor + costs.latency_s, lanes * max(link, processor))
        self._sent += steps * part
        return np.full_like(ready, ready.max() + chunks / lanes * steps * step)

    def _share(self) -> float:
        """Returns the share of links' rates that an exchange reaches."""
        return self._costs.shared_rate if self._is_tcp and self.members > 2 else 1.0

    def _busy(self, level: Level, data: float, *, whole: bool) -> tuple[Floats, Floats]:
        """Returns a processor's time for one end of all messages, and of one of them."""
        sent = data / self.abreast * (level.peers if whole else level.shares)
        busy = self._costs.message_s * level.peers + self._costs.tcp_s_per_byte / 2 * sent
        return busy, busy / np.maximum(level.peers, 1.0)
