"""Elastic jobs, one rule at a time: what the driver does when something happens.

`test_driver_stories.py` plays whole jobs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lightcc._discovery.plan import JOINED, WAITING, Notice, Plan, RollCall, Status, decode, encode
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
from lightcc.runner.driver.plan_store import statuses


def actions(kind: type[Any], found: list[Action]) -> list[Any]:
    return [action for action in found if isinstance(action, kind)]


def started(settings: Settings, hosts: dict[str, int]) -> tuple[Driver, Plan]:
    """Returns a driver whose first epoch has been joined by all slots of `hosts`."""
    driver = Driver(settings, lambda: 0.0, 0.0)
    starts = actions(Start, driver.hosts_seen(0.0, hosts))
    assert [start.worker for start in starts] == list(range(sum(hosts.values())))
    plans: list[Plan] = []
    for start in starts:
        plans += actions(Plan, driver.status_changed(1.0, start.worker, Status(WAITING)))
    for start in starts:
        driver.status_changed(2.0, start.worker, Status(JOINED, 1, in_run=True))
    assert len(plans) == 1
    return driver, plans[0]


def broken(epoch: int) -> Status:
    return Status(WAITING, epoch, restored=True, in_run=True, reason="a rank is gone")


def test_survivors_go_on_without_waiting_for_a_replacement() -> None:
    driver, plan = started(Settings(3, 2), {"a": 3})
    assert plan == Plan(1, (0, 1, 2))
    driver.worker_ended(3.0, 0, -9, "killed")
    assert not actions(Plan, driver.status_changed(3.1, 1, broken(1)))
    (second,) = actions(Plan, driver.status_changed(3.1, 2, broken(1)))
    assert second == Plan(2, (1, 2))
    (start,) = actions(Start, driver.tick(4.0))  # After the cooldown of the slot.
    assert start == Start(3, "a", 2, ("a", "a", "a"))
    for number in second.members:
        driver.status_changed(5.0, number, Status(JOINED, 2, in_run=True))
    (notice,) = actions(Notice, driver.status_changed(6.0, 3, Status(WAITING)))
    assert notice == Notice(1, 2)
    found: list[Action] = []
    for number in second.members:
        found = driver.status_changed(7.0, number, Status(WAITING, 2, in_run=True))
    (third,) = actions(Plan, found)
    assert third == Plan(3, (1, 2, 3), notice=1)


def test_a_failed_worker_costs_its_host_where_that_is_asked_for() -> None:
    driver, _ = started(Settings(4, 2, lose_host=True), {"a": 2, "b": 2})
    stops = actions(Stop, driver.worker_ended(3.0, 0, 1, "exit code 1"))
    assert {stop.worker for stop in stops} == {0, 1}
    driver.worker_ended(3.2, 1, -15, "stopped")
    driver.status_changed(3.3, 2, broken(1))
    (plan,) = actions(Plan, driver.status_changed(3.4, 3, broken(1)))
    assert plan.members == (2, 3)
    assert driver.deadline() is None  # The host is lost for ever.


def test_a_worker_that_does_not_leave_a_broken_epoch_has_failed() -> None:
    settings = Settings(4, 2, elastic_timeout_s=5.0, lose_host=True)
    driver, _ = started(settings, {"a": 2, "b": 2})
    for number in (1, 2, 3):
        assert not driver.status_changed(3.0, number, broken(1))
    found = driver.tick(8.0)
    assert {stop.worker for stop in actions(Stop, found)} == {0, 1}  # Its host is lost.
    (plan,) = actions(Plan, found)
    assert plan.members == (2, 3)


def trains(epoch: int = 1, slow: int = -1) -> Status:
    about = Status(JOINED, epoch, in_run=True, has_state=True)
    return replace(about, slow=slow, slow_factor=3.0 if slow >= 0 else 0.0)


def commit(driver: Driver, now: float, members: tuple[int, ...], epoch: int) -> list[Action]:
    """Has all members leave an epoch in good order; returns what follows."""
    found: list[Action] = []
    for number in members:
        about = Status(WAITING, epoch, in_run=True, has_state=True)
        found = driver.status_changed(now, number, about)
    return found


def training(settings: Settings, hosts: dict[str, int]) -> Driver:
    driver, plan = started(settings, hosts)
    for number in plan.members:
        driver.status_changed(2.5, number, trains())
    return driver


def test_a_slow_member_leaves_at_a_commit_and_its_slot_is_left_alone_for_long() -> None:
    driver = training(Settings(3, 2, slow_factor=2.5), {"a": 3})
    found = driver.status_changed(3.0, 0, trains(slow=1))
    assert found == [FoundSlow(1, 3.0, is_replaced=True), Notice(1, 1)]
    assert driver.status_changed(3.1, 0, trains(slow=2)) == [FoundSlow(2, 3.0, is_replaced=False)]
    found = commit(driver, 4.0, (0, 1, 2), 1)
    assert actions(Plan, found) == [Plan(2, (0, 2), removed=(1,), sync=False, notice=1)]
    assert actions(Stop, found) == [Stop(1)]
    driver.worker_ended(4.1, 1, 0, "removed")
    driver.status_changed(5.0, 0, trains(2))
    driver.status_changed(5.0, 2, trains(2))
    assert not driver.tick(63.0)
    (start,) = actions(Start, driver.tick(64.0))  # The longest cooldown.
    assert start.worker == 3


def test_rank_0_may_be_the_slow_one() -> None:
    driver = training(Settings(2, 1, slow_factor=2.5), {"a": 2})
    driver.status_changed(3.0, 0, trains(slow=0))
    (plan,) = actions(Plan, commit(driver, 4.0, (0, 1), 1))
    assert plan.members == (1,)


def test_a_slow_member_stays_until_enough_others_are_there() -> None:
    driver = training(Settings(2, 2, 2, slow_factor=2.5), {"a": 1, "b": 1})
    found = driver.status_changed(3.0, 0, trains(slow=1))
    assert found == [FoundSlow(1, 3.0, is_replaced=True)]
    (start,) = actions(Start, driver.hosts_seen(4.0, {"a": 1, "b": 1, "c": 1}))
    assert start.host == "c"
    assert actions(Notice, driver.status_changed(5.0, 2, Status(WAITING))) == [Notice(1, 1)]
    found = commit(driver, 6.0, (0, 1), 1)
    assert actions(Plan, found) == [Plan(2, (0, 2), removed=(1,), sync=True, notice=1)]


def test_a_slow_member_stays_until_it_is_as_slow_as_was_asked_for() -> None:
    driver = training(Settings(2, 1, slow_factor=3.5), {"a": 2})
    assert not driver.status_changed(3.0, 0, trains(slow=1))  # By a factor of 3.
    found = driver.status_changed(3.1, 0, replace(trains(slow=1), slow_factor=4.0))
    assert found == [FoundSlow(1, 4.0, is_replaced=True), Notice(1, 1)]


def test_a_slow_member_is_only_named_where_nobody_asks_for_more() -> None:
    driver = training(Settings(2, 1), {"a": 2})
    found = driver.status_changed(3.0, 0, trains(slow=1))
    assert found == [FoundSlow(1, 3.0, is_replaced=False)]
    assert not driver.status_changed(3.1, 0, replace(trains(slow=1), slow_factor=4.0))
    (plan,) = actions(Plan, commit(driver, 4.0, (0, 1), 1))
    assert plan.members == (0, 1)


def test_what_is_said_of_slow_members_by_others_or_too_late_does_not_count() -> None:
    driver = training(Settings(2, 1, slow_factor=2.5), {"a": 2})
    assert not driver.status_changed(3.0, 1, trains(slow=0))
    assert not driver.status_changed(3.0, 0, trains(epoch=0, slow=1))
    assert not driver.status_changed(3.0, 0, trains(slow=7))


def test_a_silent_member_is_left_out_and_may_come_back() -> None:
    driver, _ = started(Settings(3, 1, roll_call_s=2.0), {"a": 3})
    for number in range(3):
        trains = Status(JOINED, 1, in_run=True, has_state=True)
        driver.status_changed(2.5, number, trains)
    driver.status_changed(3.0, 0, replace(broken(1), has_state=True))
    driver.status_changed(3.0, 1, replace(broken(1), has_state=True))
    assert driver.tick(5.0) == [RollCall(1), Awaits((2,))]
    assert driver.deadline() == 7.0
    (plan,) = actions(Plan, driver.tick(7.0))
    assert plan == Plan(2, (0, 1))
    driver.status_changed(8.0, 0, Status(JOINED, 2, in_run=True, has_state=True))
    driver.status_changed(8.0, 1, Status(JOINED, 2, in_run=True, has_state=True))
    found = driver.status_changed(9.0, 2, replace(broken(1), has_state=True))
    assert found == [Notice(1, 2)]
    driver.status_changed(9.1, 0, Status(WAITING, 2, in_run=True, has_state=True))
    found = driver.status_changed(9.1, 1, Status(WAITING, 2, in_run=True, has_state=True))
    assert found == [Plan(3, (0, 1, 2), notice=1)]


def test_a_silent_member_that_does_not_come_back_is_replaced() -> None:
    driver, _ = started(Settings(2, 1, roll_call_s=2.0, elastic_timeout_s=20.0), {"a": 2})
    driver.status_changed(3.0, 0, broken(1))
    driver.tick(5.0)
    assert driver.tick(7.0) == [LeftOut(1), Plan(2, (0,))]
    driver.status_changed(7.5, 0, Status(JOINED, 2, in_run=True))
    assert driver.deadline() == 17.0
    assert driver.tick(17.0) == [Stop(1)]
    driver.worker_ended(17.5, 1, -15, "ended")
    (start,) = actions(Start, driver.tick(18.0))
    assert (start.worker, start.host) == (2, "a")


def test_a_member_that_answers_is_waited_for() -> None:
    driver, _ = started(Settings(2, 1, roll_call_s=2.0, elastic_timeout_s=20.0), {"a": 2})
    driver.status_changed(3.0, 0, broken(1))
    assert driver.tick(5.0) == [RollCall(1), Awaits((1,))]
    driver.status_changed(5.1, 1, Status(JOINED, 1, in_run=True, heard=1))
    assert not driver.tick(7.0)
    assert driver.tick(9.0) == [RollCall(2)]
    (plan,) = actions(Plan, driver.status_changed(10.0, 1, broken(1)))
    assert plan.members == (0, 1)


def test_a_member_that_answers_and_does_not_come_is_replaced() -> None:
    driver, _ = started(Settings(2, 1, roll_call_s=10.0, stuck_s=45.0), {"a": 2})
    driver.status_changed(3.0, 0, broken(1))
    assert driver.tick(13.0) == [RollCall(1), Awaits((1,))]
    driver.status_changed(13.1, 1, Status(JOINED, 1, in_run=True, heard=1))
    driver.tick(23.0)
    assert driver.tick(33.0) == [RollCall(2)]  # Who is waited for has been said.
    driver.status_changed(33.1, 1, Status(JOINED, 1, in_run=True, heard=2))
    for now in (43.0, 53.0):
        driver.tick(now)
    driver.status_changed(53.1, 1, Status(JOINED, 1, in_run=True, heard=3))
    assert driver.deadline() == 58.0
    assert driver.tick(58.0) == [Stop(1), Plan(2, (0,))]


def test_the_first_world_has_all_that_start() -> None:
    driver = Driver(Settings(3, 1, elastic_timeout_s=100.0), lambda: 0.0, 0.0)
    driver.hosts_seen(0.0, {"a": 3})
    assert not driver.status_changed(2.0, 0, Status(WAITING))
    assert driver.deadline() == 30.0
    assert driver.tick(30.0) == [Awaits((1, 2))]
    assert not driver.tick(60.0)
    assert not driver.status_changed(70.0, 1, Status(WAITING))
    assert driver.deadline() == 100.0
    (plan,) = actions(Plan, driver.tick(100.0))
    assert plan.members == (0, 1)
    driver.status_changed(102.0, 0, Status(JOINED, 1))
    driver.status_changed(102.0, 1, Status(JOINED, 1))
    assert driver.status_changed(103.0, 2, Status(WAITING)) == [Notice(1, 2)]


def test_the_first_world_does_not_wait_for_who_has_ended() -> None:
    driver = Driver(Settings(2, 1, elastic_timeout_s=100.0), lambda: 0.0, 0.0)
    driver.hosts_seen(0.0, {"a": 2})
    driver.status_changed(1.0, 0, Status(WAITING))
    (plan,) = actions(Plan, driver.worker_ended(40.0, 1, 1, "worker 1 has ended"))
    assert plan.members == (0,)


def test_too_few_that_wait_are_told_once() -> None:
    driver, _ = started(Settings(2, 2), {"a": 2})
    driver.worker_ended(3.0, 1, -9, "worker 1 was killed")
    found = driver.status_changed(3.1, 0, broken(1))
    assert actions(RunsShort, found) == [RunsShort(1, "a rank is gone")]
    assert not actions(RunsShort, driver.tick(3.5))


def test_workers_whose_agent_is_gone_are_told_to_leave() -> None:
    driver, _ = started(Settings(2, 1, hosts_return=True), {"a": 1, "b": 1})
    found = driver.host_lost(3.0, "b", "host b was lost")
    assert found == [Stop(1), Notice(1, 1)]
    (plan,) = actions(Plan, driver.status_changed(4.0, 0, Status(WAITING, 1, in_run=True)))
    assert (plan.members, plan.removed) == ((0,), (1,))


def with_a_newcomer() -> Driver:
    """Returns a driver where worker 0, which has the state, and worker 2 are at joining."""
    driver, _ = started(Settings(2, 1, roll_call_s=2.0), {"a": 2})
    for number in range(2):
        driver.status_changed(2.5, number, Status(JOINED, 1, in_run=True, has_state=True))
    driver.worker_ended(3.0, 1, -9, "worker 1: killed")
    (plan,) = actions(Plan, driver.status_changed(3.1, 0, replace(broken(1), has_state=True)))
    driver.status_changed(3.2, 0, Status(JOINED, 2, in_run=True, has_state=True))
    assert actions(Start, driver.tick(4.0))
    driver.status_changed(5.0, 2, Status(WAITING))
    found = driver.status_changed(5.1, 0, Status(WAITING, 2, in_run=True, has_state=True))
    (plan,) = actions(Plan, found)
    assert plan.members == (0, 2)
    return driver


def test_a_newcomer_does_not_begin_anew_where_all_others_are_gone() -> None:
    driver = with_a_newcomer()
    driver.worker_ended(6.0, 0, -9, "worker 0: killed")
    (end,) = actions(End, driver.status_changed(6.1, 2, broken(3)))
    assert end.error == "no worker that has the state of training is left: a rank is gone"


def all_killed(settings: Settings) -> Driver:
    """Returns a driver of two hosts whose workers kept commits, and were killed."""
    driver, _ = started(settings, {"a": 1, "b": 1})
    for number in range(2):
        status = Status(JOINED, 1, in_run=True, has_state=True, keeps=True)
        driver.status_changed(2.5, number, status)
    for number in range(2):
        assert not actions(End, driver.worker_ended(3.0 + number / 2, number, -9, "killed"))
    return driver


def test_all_begin_from_the_newest_commit_when_nobody_has_the_state() -> None:
    driver = all_killed(Settings(2, 2))
    assert actions(Start, driver.tick(4.0))
    assert not driver.status_changed(4.4, 2, Status(WAITING, kept=7))
    assert actions(Start, driver.tick(4.5))
    found = driver.status_changed(5.5, 3, Status(WAITING, kept=8))
    assert actions(Begin, found) == [Begin(8, "b")]
    (plan,) = actions(Plan, found)
    assert plan == Plan(2, (3, 2), sync=True, commit=8)


@pytest.mark.parametrize(("kept", "left_out"), [(8, 3), (7, 5)])
def test_who_cannot_be_reached_is_left_out_unless_it_keeps_the_commit(
    kept: int, left_out: int
) -> None:
    driver, _ = started(Settings(3, 2), {"a": 1, "b": 1, "c": 1})
    for number in range(3):
        status = Status(JOINED, 1, in_run=True, has_state=True, keeps=True)
        driver.status_changed(2.5, number, status)
    for number in range(3):
        driver.worker_ended(3.0, number, -9, "killed")
    driver.tick(4.0)
    commits = {3: 8, 4: kept, 5: kept}
    found: list[Action] = []
    for number in commits:
        found = driver.status_changed(4.5, number, Status(WAITING, kept=commits[number]))
    (plan,) = actions(Plan, found)
    assert (plan.members[0], plan.commit) == (3, 8)
    for epoch in (2, 3):
        for number in commits:
            found = driver.status_changed(
                5.0 + epoch, number, replace(off(epoch, 3), kept=commits[number])
            )
    (plan,) = actions(Plan, found)
    assert plan.members == tuple(number for number in commits if number != left_out)
    assert plan.commit == 8
    assert [it.worker for it in actions(Stop, found)] == [left_out]


def test_who_has_no_commit_waits_for_a_host_that_may_have_one() -> None:
    driver = all_killed(Settings(2, 1))
    assert actions(Start, driver.tick(4.0))
    assert not driver.status_changed(4.4, 2, Status(WAITING))
    assert actions(Start, driver.tick(4.5))
    (begin,) = actions(Begin, driver.status_changed(5.5, 3, Status(WAITING, kept=8)))
    assert begin.host == "b"


def test_who_has_no_commit_leaves_its_place_to_a_host_that_may_have_one() -> None:
    driver = all_killed(Settings(2, 2, max_np=2))
    driver.hosts_seen(3.6, {"a": 1, "b": 1, "c": 2, "d": 1})
    for number in (2, 3):  # They take the places of the two that were killed.
        assert not driver.status_changed(3.8, number, Status(WAITING))
    found = driver.tick(4.5)
    assert [(it.worker, it.host) for it in actions(Start, found)] == [(4, "a"), (5, "b")]
    assert {it.worker for it in actions(Stop, found)} == {2, 3}
    driver.worker_ended(4.6, 2, -15, "stopped")
    driver.worker_ended(4.6, 3, -15, "stopped")
    assert not actions(Plan, driver.status_changed(5.0, 4, Status(WAITING, kept=7)))
    found = driver.status_changed(5.1, 5, Status(WAITING, kept=8))
    assert actions(Begin, found) == [Begin(8, "b")]
    (plan,) = actions(Plan, found)
    assert plan == Plan(2, (5, 4), sync=True, commit=8)


def test_places_are_left_once_and_the_job_ends_where_no_host_has_a_commit() -> None:
    driver = all_killed(Settings(2, 2, max_np=2))
    driver.hosts_seen(3.6, {"a": 1, "b": 1, "c": 2})
    for number in (2, 3):
        driver.status_changed(3.8, number, Status(WAITING))
    assert len(actions(Start, driver.tick(4.5))) == 2
    driver.worker_ended(4.6, 2, -15, "stopped")
    driver.worker_ended(4.6, 3, -15, "stopped")
    assert not driver.status_changed(5.0, 4, Status(WAITING))
    (end,) = actions(End, driver.status_changed(5.1, 5, Status(WAITING)))
    assert end.error == "no worker that has the state of training is left: killed"


def with_an_old_commit() -> Driver:
    """Returns a driver that lost the state, where a newcomer's host keeps an old commit."""
    driver, _ = started(Settings(2, 1), {"a": 1, "b": 1})
    for number in range(2):
        status = Status(JOINED, 1, in_run=True, has_state=True, keeps=True)
        driver.status_changed(2.5, number, status)
    driver.worker_ended(3.0, 0, -9, "killed")
    own = replace(broken(1), has_state=True, version=5, kept=5)
    (plan,) = actions(Plan, driver.status_changed(3.1, 1, own))
    assert plan.members == (1,)
    driver.status_changed(3.2, 1, Status(JOINED, 2, in_run=True, has_state=True, keeps=True))
    assert actions(Start, driver.tick(4.0))
    driver.status_changed(4.4, 2, Status(WAITING, kept=2))
    return driver


def test_all_wait_for_a_host_that_is_left_alone_as_it_may_keep_a_newer_commit() -> None:
    driver = with_an_old_commit()
    assert not actions(Plan, driver.worker_ended(4.5, 1, -9, "killed"))
    assert actions(Start, driver.tick(5.5))  # After the cooldown of its slot.
    found = driver.status_changed(6.0, 3, Status(WAITING, kept=8))
    assert actions(Begin, found) == [Begin(8, "b")]
    (plan,) = actions(Plan, found)
    assert plan.members == (3, 2)


def test_nobody_waits_for_a_host_that_does_not_come_back() -> None:
    driver = with_an_old_commit()
    (plan,) = actions(Plan, driver.host_lost(4.5, "b", "host b was lost"))
    assert (plan.members, plan.commit) == ((2,), 2)


def test_a_job_without_a_commit_ends() -> None:
    driver = all_killed(Settings(2, 1))
    driver.tick(4.0)
    driver.status_changed(4.5, 2, Status(WAITING))
    driver.tick(5.0)
    (end,) = actions(End, driver.status_changed(5.5, 3, Status(WAITING)))
    assert end.error == "no worker that has the state of training is left: killed"


def test_a_newcomer_whose_join_was_called_off_still_takes_over_the_state() -> None:
    driver = with_a_newcomer()
    off = Status(WAITING, 3, in_run=True, reason="called off")
    driver.status_changed(6.0, 0, replace(off, has_state=True))
    (plan,) = actions(Plan, driver.status_changed(6.0, 2, off))
    assert plan == Plan(4, (0, 2), sync=True, notice=1)


def test_a_newcomer_waits_for_a_silent_worker_that_has_the_state() -> None:
    driver = with_a_newcomer()
    assert actions(CallOff, driver.status_changed(6.0, 2, broken(3)))
    for now in (8.0, 10.0, 20.0):
        assert not driver.tick(now)
    (plan,) = actions(Plan, driver.status_changed(21.0, 0, replace(broken(3), has_state=True)))
    assert plan.members == (0, 2)


def test_a_host_that_dialled_in_may_come_back_at_once() -> None:
    driver, _ = started(Settings(2, 1, hosts_return=True), {"a": 1, "b": 1})
    driver.host_lost(3.0, "b", "host b was lost")
    (plan,) = actions(Plan, driver.status_changed(3.1, 0, broken(1)))
    assert plan.members == (0,)
    (start,) = actions(Start, driver.hosts_seen(3.2, {"a": 1, "b": 1}))
    assert (start.worker, start.host) == (2, "b")


def off(epoch: int, blames: int) -> Status:
    return Status(WAITING, epoch, in_run=True, reason="cannot reach it", blames=blames)


def test_who_cannot_be_reached_is_left_out_at_the_second_time() -> None:
    driver, _ = started(Settings(3, 1), {"a": 1, "b": 1, "c": 1})
    found: list[Action] = []
    for number in range(3):
        found = driver.status_changed(3.0, number, replace(broken(1), reason=""))
    assert actions(Plan, found)
    for number in range(3):
        found = driver.status_changed(4.0, number, off(2, 0))
    assert actions(Plan, found) == [Plan(3, (0, 1, 2), sync=False)]
    for number in range(3):
        found = driver.status_changed(5.0, number, off(3, 0))
    assert found == [Stop(0), Plan(4, (1, 2), sync=False)]
    for number in (1, 2):
        driver.status_changed(5.5, number, Status(JOINED, 4, in_run=True))
    driver.worker_ended(5.5, 0, -15, "ended")
    (start,) = actions(Start, driver.tick(7.0))  # It may be reached later on.
    driver.status_changed(8.0, start.worker, Status(WAITING))
    for number in (1, 2):
        found = driver.status_changed(9.0, number, Status(WAITING, 4, in_run=True))
    assert actions(Plan, found)[0].members == (1, 2, 3)
    for epoch in (5, 6):
        for number in (1, 2, 3):
            found = driver.status_changed(9.0 + epoch, number, off(epoch, 1))
    assert [it.worker for it in actions(Stop, found)] == [3]
    assert actions(Plan, found)[0].members == (1, 2)


def test_newcomers_of_one_host_are_announced_together() -> None:
    driver, _ = started(Settings(1, 1, start_timeout_s=30.0), {"a": 1})
    driver.hosts_seen(3.0, {"a": 1, "b": 2, "c": 2})
    assert not driver.status_changed(4.0, 1, Status(WAITING))
    assert actions(Notice, driver.status_changed(5.0, 2, Status(WAITING)))
    assert not driver.status_changed(6.0, 3, Status(WAITING))
    assert driver.deadline() == 33.0
    assert not driver.tick(33.0)  # Worker 4 is waited for until 36.0; nothing else is new.


#: A member that left the last world within a commit.
LEVEL = Status(WAITING, 1, restored=True, in_run=True, has_state=True, level=True)


def with_one_at_its_commit() -> Driver:
    """Returns a driver of two members and a newcomer, 2; member 0 waits for the next world."""
    driver, _ = started(Settings(2, 1), {"a": 2})
    for number in (0, 1):
        driver.status_changed(2.5, number, Status(JOINED, 1, in_run=True, has_state=True))
    driver.hosts_seen(3.0, {"a": 2, "b": 1})
    driver.status_changed(4.0, 2, Status(WAITING))
    driver.status_changed(5.0, 0, LEVEL)
    return driver


def test_newcomers_take_over_what_all_others_have() -> None:
    driver = with_one_at_its_commit()
    (plan,) = actions(Plan, driver.status_changed(5.1, 1, LEVEL))
    assert (plan.members, plan.newcomers, plan.sync) == ((0, 1, 2), (2,), True)


def test_newcomers_take_over_nothing_where_the_others_may_differ() -> None:
    driver = with_one_at_its_commit()
    (plan,) = actions(Plan, driver.status_changed(5.1, 1, replace(LEVEL, level=False)))
    assert (plan.members, plan.newcomers) == ((0, 1, 2), ())


def test_who_is_ready_late_waits_for_others_of_its_host_from_then_on() -> None:
    driver, _ = started(Settings(1, 1, start_timeout_s=30.0), {"a": 1})
    driver.hosts_seen(3.0, {"a": 1, "b": 2})
    assert not driver.status_changed(100.0, 1, Status(WAITING))
    assert driver.deadline() == 130.0
    assert not driver.tick(129.0)
    assert actions(Notice, driver.tick(130.0)) == [Notice(1, 2)]


def test_who_starts_on_a_host_that_leaves_is_stopped() -> None:
    driver, _ = started(Settings(1, 1), {"a": 1})
    (start,) = actions(Start, driver.hosts_seen(3.0, {"a": 1, "b": 1}))
    assert actions(Stop, driver.hosts_seen(4.0, {"a": 1, "b": 0})) == [Stop(start.worker)]


def test_a_death_while_the_others_join_calls_the_join_off() -> None:
    driver = Driver(Settings(2, 1), lambda: 0.0, 0.0)
    driver.hosts_seen(0.0, {"a": 2})
    driver.status_changed(1.0, 0, Status(WAITING))
    (plan,) = actions(Plan, driver.status_changed(1.0, 1, Status(WAITING)))
    (off,) = actions(CallOff, driver.worker_ended(1.1, 1, -9, "worker 1: killed"))
    assert off.epoch == plan.epoch
    assert "worker 1: killed" in off.reason


def test_nobody_left_ends_the_job_with_the_failure() -> None:
    driver, _ = started(Settings(2, 1), {"a": 2})
    driver.worker_ended(3.0, 0, 1, "worker 0: exit code 1")
    (end,) = actions(End, driver.worker_ended(3.1, 1, 1, "worker 1: exit code 1"))
    assert end.error == "worker 1: exit code 1"


def test_too_few_slots_for_too_long_end_the_job() -> None:
    driver = Driver(Settings(4, 2, elastic_timeout_s=5.0), lambda: 0.0, 0.0)
    assert not driver.hosts_seen(0.0, {"a": 1})
    assert driver.deadline() == 5.0
    (end,) = actions(End, driver.tick(5.0))
    assert "at least 2 Horovod processes" in end.error


@pytest.mark.parametrize("value", [b"", b"{}", b'{"serial": "1", "result": 2}', b"[1]"])
def test_who_writes_what_is_no_status_is_stopped(value: bytes) -> None:
    good = encode(Status(WAITING))
    entries = {"elastic/worker/1": value, "elastic/worker/x": good, "elastic/worker/2": good}
    assert list(statuses(entries)) == [(1, None), (2, Status(WAITING))]


@pytest.mark.parametrize("value", [b"", b"{}", b'{"serial": "1", "result": 2}', b"[" * 100_000])
def test_what_is_no_message_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="not a Notice of an elastic job"):
        decode(Notice, value)
