"""Passing a state on to ranks that are new, from several of those that have it at once.

Only newcomers receive. The large parts of the state travel from where they lie: whoever passes them
on goes on with its step, and waits with what would change them (`PassingOn.wait`). Part i comes
from one source, and its checksum from the next one, so that a newcomer finds out what was damaged
on its way, and sources that differ. Sources of a newcomer are those of its own host, or all.
Newcomers of one host receive one after the other, each from the one before: a state crosses the
network once for each host.
"""

from __future__ import annotations

import threading
import zlib
from typing import TYPE_CHECKING, NamedTuple

from lightcc import _world
from lightcc._ops import exchanges
from lightcc._ops.waiting import synchronize
from lightcc.exceptions import HorovodInternalError, PeerFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightcc._typing import Array, Handle

_NAME = "lightcc.elastic.state"
_PART_BYTES = 8 << 20
_MAX_PARTS = 512  # About; parts of a large state are larger.


class Route(NamedTuple):
    """From whom one newcomer receives, and to whom it passes on.

    Attributes:
        sources: Ranks that deal its parts among them; the first one also sends what is small.
        before: The newcomer of its host from which it receives all instead; -1: none.
        after: The newcomer that receives from it; -1: none.
    """

    sources: tuple[int, ...]
    before: int
    after: int


def plan_routes(hosts: Sequence[Sequence[int]], newcomers: Sequence[int]) -> dict[int, Route]:
    """Returns the routes of all newcomers; the same on all ranks.

    Args:
        hosts: The ranks of each host.
        newcomers: Ranks; others are there, too.
    """
    new = set(newcomers)
    everybody = tuple(sorted(rank for ranks in hosts for rank in ranks if rank not in new))
    routes = {}
    for ranks in hosts:
        own = tuple(rank for rank in ranks if rank not in new)
        chain = [rank for rank in ranks if rank in new]
        for i, rank in enumerate(chain):
            before = chain[i - 1] if i else -1
            after = chain[i + 1] if i + 1 < len(chain) else -1
            routes[rank] = Route(own or everybody, before, after)
    return routes


def cut(arrays: Sequence[Array]) -> list[Array]:
    """Returns views of arrays of bytes, in order, none of them too long to be a part."""
    total = sum(array.size for array in arrays)
    longest = max(_PART_BYTES, total // _MAX_PARTS)
    return [
        array[begin : begin + longest]
        for array in arrays
        for begin in range(0, array.size, longest)
    ]


class PassingOn:
    """What one rank that has the state sends to newcomers."""

    def __init__(self, about: bytes, arrays: Sequence[Array], newcomers: Sequence[int]) -> None:
        """Begins; nothing waits for newcomers.

        Args:
            about: What is small; the same on all ranks that have the state.
            arrays: Bytes that nobody changes until `wait` has returned; likewise the same.
            newcomers: The ranks that call `receive`.

        Raises:
            HorovodInternalError: A rank failed; on all ranks, at the latest in `wait`.
        """
        import numpy as np

        world = _world.current()
        self._handles: list[Handle[None]] = []
        self._failure: BaseException | None = None
        self._sums: list[tuple[Array, list[Array], int]] = []
        parts = cut(arrays)
        sums: dict[tuple[int, int], Array] = {}
        for newcomer, route in plan_routes(world.hosts, newcomers).items():
            if route.before >= 0 or world.rank not in route.sources:
                continue
            own, count = route.sources.index(world.rank), len(route.sources)
            if own == 0:
                size = np.array([len(about)], np.int64)
                self._send(size, newcomer, "size")
                self._send(np.frombuffer(about, np.uint8), newcomer, "about")
            for i in range(own, len(parts), count):
                self._send(parts[i], newcomer, str(i))
            checked = parts[(own - 1) % count :: count]
            if checked:
                found = sums.setdefault((own, count), np.zeros(len(checked), np.int64))
                self._sums.append((found, checked, newcomer))
        self._thread = threading.Thread(target=self._add_up, name="lightcc-elastic-sums")
        self._thread.start()

    def wait(self) -> None:
        """Waits until the newcomers have all, or the world has failed; call it once. Blocks.

        Raises:
            HorovodInternalError: A rank failed; on all ranks.
        """
        self._thread.join()
        failures = [self._failure, *map(_failure_of, self._handles)]  # All are waited for.
        for failure in failures:
            if failure is not None:
                raise failure

    def _send(self, array: Array, newcomer: int, what: str) -> None:
        self._handles.append(exchanges.send_async(array, newcomer, f"{_NAME}.{what}"))

    def _add_up(self) -> None:
        added_up: set[int] = set()
        try:
            for sums, parts, newcomer in self._sums:
                if id(sums) not in added_up:
                    added_up.add(id(sums))
                    sums[:] = [zlib.crc32(part.data) for part in parts]
                self._send(sums, newcomer, "sums")
        except (HorovodInternalError, ValueError) as error:
            self._failure = error


def _failure_of(handle: Handle[None]) -> BaseException | None:
    """Waits for an operation, and returns why it has failed."""
    try:
        synchronize(handle)
    except (HorovodInternalError, ValueError) as error:
        return error
    return None


def receive(make_targets: Callable[[bytes], Sequence[Array]], newcomers: Sequence[int]) -> None:
    """Receives on a newcomer what `PassingOn` sends. Blocks: for all of it.

    Args:
        make_targets: Gets what is small; returns writable arrays of bytes for what is large.
        newcomers: As of `PassingOn`.

    Raises:
        PeerFailedError: A part has another checksum than one of its sources says.
        HorovodInternalError: A rank failed; on all ranks.
    """
    import numpy as np

    world = _world.current()
    route = plan_routes(world.hosts, newcomers)[world.rank]
    sources = route.sources if route.before < 0 else (route.before,)
    passed: list[Handle[None]] = []

    def take(array: Array, source: int, what: str) -> None:
        exchanges.recv(array, source, f"{_NAME}.{what}")

    def pass_on(array: Array, what: str) -> None:
        if route.after >= 0:
            passed.append(exchanges.send_async(array, route.after, f"{_NAME}.{what}"))

    size = np.zeros(1, np.int64)
    take(size, sources[0], "size")
    pass_on(size, "size")
    about = np.zeros(int(size[0]), np.uint8)
    take(about, sources[0], "about")
    pass_on(about, "about")

    parts, count = cut(make_targets(about.tobytes())), len(route.sources)
    expected = [np.zeros(len(parts[i::count]), np.int64) for i in range(count)]
    handles = [
        exchanges.recv_async(part, sources[i % len(sources)], f"{_NAME}.{i}")
        for i, part in enumerate(parts)
    ]
    sums = []
    for i, (handle, part) in enumerate(zip(handles, parts, strict=True)):
        synchronize(handle)
        pass_on(part, str(i))
        sums.append(zlib.crc32(part.data))
    for i, array in enumerate(expected):  # These are the sums of parts i, i + count, and so on.
        checker = route.sources[(i + 1) % count]
        if array.size:
            name = "sums" if route.before < 0 else f"sums.{i}"
            take(array, sources[0] if route.before >= 0 else checker, name)
            pass_on(array, f"sums.{i}")
    for sent in passed:
        synchronize(sent)
    for i, found in enumerate(sums):
        if found != expected[i % count][i // count]:
            source = route.sources[i % count]
            msg = (
                f"part {i} of the state that rank {source} has passed on is not what rank "
                f"{route.sources[(i + 1) % count]} has: it was damaged, or their replicas differ"
            )
            raise PeerFailedError(msg, source)
