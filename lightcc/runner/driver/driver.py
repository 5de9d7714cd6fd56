"""The driver of an elastic job: which workers run where, and which of them make the next epoch.

A pure state machine: events and the time go in, actions come out, and nothing else happens. So
`tests/python/unit/test_driver_stories.py` plays whole jobs from seeds, without a process.

The rules, from which the rest follows:

- A worker is a process with a number that is never used again. It has a slot of a host.
- A plan names the members of an epoch. The next plan is made when every member of the last one has
  ended or waits for it. Survivors come first and keep their order, so that rank 0 has a state that
  counts. Who is new comes behind.
- A join that a member can no longer take part in is called off, so that the others come back.
- The first plan has `num_proc` workers as long as those that lack are starting.
- Members are never stopped for a newcomer. They get a notice when all that start on its host are
  ready (with `notify_early`, when it is started), and come to the next epoch when they commit.
- Where members wait for one that does not answer a roll call, because it is stopped or cut off,
  the others go on without it. It may come back as a new one, for half the elastic timeout.
- One that answers, and does not come for `stuck_s`, has failed.
- A member that the others blame when a second join in a row breaks counts as failed.
- Where slow members are to be replaced, one at a time leaves at a commit: as soon as enough others
  with the state are there. Its slot is left alone for long. It needs no room beside them.
- Rank 0 has had the state of training, once anybody has. Where nobody is left that has, and agents
  keep commits, it may be the worker whose agent keeps the newest one (`commits`).
- When a worker has finished with training, there is no further epoch.
- A job without a survivor, or with too few workers for too long, ends with the reason.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lightcc._discovery.plan import (
    FINISHED,
    JOINED,
    WAITING,
    HostUpdateResult,
    Notice,
    Plan,
    RollCall,
    Status,
)
from lightcc.runner.driver.actions import (
    Action,
    Awaits,
    Begin,
    CallOff,
    End,
    FoundSlow,
    LeftOut,
    RunsShort,
    Start,
    Stop,
)
from lightcc.runner.driver.blame import at_fault
from lightcc.runner.driver.commits import Commits
from lightcc.runner.driver.hosts import Hosts
from lightcc.runner.driver.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightcc.runner.driver.settings import Settings

RESET_LIMIT_EXCEEDED_MESSAGE = (
    "Horovod was shutdown because number of resets during elastic job exceeded limit: {}"
)
#: Without a limit of resets: so many epochs in a row may break while they are joined.
MAX_BROKEN_JOINS = 10


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
        self._hosts = Hosts(settings.cooldown_s, random)
        self._workers: dict[int, Worker] = {}
        self._next_number = 0
        self._plan: Plan | None = None
        self._called_off = 0
        self._broken_joins = 0
        self._stood: set[int] = set()  # Members of the last epoch that was joined.
        self._resets = 0
        self._serial = 0
        self._notified = HostUpdateResult.no_update
        self._begun: float | None = None  # When there were enough slots for the first time.
        self._has_named = False  # Those for whom the first plan waits.
        self._finishing = False
        self._ended = False
        self._failure = ""  # The last one.
        self._late_failure = ""  # The first one of a member after another had finished.
        self._now = now
        self._short_since: float | None = now
        self._broken_since: float | None = None
        self._late_since: float | None = None  # Since when members have been waited for.
        self._called: float | None = None  # When the roll was called.
        self._roll = 0
        self._first_called: float | None = None  # When it was first called for those waited for.
        self._has_trained = False  # Whether anybody has had a state.
        self._commits = Commits()
        self._lost: set[int] = set()  # Members of the last plan, lost with their hosts.
        self._said_slow: set[int] = set()  # Members of the last plan that are said to be slow.
        self._actions: list[Action] = []

    # -- Events -----------------------------------------------------------------------------------

    def hosts_seen(self, now: float, slots: dict[str, int]) -> list[Action]:
        """Takes in which hosts there are; those that were known keep their order."""
        self._hosts.see(slots)
        return self._settle(now)

    def host_lost(self, now: float, name: str, reason: str) -> list[Action]:
        """Takes in that a host cannot be reached, so that its workers are lost."""
        self._failure = self._failure or reason
        if self._settings.hosts_return:
            self._hosts.forget(name)
        else:
            self._hosts.block(now, name)
        for worker in [it for it in self._workers.values() if it.host == name]:
            del self._workers[worker.number]
            self._lost.add(worker.number)
            self._actions.append(Stop(worker.number))
        return self._settle(now)

    def status_changed(self, now: float, number: int, status: Status) -> list[Action]:
        """Takes in what a worker says of itself."""
        worker = self._workers.get(number)
        if worker is not None and not worker.stopping and worker.status != status:
            worker.status = status
            worker.ready = min(worker.ready, now)
            worker.left_out_since = None
            self._has_trained = self._has_trained or status.has_state
            self._commits.take_in(status, worker.host)
            if status.state == FINISHED:
                self._finishing = True
            if status.state == WAITING and status.reason:
                self._failure = status.reason
            self._take_slow(number, status)
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
        self._actions.append(Stop(number))  # It may have left processes behind.
        return self._settle(now)

    def tick(self, now: float) -> list[Action]:
        """Does what the time asks for."""
        return self._settle(now)

    def deadline(self) -> float | None:
        """Returns when `tick` should be called at the latest."""
        if self._ended:
            return None
        times = self._hosts.changes()
        times += [w.started + self._settings.start_timeout_s for w in self._starting()]
        if self._starting():
            times += [w.ready + self._settings.start_timeout_s for w in self._newcomers()]
        if self._plan is None and self._begun is not None:
            times.append(self._begun + self._settings.elastic_timeout_s)
        if self._first_called is not None:
            times.append(self._first_called + self._settings.stuck_s)
        roll = self._late_since if self._called is None else self._called
        if roll is not None:
            times.append(roll + self._settings.roll_call_s)
        silent = [w.left_out_since for w in self._live() if w.left_out_since is not None]
        times += [since + self._settings.elastic_timeout_s / 2 for since in silent]
        for since in (self._short_since, self._broken_since):
            if since is not None:
                times.append(since + self._settings.elastic_timeout_s)
        return min((t for t in times if t > self._now and t < math.inf), default=None)

    # -- Slots ------------------------------------------------------------------------------------

    def _block(self, now: float, worker: Worker, *, failed: bool) -> None:
        """Has the slot, or the host, of a worker that has ended not used for a while."""
        if failed and self._settings.lose_host:
            self._hosts.block(now, worker.host)
            for other in self._workers.values():
                if other.host == worker.host:
                    self._stop(other)
            return
        self._hosts.block_slot(now, worker.host, worker.slot, now - worker.started)

    def _fail(self, worker: Worker, reason: str) -> None:
        """Ends a worker that counts as failed."""
        self._failure = reason
        self._block(self._now, worker, failed=True)
        self._stop(worker)

    def _stop(self, worker: Worker) -> None:
        if not worker.stopping:
            worker.stopping = True
            self._actions.append(Stop(worker.number))

    def _has_slot(self, worker: Worker) -> bool:
        has_slot = self._hosts.has_slot(self._now, worker.host, worker.slot)
        return has_slot and not (worker.is_slow and self._can_spare(worker))

    def _can_spare(self, slow: Worker) -> bool:
        """Returns whether there is an epoch without it, which somebody enters with the state."""
        kept = [
            it
            for it in self._members()
            if it is not slow and self._hosts.has_slot(self._now, it.host, it.slot)
        ]
        count = len(kept) + sum(map(self._waits, self._newcomers()))
        has_state = any(it.has_state or not self._has_trained for it in kept)
        return has_state and count >= self._settings.min_np

    def _start_workers(self) -> None:
        free = self._free_slots()
        if self._begun is None and len(free) >= self._settings.num_proc:
            self._begun = self._now
        room = self._room(sum(not worker.is_slow for worker in self._live()))
        if self._begun is not None:
            self._start(free[: max(room, 0)])

    def _free_slots(self) -> list[tuple[str, int]]:
        taken = {(worker.host, worker.slot) for worker in self._workers.values()}
        return [slot for slot in self._hosts.usable(self._now) if slot not in taken]

    def _start(self, slots: list[tuple[str, int]]) -> None:
        started = range(self._next_number, self._next_number + len(slots))
        for number, (name, slot) in zip(started, slots, strict=True):
            self._workers[number] = Worker(number, name, slot, self._now)
        self._next_number += len(slots)
        ranks = self._in_order(self._live())
        hosts = tuple(worker.host for worker in ranks)
        for rank, worker in enumerate(ranks):
            if worker.number in started:
                self._actions.append(Start(worker.number, worker.host, rank, hosts))

    def _room(self, count: int) -> int:
        maximum = self._settings.max_np
        return self._next_number + 1_000_000 if maximum is None else maximum - count

    # -- Workers ----------------------------------------------------------------------------------

    def _live(self) -> list[Worker]:
        return [worker for worker in self._workers.values() if not worker.stopping]

    def _starting(self) -> list[Worker]:
        return [worker for worker in self._live() if worker.status is None]

    def _in_order(self, workers: list[Worker]) -> list[Worker]:
        """Returns members of the last plan by rank, then the others by number."""
        members = self._plan.members if self._plan is not None else ()
        ranks = {number: rank for rank, number in enumerate(members)}
        return sorted(workers, key=lambda it: (ranks.get(it.number, len(ranks)), it.number))

    def _members(self) -> list[Worker]:
        """Returns those of the last plan that live and are not left out, by rank."""
        numbers = self._plan.members if self._plan is not None else ()
        found = [self._workers.get(number) for number in numbers]
        return [
            it for it in found if it is not None and not it.stopping and it.left_out_since is None
        ]

    def _waits(self, worker: Worker) -> bool:
        """Returns whether it waits for the plan after the last one."""
        epoch = self._plan.epoch if self._plan is not None else 0
        is_member = self._plan is not None and worker.number in self._plan.members
        status = worker.status
        return (
            status is not None
            and status.state == WAITING
            and (status.epoch == epoch or not is_member)
        )

    def _newcomers(self) -> list[Worker]:
        members = self._plan.members if self._plan is not None else ()
        return [worker for worker in self._live() if worker.number not in members]

    def _take_slow(self, number: int, status: Status) -> None:
        """Takes in what rank 0 says of a slow member. One is replaced at a time."""
        plan = self._plan
        is_said = status.state == JOINED and status.slow >= 0 and not self._finishing
        if plan is None or not is_said or plan.epoch != status.epoch:
            return
        slow = self._workers.get(status.slow)
        if slow is None or slow not in self._members() or slow.number in self._said_slow:
            return
        if number != plan.members[0] or status.slow_factor < self._settings.slow_factor:
            return
        self._said_slow.add(slow.number)
        if self._settings.slow_factor > 0 and not any(it.is_slow for it in self._live()):
            slow.is_slow = True
        self._actions.append(FoundSlow(slow.number, status.slow_factor, slow.is_slow))

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
                self._call_roll()
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
                    self._fail(worker, f"worker {worker.number} did not leave a broken epoch")

    def _call_roll(self) -> None:
        """Leaves out members that neither come nor answer, where others with the state wait."""
        members = self._members()
        late = [it for it in members if not self._waits(it)]
        waiting = [it for it in members if self._waits(it)]
        patience = self._settings.roll_call_s
        if not late or not any(it.has_state or not self._has_trained for it in waiting):
            self._late_since = self._called = self._first_called = None
        elif self._late_since is None:
            self._late_since = self._now
        elif self._called is None and self._now >= self._late_since + patience:
            self._called = self._now
            self._roll += 1
            self._actions.append(RollCall(self._roll))
            if self._first_called is None:
                self._first_called = self._now
                self._actions.append(Awaits(tuple(it.number for it in late)))
        elif self._called is not None and self._now >= self._called + patience:
            self._late_since, self._called = self._now, None
            for worker in late:
                if worker.status is None or worker.status.heard < self._roll:
                    worker.left_out_since = self._now
                    self._actions.append(LeftOut(worker.number))
        first = self._first_called
        if first is not None and self._now >= first + self._settings.stuck_s:
            for worker in [it for it in late if it.left_out_since is None]:
                self._fail(worker, f"worker {worker.number} does not leave a broken epoch")
        for worker in self._live():
            since = worker.left_out_since
            # So early that another one may take its place before the job is given up.
            if since is not None and self._now >= since + self._settings.elastic_timeout_s / 2:
                self._fail(worker, f"worker {worker.number} has stayed silent")

    def _make_plan(self) -> None:
        members = self._members()
        if self._plan is not None:
            if not members and not (self._has_trained and self._commits.are_kept):
                self._end(self._failure or "no worker of the last epoch is left")
                return
            if not all(map(self._waits, members)):
                return
            if self._drop_unreachable(members):
                members = self._members()
        elif self._begun is not None and not self._live() and self._failure:
            self._end(self._failure)
            return
        survivors = [it for it in members if self._has_slot(it)]
        joiners = [it for it in self._newcomers() if self._waits(it)]
        joiners.sort(key=lambda it: it.number)
        if members and not survivors and self._plan is not None:
            self._end("No hosts from previous set remaining, unable to broadcast state.")
            return
        survivors.sort(key=lambda it: not it.has_state)  # Who has none was new, and stays behind.
        chosen = survivors + joiners
        commit = 0
        if self._has_trained and not (survivors and survivors[0].has_state):
            # Those who had it failed. Who was left out, and has come back, has an older one.
            chosen.sort(key=self._commits.order_of)
            commit = self._commits.first_of(chosen)
            if not (chosen and (commit or chosen[0].has_state)):
                self._lose_state(chosen)
                return
        del chosen[self._settings.max_np or len(chosen) :]
        if self._is_worth_waiting(len(chosen), early=commit > 0):
            return
        if commit:
            returning = self._hosts.returning(self._now, self._commits.not_newer(commit))
            if self._commits.may_be_newer(self._now, self._settings.start_timeout_s, returning):
                return
        if len(chosen) < self._settings.min_np:
            self._run_short(len(chosen))
            return
        if commit and not self._commits.begin_from(commit):
            self._end(f"commit {commit} is followed by a failure each time: {self._failure}")
            return
        if commit:
            self._actions.append(Begin(commit, chosen[0].host))
        self._publish(members, chosen, commit)

    def _drop_unreachable(self, members: list[Worker]) -> bool:
        """Counts a member as failed, where a second join in a row broke and it is blamed.

        Of two that do not reach each other, one that was not in the last world goes. Who has what
        the others go on from stays.
        """
        assert self._plan is not None  # noqa: S101  for the type checker
        is_second = self._broken_joins > 0 and not any(it.was_joined for it in members)
        if not is_second or len(members) < len(self._plan.members):
            return False  # Somebody has ended, which is why.
        for gone in at_fault(members, self._stood):
            if self._can_go_on_with([it for it in members if it is not gone]):
                reason = gone.status.reason if gone.status is not None else ""
                self._fail(gone, f"worker {gone.number} cannot be joined: {reason}")
                return True
        return False

    def _can_go_on_with(self, others: list[Worker]) -> bool:
        """Returns whether some members have what the last plan was to go on from."""
        assert self._plan is not None  # noqa: S101  for the type checker
        if self._plan.commit:
            return any(self._commits.first_of([it]) >= self._plan.commit for it in others)
        return any(it.has_state or not self._has_trained for it in others)

    def _lose_state(self, waiting: list[Worker]) -> None:
        """Ends the job, unless somebody who may still come has the state, or a commit."""
        is_more_to_come = any(self._now < t < math.inf for t in self._hosts.changes())
        waits = not waiting or self._starting() or is_more_to_come
        if self._commits.are_kept and (waits or self._make_room(waiting)):
            self._run_short(len(waiting), have_state=False)
        elif not any(it.has_state for it in self._live()):
            text = "no worker that has the state of training is left"
            self._end(f"{text}: {self._failure}" if self._failure else text)

    def _make_room(self, waiting: list[Worker]) -> bool:
        """Starts workers on hosts that may keep a commit, where there was no room for them.

        Those that wait on hosts without one leave for that, the last ones first.
        """
        slots = self._commits.first_slots(self._free_slots())[: len(waiting)]
        for worker in waiting[len(waiting) - len(slots) :]:
            self._stop(worker)
        self._start(slots)
        return bool(slots)

    def _is_worth_waiting(self, count: int, *, early: bool) -> bool:
        """Returns whether workers that are being started should be in the plan."""
        if self._plan is None and self._begun is not None and count < self._settings.num_proc:
            starting = tuple(it.number for it in self._starting())
            late = self._now >= self._begun + self._settings.start_timeout_s
            if starting and late and not self._has_named:
                self._has_named = True
                self._actions.append(Awaits(starting))
            is_in_time = self._now < self._begun + self._settings.elastic_timeout_s
            return is_in_time and bool(starting)
        early = early or self._plan is None or self._settings.notify_early
        if not early and count >= self._settings.min_np:
            return False
        timeout = self._settings.start_timeout_s
        return any(it.started + timeout > self._now for it in self._starting())

    def _run_short(self, count: int, *, have_state: bool = True) -> None:
        if self._short_since is None:
            self._short_since = self._now
            self._actions.append(RunsShort(count, self._failure, have_state))
        if self._plan is not None and self._hosts.are_lost() and not self._settings.hosts_return:
            self._end(self._failure or "no host is left")
        elif self._now >= self._short_since + self._settings.elastic_timeout_s:
            self._end(self._settings.too_few(self._failure))

    def _publish(self, before: list[Worker], chosen: list[Worker], commit: int) -> None:
        if self._plan is not None:
            self._resets += 1
            limit = self._settings.reset_limit
            if limit is not None and self._resets > limit:
                self._end(RESET_LIMIT_EXCEEDED_MESSAGE.format(limit))
                return
            stood = not before or any(it.was_joined for it in before)
            self._broken_joins = 0 if stood else self._broken_joins + 1
            if stood:
                self._stood = set(self._plan.members)
            if self._broken_joins >= MAX_BROKEN_JOINS:
                self._end(f"{MAX_BROKEN_JOINS} epochs in a row broke: {self._failure}")
                return
        old = set(self._plan.members) if self._plan is not None else set()
        removed = [worker for worker in before if worker not in chosen]
        self._plan = Plan(
            epoch=1 if self._plan is None else self._plan.epoch + 1,
            members=tuple(worker.number for worker in chosen),
            removed=(*(worker.number for worker in removed), *sorted(self._lost & old)),
            sync=any(it.number not in old or self._is_behind(it) for it in chosen),
            notice=self._serial,
            commit=commit,
            newcomers=() if commit else self._who_takes_over(chosen, old),
        )
        self._short_since = self._broken_since = None
        self._late_since = self._called = self._first_called = None
        self._lost.clear()
        self._said_slow.clear()
        self._notified = HostUpdateResult.no_update
        self._actions.append(self._plan)
        for worker in removed:
            if worker.is_slow:
                self._hosts.block_slot(
                    self._now, worker.host, worker.slot, self._now - worker.started, longest=True
                )
            self._stop(worker)

    @staticmethod
    def _who_takes_over(chosen: list[Worker], old: set[int]) -> tuple[int, ...]:
        """Returns who has no state, where all others come from one commit of the last epoch."""
        others = [it for it in chosen if it.has_state]
        level = all(it.status and it.status.level and it.number in old for it in others)
        return tuple(it.number for it in chosen if not it.has_state) if others and level else ()

    def _is_behind(self, worker: Worker) -> bool:
        """Returns whether its state may be another one than that of the others."""
        status = worker.status
        return status is None or status.restored or (self._has_trained and not status.has_state)

    def _patience(self, starting: Worker, waiting: list[Worker]) -> float:
        """Returns until when those that are ready wait for one that starts on their host."""
        begin = [starting.started, *(it.ready for it in waiting if it.host == starting.host)]
        return max(begin[0], min(begin[1:], default=-math.inf)) + self._settings.start_timeout_s

    def _notify(self) -> None:
        """Tells members once that another epoch would be another one."""
        if self._plan is None or self._ended:
            return
        members = self._members()
        if not members or any(map(self._waits, members)):
            return  # They come anyway.
        want = HostUpdateResult.no_update
        # Where an agent alone is gone, its workers may go on, and nobody misses them.
        is_lost = not self._lost.isdisjoint(self._plan.members)
        if is_lost or any(not self._has_slot(worker) for worker in members):
            want |= HostUpdateResult.removed
        newcomers = self._newcomers()
        if not self._settings.notify_early:
            # Those of one host come together, so that the world changes once for them.
            waiting = [it for it in newcomers if self._waits(it)]
            busy = {it.host for it in self._starting() if self._now < self._patience(it, waiting)}
            newcomers = [it for it in waiting if it.host not in busy]
        if newcomers and self._room(len(members)) > 0:
            want |= HostUpdateResult.added
        if want & ~self._notified:
            self._serial += 1
            self._actions.append(Notice(self._serial, int(want & ~self._notified)))
            self._notified |= want
