"""What compression keeps back on single ranks, as parts: whose they are, and where they go.

All parts of one moment have the same stamp. Their sum is what all ranks together have not sent yet,
and another world goes on with the same sum: each part goes to one block of ranks, or to that member
of it that has the same shard.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import BinaryIO

#: Blocks, block, members, member; as `World.compression_position()` returns it.
Position: TypeAlias = tuple[int, int, int, int]

_MAGIC = b"lccpart1"
_HEADER = struct.Struct("<8sQQQQQQQQQQQ")
_CHECKSUM = struct.Struct("<I")


class Stamp(NamedTuple):
    """When ranks took their parts: the same on all ranks of a world, and of no other world.

    Attributes:
        epoch: Number of the world.
        saves: How often the state had been saved in it.
        moves: 1 where training had gone on since.
    """

    epoch: int
    saves: int
    moves: int = 0


class About(NamedTuple):
    """What a part is.

    Attributes:
        stamp: When it was taken.
        rank: Whose it is.
        size: Ranks of that world.
        position: Of the rank in the grid of compression; `None`: nothing was compressed.
        length: Bytes of the part; 0: nothing is kept back.
    """

    stamp: Stamp
    rank: int
    size: int
    position: Position | None
    length: int


class Part(NamedTuple):
    """A part, pickled: states by operation."""

    about: About
    data: bytes | memoryview


class Held(NamedTuple):
    """A part that a rank of the next world can send.

    Attributes:
        about: What it is.
        holder: That rank.
        is_own: Whether it took the part itself, or else has it from somebody who is gone.
    """

    about: About
    holder: int
    is_own: bool


class Route(NamedTuple):
    """Where a part goes.

    Attributes:
        part: The rank whose part it is, in the world before.
        holder: The rank that sends it.
        target: The rank that gets it; maybe the same.
        counts: Whether it is added to what the target has, or only shows what tensors there are.
    """

    part: int
    holder: int
    target: int
    counts: bool


def divide(held: Mapping[int, Held], positions: Sequence[Position]) -> list[Route]:
    """Returns where parts go in another world, so that their sum stays; the same on all ranks.

    Who is still there keeps what it has, as far as the shards are the same. What others had goes to
    the blocks with least.

    Args:
        held: Parts by rank of the world before. All have a position.
        positions: Of the ranks of the other world, in their order.
    """
    _, _, members, _ = positions[0]
    rank_at = {(it[1], it[3]): rank for rank, it in enumerate(positions)}
    block_of = _divide_blocks(held, positions)
    routes = []
    for part, it in sorted(held.items()):
        assert it.about.position is not None  # noqa: S101  what is kept back has one
        _, block, members_before, member = it.about.position
        takers = [member] if members_before == members else range(members)
        to = block_of[block]
        routes += [Route(part, it.holder, rank_at[to, taker], counts=True) for taker in takers]
    fed = {route.target for route in routes}
    first = min(held)
    routes += [
        Route(first, held[first].holder, rank, counts=False)
        for rank in range(len(positions))
        if rank not in fed
    ]
    return routes


def _divide_blocks(held: Mapping[int, Held], positions: Sequence[Position]) -> dict[int, int]:
    """Returns to which block each block of the world before goes."""
    wishes: dict[int, Counter[int]] = {}
    for it in held.values():
        assert it.about.position is not None  # noqa: S101
        wish = wishes.setdefault(it.about.position[1], Counter())
        if it.is_own:
            wish[positions[it.holder][1]] += 1
    found: dict[int, int] = {}
    for block, wish in sorted(wishes.items()):
        if wish:
            found[block] = min(wish, key=lambda to: (-wish[to], to))
    loads = Counter(dict.fromkeys(range(positions[0][0]), 0))
    loads.update(found.values())
    for block in sorted(wishes.keys() - found.keys()):
        found[block] = min(loads, key=lambda to: (loads[to], to))
        loads[found[block]] += 1
    return found


def write_parts(file: BinaryIO, version: int, parts: Sequence[Part]) -> None:
    """Writes parts, each with its length and checksum.

    Args:
        file: Gets them.
        version: Of the commit that they belong to.
        parts: The parts.
    """
    for about, data in parts:
        header = _HEADER.pack(
            _MAGIC,
            version,
            *about.stamp,
            about.rank,
            about.size,
            *(about.position or (0, 0, 0, 0)),
            about.length,
        )
        file.write(header)
        file.write(_CHECKSUM.pack(zlib.crc32(data, zlib.crc32(header))))
        file.write(data)


def read_parts(file: BinaryIO) -> Iterator[tuple[int, Part]]:
    """Yields what `write_parts` has written: versions and parts.

    A part that is damaged is left out, and so are those after a header that is.
    """
    end = file.seek(0, 2)
    file.seek(0)
    while len(header := file.read(_HEADER.size)) == _HEADER.size:
        magic, version, epoch, saves, moves, rank, size, *position, length = _HEADER.unpack(header)
        checksum = file.read(_CHECKSUM.size)
        if magic != _MAGIC or file.tell() + length > end:
            return
        data = file.read(length)
        if _CHECKSUM.unpack(checksum)[0] != zlib.crc32(data, zlib.crc32(header)):
            continue
        blocks, block, members, member = position
        where = (blocks, block, members, member) if blocks else None
        yield version, Part(About(Stamp(epoch, saves, moves), rank, size, where, length), data)


def next_agents(agents: Sequence[str]) -> list[tuple[int, ...]]:
    """Returns for each rank which ranks write its part: one of its own host, and of the next one.

    Args:
        agents: By rank, what tells the agent of its host from others; empty: it has none.
    """
    first: dict[str, int] = {}
    for rank, agent in enumerate(agents):
        if agent:
            first.setdefault(agent, rank)
    order = list(first)
    found = []
    for agent in agents:
        at = order.index(agent) if agent else 0
        writers = (first[order[i % len(order)]] for i in (at, at + 1)) if order else ()
        found.append(tuple(dict.fromkeys(writers)))
    return found


def next_hosts(agents: Sequence[str]) -> list[int]:
    """Returns for each rank one of the next host, or the next rank where there is one host.

    Args:
        agents: As of `next_agents`; ranks without one are as if on one host.
    """
    ranks_of: dict[str, list[int]] = {}
    for rank, agent in enumerate(agents):
        ranks_of.setdefault(agent, []).append(rank)
    hosts = list(ranks_of.values())
    if len(hosts) == 1:
        return [(rank + 1) % len(agents) for rank in range(len(agents))]
    found = [0] * len(agents)
    for i, ranks in enumerate(hosts):
        others = hosts[(i + 1) % len(hosts)]
        for j, rank in enumerate(ranks):
            found[rank] = others[j % len(others)]
    return found
