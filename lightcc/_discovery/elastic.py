"""A worker of an elastic job: its epochs come from the launcher's plans, through the job's store.

A thread watches the store, so that plans and notices arrive without being asked for. What the
worker says of itself is one value, which only it writes (`plan.Status`).

Not handled: the end of the launcher. It ends the workers, by their agents.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from lightcc._binding import _core
from lightcc._discovery import plan as _plan, variables
from lightcc._discovery.epoch import Epoch, Standing
from lightcc._discovery.kept_commits import open_kept
from lightcc.exceptions import HorovodInternalError, ShutDownError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_STORE_S = 30.0  # For a call that does not wait for others.
_WATCH_S = 600.0
_MAX_TEXT = 1000

_NO_PLAN = _plan.encode(_plan.Plan(0))

_worker: Worker | None = None


def is_elastic(env: Mapping[str, str]) -> bool:
    """Returns whether this process was started as a worker of an elastic job."""
    return "LIGHT_WORKER" in env


def worker() -> Worker | None:
    """Returns this process's worker; `None` where the job is not elastic.

    Raises:
        ValueError: A variable of the launcher cannot be used.
    """
    global _worker
    if _worker is None and is_elastic(os.environ):
        _worker = Worker(os.environ)
    return _worker


class Worker:
    """This process as the launcher sees it.

    Attributes:
        number: Of this worker, which no other ever has.
        restored: Whether the state of training is that of a commit; told with the next status.
        fault: Why the world failed; told likewise.
        on_notice: Called with serial number and result of each notice, by a thread of its own.
        kept: Commits that the agent of this host keeps; `None` where it cannot.
        version: How many commits the state has behind it; told likewise.
        level: Whether all that left the world with it have the same state; told likewise.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        """Begins to watch the job's store."""
        self.number = variables.integer(env, "LIGHT_WORKER", 0, None, "lightccrun")
        self.restored = False
        self.fault = ""
        self.version = 0
        self.level = False
        self.on_notice: Callable[[int, _plan.HostUpdateResult], None] | None = None
        self.kept = open_kept(env)
        self._rendezvous = variables.rendezvous(env)
        self._secret = variables.secret(env)
        self._store = _core.StoreClient(self._rendezvous, self._secret)
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._latest = _plan.Plan(0)
        self._current = _plan.Plan(0)  # The one that was taken up last.
        self._notice = _plan.Notice(0, 0)
        self._status = _plan.Status(_plan.WAITING)
        self._saying = threading.Lock()
        self._is_known = False  # Whether it has said anything.
        self._has_looked = False  # Whether it has looked for a training.
        self._thread = threading.Thread(target=self._watch, name="lightcc-elastic", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    @property
    def needs_sync(self) -> bool:
        """Whether the members of the current epoch must synchronise their state."""
        return self._current.sync

    @property
    def newcomers(self) -> tuple[int, ...]:
        """Ranks of the current epoch that are to take over the state which all others have."""
        return tuple(map(self._current.members.index, self._current.newcomers))

    @property
    def commit(self) -> int:
        """The version of the kept commit from which rank 0 begins; 0: it has the state itself."""
        return self._current.commit

    def find_training(self, env: Mapping[str, str]) -> Standing | None:
        """Returns where this worker will probably stand, where others are in `elastic.run`.

        Only the first call of a worker that is new finds them. They need not wait for what its
        script does before `elastic.run`, where it joins them.

        Args:
            env: Says how the launcher has counted at the worker's start.
        """
        if self._has_looked or self._is_known:
            return None
        self._has_looked = True
        try:
            _, entries = self._store.watch(_plan.PLAN_KEY, 0, _STORE_S) or (0, {})
            found = _plan.decode(_plan.Plan, entries.get(_plan.PLAN_KEY, _NO_PLAN))
            if found.ending or not found.members:
                return None
            _, entries = self._store.watch(_plan.WORKER_PREFIX, 0, _STORE_S) or (0, {})
            known = map(_plan.worker_key, found.members)
            said = [_plan.decode(_plan.Status, entries[key]) for key in known if key in entries]
            if not any(status.in_run for status in said):
                return None
            return _expected(env)
        except (HorovodInternalError, ValueError):
            return None  # Then it waits for the others as if all were new.

    def join(self, join_world: Callable[[Epoch], object]) -> None:
        """Joins the next epoch that comes about. Blocks: until the launcher has a plan.

        Args:
            join_world: Joins the world of one epoch. It may fail with HorovodInternalError, because
                a member has ended: then there is another plan.

        Raises:
            ShutDownError: The job is about to end.
            SystemExit: The launcher has removed this worker from the job, or training has finished
                before it took part.
        """
        reason, blames = "", -1
        while True:
            epoch = self._next_epoch(reason, blames)
            try:
                join_world(epoch)
            except HorovodInternalError as error:
                reason, members = str(error), self._current.members
                is_known = error.rank is not None and 0 <= error.rank < len(members)
                blames = members[error.rank or 0] if is_known else -1
                self.restored = self._current.sync  # What this epoch was to do is still to be done.
            else:
                self._say(
                    state=_plan.JOINED,
                    epoch=epoch.number,
                    reason="",
                    blames=-1,
                    fault="",
                    slow=-1,
                    slow_factor=0.0,
                )
                return

    def enter_run(self, *, keeps: bool) -> None:
        """Tells the launcher that this worker will say when it has finished.

        Args:
            keeps: Whether agents keep commits, from which a training may begin again.
        """
        self._say(in_run=True, keeps=keeps)

    def take_state(self) -> None:
        """Tells the launcher once that this worker has the state of training."""
        if not self._status.has_state:
            self._say(has_state=True)

    def report_slow(self, rank: int, factor: float) -> None:
        """Tells the launcher that the others wait for a rank in every step.

        Args:
            rank: A rank of the current epoch.
            factor: How many times as long as the median rank it takes for a step.
        """
        number = self._current.members[rank]
        if (self._status.slow, self._status.slow_factor) != (number, factor):
            self._say(slow=number, slow_factor=float(factor))

    def finish(self) -> None:
        """Tells the launcher that training has come to its end."""
        self._say(state=_plan.FINISHED)

    def repeat_notice(self) -> None:
        """Calls `on_notice` for the last notice, where the current plan does not know of it."""
        with self._changed:
            notice, current, call = self._notice, self._current, self.on_notice
        if call is not None and notice.serial > current.notice:
            call(notice.serial, _plan.HostUpdateResult(notice.result))

    def _next_epoch(self, reason: str, blames: int) -> Epoch:
        before = self._current.epoch
        self._say(
            state=_plan.WAITING,
            epoch=before,
            restored=self.restored,
            reason=reason[:_MAX_TEXT],
            blames=blames,
            fault=self.fault[:_MAX_TEXT],
            version=self.version,
            level=self.level,
            kept=self.kept.newest() if self.kept is not None else 0,
        )
        with self._changed:
            self._changed.wait_for(lambda: self._concerns_me(before))
            found = self._current = self._latest
        if found.ending and not before:
            sys.stderr.write(f"lightcc: {found.ending} before this worker took part\n")
            sys.exit(0)
        if found.ending:
            msg = f"the elastic job is about to end: {found.ending}"
            raise ShutDownError(msg)
        if self.number in found.removed:
            sys.stderr.write("lightcc: the launcher has removed this worker from the job\n")
            sys.exit(0)
        self.fault = ""
        rank, size = found.members.index(self.number), len(found.members)
        self.restored = False
        alone = Epoch(group=_plan.GROUP, number=found.epoch)
        if size == 1:
            return alone
        return replace(
            alone, rank=rank, size=size, rendezvous=self._rendezvous, secret=self._secret
        )

    def _concerns_me(self, before: int) -> bool:
        found = self._latest
        is_named = self.number in found.members or self.number in found.removed
        return bool(found.ending) or (found.epoch > before and is_named)

    def _say(self, *, at_once: bool = True, **changes: object) -> None:
        with self._saying:  # Two threads say something, and the last one counts.
            self._status = replace(self._status, **changes)  # type: ignore[arg-type]
            if at_once:
                self._is_known = True
                value = _plan.encode(self._status)
                self._store.set(_plan.worker_key(self.number), value, _STORE_S)

    def _watch(self) -> None:
        state = 0
        while True:
            try:
                seen = self._store.watch(_plan.JOB_PREFIX, state, _WATCH_S)
            except ShutDownError:
                return
            except HorovodInternalError:
                continue  # The store is gone, and so is the launcher: this process will be ended.
            if seen is not None:
                state, entries = seen
                self._take(entries)

    def _take(self, entries: dict[str, bytes]) -> None:
        with self._changed:
            before = self._notice
            if _plan.NOTICE_KEY in entries:
                self._notice = _plan.decode(_plan.Notice, entries[_plan.NOTICE_KEY])
            if _plan.PLAN_KEY in entries:
                self._latest = _plan.decode(_plan.Plan, entries[_plan.PLAN_KEY])
            self._changed.notify_all()
            is_new = self._notice.serial > before.serial
        if is_new:
            self.repeat_notice()
        if _plan.ROLL_KEY in entries:
            self._hear(_plan.decode(_plan.RollCall, entries[_plan.ROLL_KEY]).serial)

    def _hear(self, serial: int) -> None:
        """Answers a roll call; at once, if the launcher knows of this worker."""
        if serial <= self._status.heard:
            return
        with contextlib.suppress(HorovodInternalError):  # Then it has not answered.
            self._say(heard=serial, at_once=self._is_known)

    def _stop(self) -> None:
        if os.getpid() == self._pid:  # A forked child shares the descriptors, but has no thread.
            self._store.close()
            self._thread.join()


def _expected(env: Mapping[str, str]) -> Standing:
    """Returns how the launcher has counted at the worker's start.

    Raises:
        ValueError: It has not said so.
    """
    rank, size = variables.rank_and_size(env, "LIGHT_RANK", "LIGHT_SIZE", "lightccrun")
    pairs = [
        variables.rank_and_size(env, f"LIGHT_{name}_RANK", f"LIGHT_{name}_SIZE", "lightccrun")
        for name in ("LOCAL", "CROSS")
    ]
    return Standing(rank, size, *pairs[0], *pairs[1])
