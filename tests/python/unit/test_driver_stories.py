"""Elastic jobs in virtual time, from seeds: workers that start, join, die, finish; hosts that go.

The world around the driver keeps the rules of real workers: one takes up a plan that names it,
joins when all members do, takes over the state of rank 0, and waits for the next plan when its
world is over. Some are stopped: they do nothing of this until they go on, if ever. Some that are
stuck in a loop still answer a roll call. An agent may be
gone while its workers live. In half of the stories agents keep the commits of each step. Some are
slow, which rank 0 says.
"""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from lightcc._discovery.plan import (
    FINISHED,
    JOINED,
    WAITING,
    Notice,
    Plan,
    RollCall,
    Status,
    decode,
    encode,
)
from lightcc.runner.driver import (
    Action,
    Awaits,
    Begin,
    CallOff,
    Driver,
    End,
    FoundSlow,
    LeftOut,
    RunsShort,
    Settings,
    Start,
    Stop,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class Story:
    """One job. Everything random comes from its seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        pick = self.random
        min_np = pick.randint(1, 3)
        num_proc = min_np + pick.randint(0, 2)
        self.settings = Settings(
            num_proc=num_proc,
            min_np=min_np,
            max_np=pick.choice([None, num_proc, num_proc + 2]),
            elastic_timeout_s=60.0,
            stuck_s=pick.choice([15.0, 120.0]),
            cooldown_s=pick.choice([None, (1.0, 10.0)]),
            lose_host=pick.random() < 0.3,
            notify_early=pick.random() < 0.5,
            reset_limit=pick.choice([None, None, 5]),
            hosts_return=pick.random() < 0.5,
            slow_factor=2.0 if pick.random() < 0.7 else 0.0,
        )
        self.slow_rate = pick.choice([0.0, 0.02, 0.1])
        self.slow: set[int] = set()  # They are to be replaced.
        self.replaced = 0
        self.apart: set[str] = set()  # Two hosts that do not reach each other.
        self.death_rate = pick.choice([0.0, 0.02, 0.1])
        self.stop_rate = pick.choice([0.0, 0.0, 0.02, 0.05])
        self.keeps = pick.random() < 0.5
        self.kept: dict[str, int] = {}  # Steps in the newest commit, by host.
        self.begins = 0  # Plans that begin from a commit.
        self.frozen: set[int] = set()
        self.loops: set[int] = set()  # Those frozen that still answer.
        self.orphans: set[int] = set()  # Their agent is gone.
        self.state: dict[int, int] = {}  # Steps that a worker's state has behind it.
        self.now = 0.0
        self.order = itertools.count()
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.alive: dict[int, Status | None] = {}
        self.host_of: dict[int, str] = {}
        self.plan = Plan(0)
        self.plans: list[Plan] = []
        self.noticed = 0
        self.steps = 0
        self.end: End | None = None
        self.hosts = {f"h{i}": pick.randint(1, 3) for i in range(pick.randint(1, 3))}
        self.driver = Driver(self.settings, pick.random, 0.0)

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.order), event))

    def play(self) -> None:
        self.obey(self.driver.hosts_seen(self.now, dict(self.hosts)))
        self.after(self.random.uniform(1, 20), self.change_hosts)
        for _ in range(20_000):
            if self.end is not None:
                return
            deadline = self.driver.deadline()
            if deadline is not None and (not self.events or deadline <= self.events[0][0]):
                assert deadline > self.now
                self.now = deadline
                self.obey(self.driver.tick(self.now))
                continue
            assert self.events, f"nothing will happen any more: {self.plan}, {self.alive}"
            self.now, _, event = heapq.heappop(self.events)
            event()
        pytest.fail(f"no end: {self.plan}, {self.alive}, {self.steps} steps")

    def change_hosts(self) -> None:
        if self.random.random() < 0.05:
            together = not self.apart and len(self.hosts) > 1
            self.apart = set(self.random.sample(sorted(self.hosts), 2)) if together else set()
        if self.random.random() < 0.1 and self.settings.hosts_return and self.hosts:
            name = self.random.choice(sorted(self.hosts))  # Its workers live on.
            self.hosts.pop(name)
            self.kept.pop(name, None)
            for number in [it for it in self.alive if self.host_of[it] == name]:
                self.orphans.add(number)
                self.after(self.random.uniform(0.1, 200), partial(self.vanish, number))
            self.obey(self.driver.host_lost(self.now, name, f"host {name} was lost"))
        elif self.random.random() < 0.5:
            self.hosts[f"h{self.random.randint(0, 4)}"] = self.random.randint(0, 3)
            self.obey(self.driver.hosts_seen(self.now, dict(self.hosts)))
        if self.steps < 100:
            self.after(self.random.uniform(1, 20), self.change_hosts)

    # What the driver wants done.

    def obey(self, actions: list[Action]) -> None:
        for action in actions:
            assert self.end is None, "an action after the end"
            if isinstance(action, Start):
                assert action.worker not in self.alive
                assert action.hosts[action.rank] == action.host
                self.alive[action.worker] = None
                self.host_of[action.worker] = action.host
                self.after(self.random.uniform(0.5, 40), partial(self.ready, action.worker))
            elif isinstance(action, Stop):
                self.slow.discard(action.worker)
                if action.worker in self.alive and action.worker not in self.orphans:
                    self.after(0.1, partial(self.die, action.worker, -15))
            elif isinstance(action, Plan):
                self.publish(decode(Plan, encode(action)))
            elif isinstance(action, Notice):
                assert action.serial > self.noticed
                self.noticed = action.serial
            elif isinstance(action, Begin):
                assert self.keeps
                assert self.kept[action.host] >= action.version  # Its worker may have said less.
                self.begins += 1
            elif isinstance(action, Awaits):
                assert set(action.workers) <= set(self.plan.members or self.alive)
            elif isinstance(action, RunsShort):
                assert not action.have_state or action.count < self.settings.min_np
            elif isinstance(action, LeftOut):
                assert self.alive.get(action.worker, Status("")) is not None
            elif isinstance(action, FoundSlow):
                assert action.worker in self.plan.members
                if action.is_replaced:
                    assert self.settings.slow_factor > 0
                    others = self.slow - {action.worker}
                    assert others.isdisjoint(self.alive), "two at a time"
                    self.slow.add(action.worker)
            elif isinstance(action, RollCall):
                for number in list(self.alive):
                    self.after(0.05, partial(self.answer, number, action.serial))
            elif isinstance(action, CallOff):
                if action.epoch == self.plan.epoch:
                    for number in self.plan.members:
                        self.after(0.1, partial(self.leave, number, self.plan, "off"))
            else:
                if "no worker that has the state" in action.error:
                    usable = {host for host, _ in self.driver._hosts.usable(self.now)}
                    assert usable.isdisjoint(self.kept), "there is a commit to begin from"
                self.end = action

    def publish(self, plan: Plan) -> None:
        before = self.plan
        assert plan.epoch == before.epoch + 1
        if plan.ending:
            self.plan = plan
            for number in list(self.alive):
                status = self.alive[number]
                if status is not None and status.state == WAITING:
                    self.after(0.1, partial(self.die, number, 1))
            return
        assert len(set(plan.members)) == len(plan.members) >= self.settings.min_np
        assert self.settings.max_np is None or len(plan.members) <= self.settings.max_np
        for number in plan.members + plan.removed:
            status = self.alive.get(number)
            # The driver may not know of a death yet, but never plans for who does not wait.
            waits = status is not None and status.state == WAITING
            assert number not in self.alive or waits or number in plan.removed
        first = self.alive.get(plan.members[0])
        if self.state and first is not None:
            assert first.has_state or plan.commit, "rank 0 has no state"
        if plan.commit and first is not None:
            assert plan.commit == first.kept > (first.version if first.has_state else 0)
            others = [it for it in map(self.alive.get, plan.members) if it is not None]
            assert first.kept >= max(max(it.kept, it.version) for it in others)
        survivors = [number for number in before.members if number in plan.members]
        is_left = survivors or self.begins or first is None or first.has_state
        assert not before.members or is_left, "nobody is left"
        holders = [it for it in survivors if it in self.state or not self.state]
        assert list(plan.members[: len(holders)]) == holders
        assert plan.sync or set(plan.members) <= set(before.members)
        assert plan.notice == self.noticed
        self.replaced += len(self.slow & set(plan.removed))
        self.plan = plan
        self.plans.append(plan)
        for number in plan.removed:
            self.after(0.1, partial(self.die, number, 0))
        self.after(self.random.uniform(0.1, 1), lambda: self.join(plan))

    # What workers do.

    def say(self, number: int, status: Status) -> None:
        self.alive[number] = decode(Status, encode(status))
        self.obey(self.driver.status_changed(self.now, number, status))

    def kept_for(self, number: int) -> int:
        return 0 if number in self.orphans else self.kept.get(self.host_of[number], 0)

    def ready(self, number: int) -> None:
        if number in self.alive:
            self.say(number, Status(WAITING, kept=self.kept_for(number)))

    def die(self, number: int, code: int) -> None:
        if number in self.alive:
            del self.alive[number]
            self.obey(self.driver.worker_ended(self.now, number, code, f"worker {number}: {code}"))

    def vanish(self, number: int) -> None:
        self.alive.pop(number, None)

    def join(self, plan: Plan) -> None:
        if self.random.random() < self.death_rate:
            self.die(self.random.choice(plan.members), 1)
        if self.plan is not plan or not all(number in self.alive for number in plan.members):
            return  # Those who are there wait until it is called off.
        if not self.frozen.isdisjoint(plan.members):
            for number in plan.members:  # Those who are there wait for the start timeout.
                self.after(30.0, partial(self.leave, number, plan, "did not join in time"))
            return
        ends = [it for it in plan.members if self.host_of[it] in self.apart]
        if len({self.host_of[it] for it in ends}) == 2:
            for number in plan.members:
                self.after(0.5, partial(self.leave, number, plan, "out of reach", ends[0]))
            return
        for number in plan.members:
            if number in self.alive:
                status = self.alive[number] or Status("")
                status = replace(status, state=JOINED, epoch=plan.epoch, in_run=True, reason="")
                self.say(number, replace(status, keeps=self.keeps))
        self.after(0.5, lambda: self.sync(plan))

    def sync(self, plan: Plan) -> None:
        """All members take over the state of rank 0, if none of them is gone or stopped."""
        if self.random.random() < self.death_rate:
            self.die(self.random.choice(plan.members), 1)
        if self.plan is not plan:
            return
        if not all(it in self.alive and it not in self.frozen for it in plan.members):
            for number in plan.members:
                self.after(2.0, partial(self.leave, number, plan, "a rank is gone or silent"))
            return
        done = max(self.state.get(number, 0) for number in plan.members)
        first = plan.members[0]
        commit = plan.commit and max(plan.commit, self.kept_for(first))
        start = commit or self.state.get(first, 0)
        done = max(done, commit)
        assert start == done, f"{done} steps are done, and rank 0 has {start}"
        for number in plan.members:
            self.state[number] = done
            if number in self.alive:
                self.say(number, replace(self.alive[number] or Status(""), has_state=True))
        self.after(1.0, lambda: self.step(plan))

    def step(self, plan: Plan) -> None:
        """All members take one step, or find out that they cannot."""
        self.steps += 1
        if self.random.random() < self.death_rate:
            code = self.random.choice([1, -9])
            self.die(self.random.choice(plan.members), code)
        if self.random.random() < self.stop_rate:
            self.freeze(self.random.choice(plan.members))
        if self.random.random() < self.slow_rate:
            self.say_slow(plan)
        if self.plan is not plan:
            return
        reason = ""
        if not all(it in self.alive and it not in self.frozen for it in plan.members):
            reason = "a rank is gone or silent"
        elif self.steps >= 100:
            for number in plan.members:
                if number in self.alive:
                    self.say(number, replace(self.alive[number] or Status(""), state=FINISHED))
                    self.after(0.1, partial(self.die, number, 0))
            return
        elif self.noticed <= plan.notice:
            for number in plan.members:
                self.state[number] += 1
                if self.keeps and number not in self.orphans:
                    self.kept[self.host_of[number]] = self.state[number]
            self.after(1.0, lambda: self.step(plan))
            return
        for number in plan.members:
            self.after(self.random.uniform(0, 0.1), partial(self.leave, number, plan, reason))

    def say_slow(self, plan: Plan) -> None:
        """Rank 0 says of a member, which may be itself, that it is slow."""
        first = self.alive.get(plan.members[0])
        if first is not None and first.state == JOINED and plan.members[0] not in self.frozen:
            slow = self.random.choice(plan.members)
            self.say(plan.members[0], replace(first, slow=slow, slow_factor=2.5))

    def leave(self, number: int, plan: Plan, reason: str, blames: int = -1) -> None:
        status = self.alive.get(number)
        if number in self.frozen or status is None or status.epoch > plan.epoch:
            return
        if self.plan is plan and number in plan.members:
            joined = status.state == JOINED  # A world that stood tells no reason.
            told = "" if joined else reason
            about = replace(status, epoch=plan.epoch, restored=bool(reason), reason=told)
            about = replace(about, blames=blames, kept=self.kept_for(number))
            about = replace(about, version=self.state.get(number, 0) if self.keeps else 0)
            self.say(number, replace(about, state=WAITING, in_run=True))
            if reason and self.random.random() < self.stop_rate:
                self.freeze(number)

    # Stopping.

    def freeze(self, number: int) -> None:
        """Stops a worker for a while; or for ever, if another one misses it."""
        if number in self.alive and number not in self.frozen:
            self.frozen.add(number)
            if self.random.random() < 0.3:
                self.loops.add(number)
            others = [it for it in self.plan.members if it in self.alive and it not in self.frozen]
            if not others or self.random.random() < 0.8:
                self.after(self.random.uniform(0.1, 100), partial(self.thaw, number))

    def thaw(self, number: int) -> None:
        """It goes on, and finds that its world is over, if it is."""
        self.frozen.discard(number)
        self.loops.discard(number)
        status = self.alive.get(number)
        if status is None:
            self.ready(number)
            return
        found = max((it for it in self.plans if number in it.members), key=lambda it: it.epoch)
        if self.plan.ending:
            self.die(number, 1)
        elif status.state != WAITING or status.epoch < found.epoch:
            about = replace(status, epoch=found.epoch, restored=True, reason="a rank is gone")
            about = replace(about, version=self.state.get(number, 0) if self.keeps else 0)
            self.say(number, replace(about, state=WAITING, kept=self.kept_for(number)))

    def answer(self, number: int, serial: int) -> None:
        status = self.alive.get(number)
        if status is not None and number not in self.frozen - self.loops:
            self.say(number, replace(status, heard=serial))


@pytest.mark.parametrize("stories", [100, pytest.param(500, marks=pytest.mark.slow)])
def test_every_story_ends_and_keeps_the_rules(stories: int) -> None:
    finished = begins = replaced = 0
    reasons: dict[str, int] = {}
    for seed in range(stories):
        story = Story(seed)
        try:
            story.play()
        except (AssertionError, pytest.fail.Exception) as error:
            msg = f"story {seed}: {error}"
            raise AssertionError(msg) from error
        assert story.end is not None
        begins += story.begins
        replaced += story.replaced
        if story.end.error:
            reasons[story.end.error[:20]] = reasons.get(story.end.error[:20], 0) + 1
        else:
            finished += 1
            assert story.steps >= 100
            assert not set(story.alive) - story.orphans
    assert finished > stories // 4, reasons  # The stories are not all of one kind.
    assert len(reasons) > 3, reasons
    assert begins > stories // 50
    assert replaced > stories // 20
