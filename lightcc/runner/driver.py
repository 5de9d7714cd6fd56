"""The driver of an elastic job: which workers run where, and which of them make the next epoch.

A pure state machine: events and the time go in, actions come out, and nothing else happens. So
`tests/python/unit/test_driver_stories.py` plays whole jobs from seeds, without a process.

The rules, from which the rest follows:

- A worker is a process with a number that is never used again. It has a slot of a host.
- A plan names the members of an epoch. The next plan is made when every member of the last one has
  ended or waits for it. Survivors come first and keep their order, so that rank 0 has a state that
  counts. Who is new comes behind.
- A join that a member can no longer take part in is called off, so that the others come back.
- Members are never stopped for a newcomer. They get a notice when all that start on its host are
  ready (with `notify_early`, when it is started), and come to the next epoch when they commit.
- When a worker has finished with training, there is no further epoch.
- A job without a survivor, or with too few workers for too long, ends with the reason.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lightcc._discovery.plan import (
    FINISHED,
    JOINED,
    WAITING,
    HostUpdateResult,
    Notice,
    Plan,
    Status,
)

if TYPE_CHECKING:
    from collections.abc import Callable

RESET_LIMIT_EXCEEDED_MESSAGE = (
    "Horovod was shutdown because number of resets during elastic job exceeded limit: {}"
)
#: Without a limit of resets: so many epochs in a row may break while they are joined.
MAX_BROKEN_JOINS = 10
#: A slot whose worker lived so long begins anew to count its failures.
LONG_LIFE_S = 60.0
_DEFAULT_COOLDOWN_S = (1.0, 60.0)
_MAX_SLOT_FAILURES = 8


@dataclass(frozen=True)
class Settings:
    """What the user asked for.

    Attributes:
        num_proc: Slots that must be there before the first worker is started.
        min_np: Workers without which there is no epoch.
        max_np: Workers at most; `None`: as many as there are slots.
        elastic_timeout_s: How long there may be too few slots or workers.
        start_timeout_s: How long an epoch waits for workers that have been started.
        reset_limit: How often the members may change; `None`: without a limit.
        cooldown_s: How long, at first and at most, a host or slot that failed is not used. `None`:
            for hosts for ever, for slots 1 and 60.
        lose_host: Whether a failed worker costs its whole host, as with Horovod; or its slot.
        notify_early: Whether members hear of a new worker when it is started.
        hosts_return: Whether hosts come by themselves, so that one that was lost may be used as
            soon as it is there again.
    """

    num_proc: int
    min_np: int
    max_np: int | None = None
    elastic_timeout_s: float = 600.0
    start_timeout_s: float = 30.0
    reset_limit: int | None = None
    cooldown_s: tuple[float, float] | None = None
    lose_host: bool = False
    notify_early: bool = False
    hosts_return: bool = False


@dataclass(frozen=True)
class Start:
    """Start a worker. Were it to join now, it would be `rank` of the ranks on `hosts`."""

    worker: int
    host: str
    rank: int
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class Stop:
    """End a worker, and what is left of its processes."""

    worker: int


@dataclass(frozen=True)
class CallOff:
    """Make the joins of an epoch fail, with a reason."""

    epoch: int
    reason: str


@dataclass(frozen=True)
class End:
    """The job is over: all workers are to be ended. `error` is empty if it has finished."""

    error: str


Action = Start | Stop | CallOff | End | Plan | Notice


@dataclass
class _Host:
    slots: int
    failures: int = 0
    blocked_until: float = 0.0
    slot_failures: dict[int, int] = field(default_factory=dict)
    slot_blocked_until: dict[int, float] = field(default_factory=dict)


@dataclass
class _Worker:
    number: int
    host: str
    slot: int
    started: float
    status: Status | None = None  # Nothing yet: it is starting.
    stopping: bool = False


class Driver:
    """The machine. Every method returns what is to be done, in this order."""

    def __init__(self, settings: Settings, random: Callable[[], float], now: float) -> None:
        """Begins without hosts.

        Args:
            settings: What the user asked for.
            random: Returns a number from 0 to 1.
            now: The time, as everywhere else in seconds.
        """
        self._settings = settings
        self._random = random
        self._hosts: dict[str, _Host] = {}
        self._workers: dict[int, _Worker] = {}
        self._next_number = 0
        self._plan: Plan | None = None
        self._called_off = 0
        self._broken_joins = 0
        self._resets = 0
        self._serial = 0
        self._notified = HostUpdateResult.no_update
        self._begun = False
        self._finishing = False
        self._ended = False
        self._failure = ""  # The last one.
        self._late_failure = ""  # The first one of a member after another had finished.
        self._now = now
        self._short_since: float | None = now
        self._broken_since: float | None = None
        self._actions: list[Action] = []

    # -- Events -----------------------------------------------------------------------------------

    def hosts_seen(self, now: float, slots: dict[str, int]) -> list[Action]:
        """Takes in which hosts there are; those that were known keep their order."""
        for name, host in self._hosts.items():
            host.slots = slots.get(name, 0)
        for name, count in slots.items():
            self._hosts.setdefault(name, _Host(count))
        return self._settle(now)

    def host_lost(self, now: float, name: str, reason: str) -> list[Action]:
        """Takes in that a host cannot be reached, so that its workers are lost."""
        self._failure = self._failure or reason
        host = self._hosts.get(name)
        if self._settings.hosts_return:
            self._hosts.pop(name, None)
        elif host is not None:
            self._block_host(now, host)
        for worker in [it for it in self._workers.values() if it.host == name]:
            del self._workers[worker.number]
            self._actions.append(Stop(worker.number))
        return self._settle(now)

    def status_changed(self, now: float, number: int, status: Status) -> list[Action]:
        """Takes in what a worker says of itself."""
        worker = self._workers.get(number)
        if worker is not None and not worker.stopping and worker.status != status:
            worker.status = status
            if status.state == FINISHED:
                self._finishing = True
            if status.state == WAITING and status.reason:
                self._failure = status.reason
        return self._settle(now)

    def worker_ended(self, now: float, number: int, code: int, text: str) -> list[Action]:
        """Takes in that a worker's process has exited; `text` tells how, for people."""
        worker = self._workers.pop(number, None)
        if worker is None:
            return self._settle(now)
        status = worker.status
        finished = code == 0 and (status is None or status.state == FINISHED or not status.in_run)
        if worker.stopping:
            pass
        elif finished:
            self._finishing = True
        elif self._finishing:
            self._late_failure = self._late_failure or text
        else:
            if code != 0:
                self._failure = text
            self._block(now, worker, failed=code != 0)
        self._actions.append(Stop(number))  # Of what it may have left behind.
        return self._settle(now)

    def tick(self, now: float) -> list[Action]:
        """Does what the time asks for."""
        return self._settle(now)

    def deadline(self) -> float | None:
        """Returns when `tick` should be called at the latest."""
        if self._ended:
            return None
        times = [host.blocked_until for host in self._hosts.values()]
        times += [t for host in self._hosts.values() for t in host.slot_blocked_until.values()]
        times += [w.started + self._settings.start_timeout_s for w in self._starting()]
        for since in (self._short_since, self._broken_since):
            if since is not None:
                times.append(since + self._settings.elastic_timeout_s)
        return min((t for t in times if t > self._now and t < math.inf), default=None)

    # -- Slots ------------------------------------------------------------------------------------

    def _block(self, now: float, worker: _Worker, *, failed: bool) -> None:
        """Has the slot, or the host, of a worker that has ended not used for a while."""
        host = self._hosts[worker.host]
        if failed and self._settings.lose_host:
            self._block_host(now, host)
            for other in self._workers.values():
                if other.host == worker.host:
                    self._stop(other)
            return
        if now - worker.started >= LONG_LIFE_S:
            host.slot_failures[worker.slot] = 0
        count = host.slot_failures[worker.slot] = host.slot_failures.get(worker.slot, 0) + 1
        low, high = self._settings.cooldown_s or _DEFAULT_COOLDOWN_S
        wait = math.inf if count > _MAX_SLOT_FAILURES else min(high, low * 2.0 ** (count - 1))
        host.slot_blocked_until[worker.slot] = now + wait

    def _block_host(self, now: float, host: _Host) -> None:
        if host.blocked_until > now:
            return
        host.failures += 1
        if self._settings.cooldown_s is None:
            host.blocked_until = math.inf
            return
        low, high = self._settings.cooldown_s
        wait = low * 2.0**host.failures + self._random() * low
        host.blocked_until = now + max(low, min(high, wait))

    def _stop(self, worker: _Worker) -> None:
        if not worker.stopping:
            worker.stopping = True
            self._actions.append(Stop(worker.number))

    def _is_usable(self, name: str, slot: int) -> bool:
        host = self._hosts[name]
        return (
            slot < host.slots
            and host.blocked_until <= self._now
            and host.slot_blocked_until.get(slot, 0.0) <= self._now
        )

    def _has_slot(self, worker: _Worker) -> bool:
        host = self._hosts[worker.host]
        return worker.slot < host.slots and host.blocked_until <= self._now

    def _start_workers(self) -> None:
        usable = [
            (name, slot)
            for name, host in self._hosts.items()
            for slot in range(host.slots)
            if self._is_usable(name, slot)
        ]
        if not self._begun:
            self._begun = len(usable) >= self._settings.num_proc
        taken = {(worker.host, worker.slot) for worker in self._workers.values()}
        room = self._room(len(self._live()))
        started = []
        for name, slot in usable:
            if self._begun and (name, slot) not in taken and room > 0:
                room -= 1
                number = self._next_number
                self._next_number += 1
                self._workers[number] = _Worker(number, name, slot, self._now)
                started.append(number)
        ranks = self._in_order(self._live())
        hosts = tuple(worker.host for worker in ranks)
        for rank, worker in enumerate(ranks):
            if worker.number in started:
                self._actions.append(Start(worker.number, worker.host, rank, hosts))

    def _room(self, count: int) -> int:
        maximum = self._settings.max_np
        return self._next_number + 1_000_000 if maximum is None else maximum - count

    # -- Workers ----------------------------------------------------------------------------------

    def _live(self) -> list[_Worker]:
        return [worker for worker in self._workers.values() if not worker.stopping]

    def _starting(self) -> list[_Worker]:
        return [worker for worker in self._live() if worker.status is None]

    def _in_order(self, workers: list[_Worker]) -> list[_Worker]:
        """Returns members of the last plan by rank, then the others by number."""
        members = self._plan.members if self._plan is not None else ()
        ranks = {number: rank for rank, number in enumerate(members)}
        return sorted(workers, key=lambda it: (ranks.get(it.number, len(ranks)), it.number))

    def _members(self) -> list[_Worker]:
        """Returns those of the last plan that live, by rank."""
        numbers = self._plan.members if self._plan is not None else ()
        found = [self._workers.get(number) for number in numbers]
        return [it for it in found if it is not None and not it.stopping]

    def _waits(self, worker: _Worker) -> bool:
        """Returns whether it waits for the plan after the last one."""
        epoch = self._plan.epoch if self._plan is not None else 0
        is_member = self._plan is not None and worker.number in self._plan.members
        status = worker.status
        return (
            status is not None
            and status.state == WAITING
            and (status.epoch == epoch or not is_member)
        )

    def _newcomers(self) -> list[_Worker]:
        members = self._plan.members if self._plan is not None else ()
        return [worker for worker in self._live() if worker.number not in members]

    # -- What follows from all that ---------------------------------------------------------------

    def _settle(self, now: float) -> list[Action]:
        self._now = now
        if not self._ended:
            if self._finishing:
                self._finish()
            else:
                for worker in self._newcomers():
                    if not self._has_slot(worker):
                        self._stop(worker)
                self._start_workers()
                self._watch_epoch()
                self._make_plan()
                self._notify()
        actions, self._actions = self._actions, []
        return actions

    def _finish(self) -> None:
        """Lets the members end by themselves; whoever waits hears that no epoch follows."""
        if self._plan is not None and not self._plan.ending:
            self._publish_ending(self._plan.epoch + 1, self._plan.members)
        elif self._plan is None and any(map(self._waits, self._live())):
            self._publish_ending(1, ())
        for worker in self._newcomers() if self._plan is not None else ():
            self._stop(worker)
        if not self._live():
            self._end(self._late_failure)

    def _publish_ending(self, epoch: int, members: tuple[int, ...]) -> None:
        self._plan = Plan(epoch, members, ending="training has finished")
        self._actions.append(self._plan)

    def _end(self, error: str) -> None:
        self._ended = True
        self._actions.append(End(error))

    def _watch_epoch(self) -> None:
        """Calls off a join that has become impossible, and ends members that do not come back."""
        if self._plan is None:
            return
        members = self._members()
        broken = len(members) < len(self._plan.members) or any(map(self._waits, members))
        joining = [it for it in members if it.status is None or it.status.epoch < self._plan.epoch]
        if broken and joining and self._called_off < self._plan.epoch:
            self._called_off = self._plan.epoch
            reason = f"epoch {self._plan.epoch} was called off: {self._failure or 'a worker left'}"
            self._actions.append(CallOff(self._plan.epoch, reason))
        if not broken:
            self._broken_since = None
        elif self._broken_since is None:
            self._broken_since = self._now
        elif self._now >= self._broken_since + self._settings.elastic_timeout_s:
            for worker in members:
                if not self._waits(worker):
                    self._failure = f"worker {worker.number} did not leave a broken epoch"
                    self._block(self._now, worker, failed=True)
                    self._stop(worker)

    def _make_plan(self) -> None:
        members = self._members()
        if self._plan is not None:
            if not members:
                self._end(self._failure or "no worker of the last epoch is left")
                return
            if not all(map(self._waits, members)):
                return
        elif self._begun and not self._live() and self._failure:
            self._end(self._failure)
            return
        survivors = [it for it in members if self._has_slot(it)]
        joiners = [it for it in self._newcomers() if self._waits(it)]
        joiners.sort(key=lambda it: it.number)
        chosen = (survivors + joiners)[: self._settings.max_np]
        if self._plan is not None and not survivors:
            self._end("No hosts from previous set remaining, unable to broadcast state.")
            return
        if self._is_worth_waiting(len(chosen)):
            return
        if len(chosen) < self._settings.min_np:
            self._run_short()
            return
        self._publish(members, chosen)

    def _is_worth_waiting(self, count: int) -> bool:
        """Returns whether workers that are being started should be in the plan."""
        early = self._plan is None or self._settings.notify_early
        if not early and count >= self._settings.min_np:
            return False
        timeout = self._settings.start_timeout_s
        return any(it.started + timeout > self._now for it in self._starting())

    def _run_short(self) -> None:
        if self._short_since is None:
            self._short_since = self._now
        never = all(h.blocked_until == math.inf or h.slots == 0 for h in self._hosts.values())
        if self._plan is not None and never and not self._settings.hosts_return:
            self._end(self._failure or "no host is left")
        elif self._now >= self._short_since + self._settings.elastic_timeout_s:
            self._end(
                f"Timed out waiting for {self._settings.min_np} workers. Please check that you "
                f"have enough resources to run at least {self._settings.min_np} Horovod processes. "
                f"Timeout after {self._settings.elastic_timeout_s:g} seconds."
                + (f" The last failure: {self._failure}" if self._failure else "")
            )

    def _publish(self, before: list[_Worker], chosen: list[_Worker]) -> None:
        if self._plan is not None:
            self._resets += 1
            limit = self._settings.reset_limit
            if limit is not None and self._resets > limit:
                self._end(RESET_LIMIT_EXCEEDED_MESSAGE.format(limit))
                return
            stood = any(self._was_joined(worker) for worker in before)
            self._broken_joins = 0 if stood else self._broken_joins + 1
            if self._broken_joins >= MAX_BROKEN_JOINS:
                self._end(f"{MAX_BROKEN_JOINS} epochs in a row broke: {self._failure}")
                return
        old = set(self._plan.members) if self._plan is not None else set()
        removed = [worker for worker in before if worker not in chosen]
        self._plan = Plan(
            epoch=1 if self._plan is None else self._plan.epoch + 1,
            members=tuple(worker.number for worker in chosen),
            removed=tuple(worker.number for worker in removed),
            sync=any(
                it.number not in old or it.status is None or it.status.restored for it in chosen
            ),
            notice=self._serial,
        )
        self._short_since = self._broken_since = None
        self._notified = HostUpdateResult.no_update
        self._actions.append(self._plan)
        for worker in removed:
            self._stop(worker)

    @staticmethod
    def _was_joined(worker: _Worker) -> bool:
        return worker.status is not None and not worker.status.reason

    def _notify(self) -> None:
        """Tells members once that another epoch would be another one."""
        if self._plan is None or self._ended:
            return
        members = self._members()
        if not members or any(map(self._waits, members)):
            return  # They come anyway.
        want = HostUpdateResult.no_update
        if any(not self._has_slot(worker) for worker in members):
            want |= HostUpdateResult.removed
        newcomers = self._newcomers()
        if not self._settings.notify_early:
            # Those of one host come together, so that the world changes once for them.
            begun = self._now - self._settings.start_timeout_s
            busy = {it.host for it in self._starting() if it.started > begun}
            newcomers = [it for it in newcomers if self._waits(it) and it.host not in busy]
        if newcomers and self._room(len(members)) > 0:
            want |= HostUpdateResult.added
        if want & ~self._notified:
            self._serial += 1
            self._actions.append(Notice(self._serial, int(want & ~self._notified)))
            self._notified |= want


__all__ = [
    "JOINED",
    "RESET_LIMIT_EXCEEDED_MESSAGE",
    "Action",
    "CallOff",
    "Driver",
    "End",
    "Settings",
    "Start",
    "Stop",
]
