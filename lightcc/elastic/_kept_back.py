"""What compression keeps back on this rank, from one world to the next.

It is taken with each save of the state, and belongs to that save. When another world stands, ranks
tell each other what parts they have. They go on with the parts of the save from which the state
comes, divided as the new world is. Parts of ranks that are gone come from the agent of their host,
or of the next host, where commits are kept.

Where training rolls forward, no save takes anything. Then the engine's own memory has what was kept
back before and after the step that failed, and `_endings` says which of them counts.

Where all ranks share a host nothing is compressed. What was kept back before stays so there, until
a world has several hosts again.

Not handled: parts of process sets, which end with their world.
"""

from __future__ import annotations

import logging
import pickle
from typing import TYPE_CHECKING, Any

from lightcc import _core, _world, basics, exchanges
from lightcc.compression_state import position_in, take_in
from lightcc.elastic._endings import Ending, Offer, choose, find_marks, fitting
from lightcc.elastic._parts import (
    About,
    Held,
    Part,
    Stamp,
    divide,
    next_agents,
    next_hosts,
    read_parts,
    write_parts,
)
from lightcc.elastic._reports import Report, is_whole, own_parts, tell
from lightcc.exceptions import HorovodInternalError
from lightcc.functions import allgather_object, broadcast_object
from lightcc.waiting import barrier, synchronize

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import BinaryIO

    from lightcc._discovery.kept_commits import KeptCommits
    from lightcc._typing import Handle
    from lightcc.elastic._endings import Steps
    from lightcc.elastic._parts import Route

_NAME = "lightcc.elastic.kept_back"
_EPOCH_BITS = 40
_log = logging.getLogger(__name__)


class KeptBack:
    """What this rank has of it, and what becomes of it."""

    def __init__(self) -> None:
        """Has nothing."""
        self._is_on = False
        self._commit = 0  # From which the state comes, where its parts are still to be had.
        self._saves = 0  # In this world.
        self._parts: list[Part] = []  # The newest first.
        self._entrusted: list[Part] = []
        self._stamps: list[Stamp] = []
        self._is_lost = False
        self._sets = 0
        self.taken = 0
        # Where training rolls forward:
        self.rolls_forward = False
        self._version = 0  # Of the last commit, to which the parts belong.
        self._marked: Mapping[str, Steps] | None = None  # How far tensors had come then.
        self._here: About | None = None  # Of this rank in the world in which it trains.
        self._ending: Ending | None = None

    def take(self, *, moved: bool = False) -> None:
        """Copies what is kept back now, where `spread` has been called; any rank may call it.

        Args:
            moved: Whether training has gone on since the last save, and the state is not saved.
        """
        if not self._is_on or not _world.exists():
            return
        self.taken += 1
        before = [] if self.rolls_forward else self._parts[:1]
        if not moved and not self.rolls_forward:
            self._saves += 1
        part = self._current(int(moved))
        self._entrusted = []
        self._parts = before if part is None else [part, *before]
        self._stamps = [] if part is None else [part.about.stamp]
        self._marked = None
        self._is_lost = part is None

    @property
    def has_moved(self) -> bool:
        """Whether the newest part was taken after the last save."""
        return any(stamp.moves for stamp in self._stamps)

    def go_back(self) -> None:
        """Forgets what was taken since the last save, as the state has gone back there."""
        self._parts = [part for part in self._parts if not part.about.stamp.moves]
        self._stamps = [part.about.stamp for part in self._parts[:1]]
        self._entrusted = []

    def lose(self) -> None:
        """Forgets what was taken, as the state is another one now."""
        self._parts, self._entrusted, self._stamps = [], [], []
        self._marked = self._ending = None

    # -- Rolling forward ------------------------------------------------------------------------

    def mark(self, version: int) -> None:
        """Says that a step is finished, from which all may go on. Copies nothing.

        Args:
            version: Of the commit.
        """
        if not self._is_on or not _world.exists():
            return
        _world.current().mark_compression()
        self._version = version
        self._saves += 1
        self.lose()

    def leave(self, *, moved: bool) -> None:
        """Takes what is kept back where a world ends in good order.

        Args:
            moved: As of `take`. Then the state may also go back to its last commit.
        """
        if moved:
            self.end()
        self.take(moved=moved)
        self._here = None

    def end(self) -> None:
        """Keeps what there is on both sides of the step in which the world has failed."""
        if self._here is None or not _world.exists():
            return  # Training had not begun in it, and what it began with is still there.
        tensors = _world.current().save_compression_moments()
        own = {name: it for (process_set, name), it in tensors.items() if process_set == 0}
        self._sets = len(tensors) - len(own)
        about = self._here._replace(stamp=self._here.stamp._replace(saves=self._saves))
        marked = {name: at for name, (at, _) in own.items() if at is not None}
        states = {name: states for name, (_, states) in own.items()}
        self._ending = Ending(about, self._version, marked, states)
        self._here = None

    def _settle(self, version: int) -> tuple[Stamp | None, int]:
        """Makes a part of what was there where the world has failed. Collective.

        Args:
            version: Of the state with which all go on.

        Returns:
            The stamp of the parts that count, and how many tensors are lost, as not all ranks have
            what goes with that state; the same on all ranks.
        """
        offers = [Offer(it, self._version, False, self._marked is not None) for it in self._stamps]
        ending = self._ending
        if ending is not None:
            offers.append(Offer(ending.about.stamp, ending.version, True, True))
        everybody = allgather_object(offers, f"{_NAME}.offers")
        stamp = choose(everybody, version)
        source = None if stamp is None else find_marks(everybody, stamp)
        is_there = stamp in self._stamps
        self._is_lost = ending is not None and bool(ending.tensors()) and not is_there
        if stamp is None or source is None:
            return stamp, 0
        own = ending.marked if ending and ending.about.stamp == stamp else self._marked
        marked = broadcast_object(own, source, f"{_NAME}.marks")
        states: dict[str, bytes] | None = None
        if ending is not None and ending.about.stamp.epoch == stamp.epoch:
            states = fitting(ending, marked)
        own_missing = [] if states is None else sorted(set(marked) - set(states))
        lists = allgather_object(own_missing, f"{_NAME}.missing")
        missing = {name for names in lists for name in names}
        if missing and missing == set(marked):
            return None, 0
        if ending is not None and states is not None:
            left = {name: state for name, state in states.items() if name not in missing}
            data = pickle.dumps(left, pickle.HIGHEST_PROTOCOL) if left else b""
            self._parts = [Part(ending.about._replace(stamp=stamp, length=len(data)), data)]
            self._stamps, self._entrusted = [stamp], []
            self._version, self._marked, self._ending = version, marked, None
            self._is_lost = False
        return stamp, len(missing)

    # -- From one world to the next -------------------------------------------------------------

    def entrust(self, kept: KeptCommits | None) -> None:
        """Gives the newest part to a rank of another host, too, as this one may leave. Collective.

        Args:
            kept: As of `keep`.

        Raises:
            HorovodInternalError: A rank failed; on all ranks.
        """
        own, reports = self._tell_newest(kept, "entrust")
        if not any(about is not None and about.length for _, about in reports):
            return
        rank = _world.current().rank
        handles: list[Handle[Any]] = []
        found = []
        for source, taker in enumerate(next_hosts([it for it, _ in reports])):
            about = reports[source][1]
            if about is None or source == taker:
                continue
            if source == rank and own is not None and own.data:
                handles.append(_send(own, taker, "entrust"))
            if taker == rank:
                found.append(_receive(about, source, "entrust", handles))
        _wait(handles)
        self._entrusted = found

    def keep(self, version: int, kept: KeptCommits | None) -> None:
        """Has the agents of this host and of the next one keep the newest part. Collective.

        Args:
            version: Of the commit to which it belongs.
            kept: Where this host's agent keeps parts; `None`: it cannot.

        Raises:
            HorovodInternalError: A rank failed; on all ranks.
        """
        own, reports = self._tell_newest(kept, "keep")
        if not any(about is not None and about.length for _, about in reports):
            return
        rank = _world.current().rank
        parts: list[Part] = []
        handles: list[Handle[Any]] = []
        for source, writers in enumerate(next_agents([it for it, _ in reports])):
            about = reports[source][1]
            if about is None:
                continue
            if source == rank and own is not None:
                handles += [_send(own, to, "keep") for to in writers if to != rank and own.data]
                parts += [own] if rank in writers else []
            elif rank in writers:
                parts.append(_receive(about, source, "keep", handles))
        _wait(handles)
        if kept is not None and parts:
            stamp = parts[0].about.stamp
            serial = stamp.epoch << _EPOCH_BITS | stamp.saves << 1 | stamp.moves
            try:
                kept.write(serial, lambda file: write_parts(file, version, parts))
            except OSError as error:
                _log.warning(
                    "what compression keeps back is not kept with commit %d: %s", version, error
                )
        barrier()  # The commit is kept after its parts.

    def _tell_newest(
        self, kept: KeptCommits | None, what: str
    ) -> tuple[Part | None, list[tuple[str, About | None]]]:
        """Returns the newest part, and of each rank its agent and what part it has. Collective."""
        own = self._parts[0] if self._stamps else None
        agent = "" if kept is None else kept.identity()
        about = None if own is None else own.about
        return own, allgather_object((agent, about), f"{_NAME}.{what}")

    def spread(self, commit: int, kept: KeptCommits | None, version: int = 0) -> None:
        """Gives all ranks of this world what is kept back of the state that they have. Collective.

        Args:
            commit: The version of the commit from which all begin, as an agent keeps it; 0: rank 0
                has the state itself. The same on all ranks.
            kept: As of `keep`.
            version: Of the state, where training rolls forward; the same on all ranks.

        Raises:
            HorovodInternalError: A rank failed; on all ranks.
        """
        if not _world.exists():
            return
        self._is_on = True
        settled, num_lost = None, 0
        if commit:
            self.lose()
            self._commit, self._is_lost = commit, False
        elif self.rolls_forward:
            settled, num_lost = self._settle(version)
        world = _world.current()
        here = {part.about: part for part in (*self._parts, *self._entrusted)}
        report = Report(
            self._commit,
            tuple(self._stamps),
            tuple(part.about for part in self._parts),
            tuple(part.about for part in self._entrusted),
            "" if kept is None else kept.identity(),
            position_in(world, 0),
            world.compression_position(0) is not None,
            self._is_lost,
            self._sets,
        )
        reports = allgather_object(report, f"{_NAME}.reports")
        commit, stamps = reports[0].commit, reports[0].stamps
        if self.rolls_forward and (settled is not None or not commit):
            commit, stamps = 0, () if settled is None else (settled,)
        held = own_parts(reports, stamps)
        is_missing = any(it.about.length for them in held.values() for it in them.values())
        is_kept = False
        if commit or (is_missing and not any(map(is_whole, held.values()))):
            is_kept = self._ask_agents(commit, stamps, kept, reports, held, here)
        chosen = max(held, key=lambda it: (is_whole(held[it]), it), default=None)
        found = {} if chosen is None else held[chosen]
        if world.rank == 0:
            tell(reports, found, commit, num_lost, is_kept=is_kept)
        parts = {rank: it for rank, it in found.items() if it.about.length}
        if parts:
            routes = divide(parts, [it.position for it in reports])
            take_in(self._combine(routes, parts, here), None)
        goes_on = chosen is not None and (self.rolls_forward or is_whole(held[chosen]))
        self._version = version
        self._begin([it for about, it in here.items() if goes_on and about.stamp == chosen])

    def _begin(self, mine: list[Part]) -> None:
        """Takes what is kept back where this world begins; `mine` is of the same state."""
        self._commit, self._saves, self._is_lost = 0, 0, False
        if self.rolls_forward:  # Others may have to begin anew, before a step is finished here.
            self._parts, self._entrusted = mine, []
            self._stamps = list(dict.fromkeys(it.about.stamp for it in mine))
            self._ending, self._here = None, self._about(0)
            _world.current().mark_compression()
            return
        part, self._entrusted = self._current(0), []
        self._parts = mine if part is None else [part, *mine]
        self._stamps = [it.about.stamp for it in self._parts]

    def _current(self, moves: int) -> Part | None:
        """Returns what is kept back now; `None`: it cannot be told, as tensors are on their way."""
        world = _world.current()
        try:
            states = world.save_compression()
        except ValueError:
            return None
        own = {name: state for (process_set, name), state in states.items() if process_set == 0}
        self._sets = len(states) - len(own)
        data = pickle.dumps(own, pickle.HIGHEST_PROTOCOL) if own else b""
        return Part(self._about(moves)._replace(length=len(data)), data)

    def _about(self, moves: int) -> About:
        """Returns what a part of now, and of this rank, is; without a length."""
        world = _world.current()
        stamp = Stamp(basics.current_epoch().number, self._saves, moves)
        return About(stamp, world.rank, world.size, position_in(world, 0), 0)

    def _ask_agents(
        self,
        commit: int,
        stamps: Sequence[Stamp],
        kept: KeptCommits | None,
        reports: Sequence[Report],
        held: dict[Stamp, dict[int, Held]],
        here: dict[About, Part],
    ) -> bool:
        """Adds what agents keep to what ranks have; returns whether they keep anything."""
        if not any(it.agent for it in reports):
            return False
        world = _world.current()
        wanted = set(stamps)
        found: dict[About, Part] = {}
        seen = []
        if kept is not None and [it.agent for it in reports].index(kept.identity()) == world.rank:

            def look(file: BinaryIO) -> None:
                for version, part in read_parts(file):
                    seen.append(version)
                    if version == commit if commit else part.about.stamp in wanted:
                        found.setdefault(part.about, part)

            kept.read_all(look)
        here.update({about: part for about, part in found.items() if about not in here})
        lists = allgather_object((list(found), bool(seen)), f"{_NAME}.kept")
        for rank, (abouts, _) in enumerate(lists):
            for about in abouts:
                same = held.setdefault(about.stamp, {})
                same.setdefault(about.rank, Held(about, rank, is_own=False))
        return any(has_seen for _, has_seen in lists)

    def _combine(
        self, routes: Sequence[Route], parts: Mapping[int, Held], here: Mapping[About, Part]
    ) -> dict[tuple[int, str], bytes]:
        """Exchanges parts, and returns this rank's states in the new world."""
        world = _world.current()
        mine: list[tuple[Route, Part]] = []
        handles: list[Handle[Any]] = []
        for route in routes:
            about = parts[route.part].about
            if route.holder == world.rank == route.target:
                mine.append((route, here[about]))
            elif route.holder == world.rank:
                handles.append(_send(here[about], route.target, str(route.part)))
            elif route.target == world.rank:
                part = _receive(about, route.holder, str(route.part), handles)
                mine.append((route, part))
        _wait(handles)
        position = position_in(world, 0)
        states: dict[tuple[int, str], bytes] = {}
        given = [(route.counts, part.about.position, _unpickled(part)) for route, part in mine]
        for name in sorted({name for _, _, found in given for name in found}):
            there = [it for it in given if name in it[2]]
            added = [(before, found[name]) for counts, before, found in there if counts]
            try:
                if len(added) == 1 and added[0][0] == position:
                    state = added[0][1]  # With its threshold.
                else:
                    like = there[0][2][name]
                    state = _core.regroup_compression(like, [it for _, it in added], *position)
                world.check_compression(0, name, state)
            except ValueError as error:
                _log.warning("what compression kept back of '%s' is dropped: %s", name, error)
            else:
                states[0, name] = state
        return states


def _unpickled(part: Part) -> dict[str, bytes]:
    found: dict[str, bytes] = pickle.loads(part.data)  # noqa: S301  from a rank of this job
    return found


def _send(part: Part, to: int, what: str) -> Handle[None]:
    import numpy as np

    return exchanges.send_async(np.frombuffer(part.data, np.uint8), to, f"{_NAME}.{what}")


def _receive(about: About, source: int, what: str, handles: list[Handle[Any]]) -> Part:
    """Returns a part that is there when its handle, which is added to the others, is done."""
    import numpy as np

    data = np.empty(about.length, np.uint8)
    if about.length:
        handles.append(exchanges.recv_async(data, source, f"{_NAME}.{what}"))
    return Part(about, data.data)


def _wait(handles: Sequence[Handle[Any]]) -> None:
    """Waits for all, and raises what one that failed has failed with."""
    failures = [it for it in map(_failure_of, handles) if it is not None]
    if failures:
        raise failures[0]


def _failure_of(handle: Handle[Any]) -> HorovodInternalError | None:
    try:
        synchronize(handle)
    except HorovodInternalError as error:
        return error
    return None
