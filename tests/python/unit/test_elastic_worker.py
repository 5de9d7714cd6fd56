"""What a worker of an elastic job says of itself, and takes up of the launcher's plans."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import pytest

from lightcc import _core
from lightcc._discovery import plan as _plan
from lightcc._discovery.elastic import Worker
from lightcc.exceptions import HorovodInternalError
from lightcc.runner.driver.plan_store import PlanStore, statuses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lightcc._discovery.epoch import Epoch

SOON_S = 20.0


class Launcher:
    """The launcher's side of one worker."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        server = _core.StoreServer("127.0.0.1:0", "s3cret")
        stack.callback(server.stop)
        self.plans = PlanStore(_core.StoreClient(server.address, "s3cret"))
        stack.callback(self.plans.close)
        self.environment = {
            "LIGHT_WORKER": "0",
            "LIGHT_RENDEZVOUS": server.address,
            "LIGHT_SECRET": "s3cret",
        }
        self.worker = Worker(self.environment)
        stack.callback(self.worker._stop)

    def wait_for(self, is_so: Callable[[_plan.Status], bool]) -> _plan.Status:
        """Returns the worker's status as soon as it is so."""
        until = time.monotonic() + SOON_S
        while time.monotonic() < until:
            ((_, status),) = statuses(self.plans.entry_of(0))
            if status is not None and is_so(status):
                return status
            time.sleep(0.01)
        pytest.fail("the worker has not said so")


@pytest.fixture(name="launcher")
def _launcher() -> Iterator[Launcher]:
    with contextlib.ExitStack() as stack:
        yield Launcher(stack)


@contextlib.contextmanager
def joining(launcher: Launcher, join_world: Callable[[Epoch], object]) -> Iterator[None]:
    thread = threading.Thread(target=launcher.worker.join, args=(join_world,))
    thread.start()
    yield
    thread.join(SOON_S)
    assert not thread.is_alive()


def test_what_a_join_was_to_synchronise_is_not_forgotten_when_it_fails(launcher: Launcher) -> None:
    worlds = []

    def join_world(epoch: Epoch) -> None:
        worlds.append(epoch.number)
        if epoch.number < 3:
            msg = "called off"
            raise HorovodInternalError(msg)

    launcher.worker.restored = True
    with joining(launcher, join_world):
        assert launcher.wait_for(lambda it: it.state == _plan.WAITING).restored
        launcher.plans.publish(_plan.Plan(1, (0,), sync=True))
        assert launcher.wait_for(lambda it: it.epoch == 1).restored
        launcher.plans.publish(_plan.Plan(2, (0,), sync=False))
        assert not launcher.wait_for(lambda it: it.epoch == 2).restored
        launcher.plans.publish(_plan.Plan(3, (0,), sync=False))
    assert worlds == [1, 2, 3]
    assert launcher.wait_for(lambda it: it.state == _plan.JOINED).epoch == 3


def test_a_roll_call_is_answered_while_the_program_computes(launcher: Launcher) -> None:
    launcher.plans.call_roll(_plan.RollCall(1))  # Before anybody knows of it.
    with joining(launcher, lambda _epoch: None):
        launcher.wait_for(lambda it: it.state == _plan.WAITING)
        launcher.plans.publish(_plan.Plan(1, (0,)))
    launcher.wait_for(lambda it: it.state == _plan.JOINED)
    launcher.plans.call_roll(_plan.RollCall(2))
    status = launcher.wait_for(lambda it: it.heard == 2)
    assert (status.state, status.epoch) == (_plan.JOINED, 1)


#: What worker 0 is told, as the launcher counts at its start.
PLACE = {
    "LIGHT_RANK": "2",
    "LIGHT_SIZE": "3",
    "LIGHT_LOCAL_RANK": "0",
    "LIGHT_LOCAL_SIZE": "1",
    "LIGHT_CROSS_RANK": "1",
    "LIGHT_CROSS_SIZE": "2",
}


@contextlib.contextmanager
def another(launcher: Launcher, number: int, *, in_run: bool) -> Iterator[Worker]:
    """Another worker of the job, which has said something of itself."""
    worker = Worker(launcher.environment | {"LIGHT_WORKER": str(number)})
    worker._say(in_run=in_run)
    yield worker
    worker._stop()


def test_a_new_worker_finds_those_that_train_once(launcher: Launcher) -> None:
    with another(launcher, 1, in_run=True):
        launcher.plans.publish(_plan.Plan(1, (1,)))
        found = launcher.worker.find_training(PLACE)
        assert found == (2, 3, 0, 1, 1, 2)
        assert launcher.worker.find_training(PLACE) is None


def test_a_new_worker_joins_at_once_where_nobody_will_wait_in_run(launcher: Launcher) -> None:
    with another(launcher, 1, in_run=False):  # It makes its worlds itself.
        launcher.plans.publish(_plan.Plan(1, (1,)))
        assert launcher.worker.find_training(PLACE) is None


def test_a_first_worker_finds_no_training(launcher: Launcher) -> None:
    assert launcher.worker.find_training(PLACE) is None
    with another(launcher, 2, in_run=True) as late:
        assert late.find_training(PLACE) is None  # It is one of them.


@pytest.mark.parametrize("plan", [_plan.Plan(2, (1,), ending="over"), _plan.Plan(1, (9,))])
def test_a_training_that_is_over_is_not_found(launcher: Launcher, plan: _plan.Plan) -> None:
    with another(launcher, 1, in_run=True):
        launcher.plans.publish(plan)
        assert launcher.worker.find_training(PLACE) is None


def test_a_worker_that_comes_when_training_has_finished_ends_without_an_error(
    launcher: Launcher, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher.plans.publish(_plan.Plan(2, (9,), ending="training has finished"))
    with pytest.raises(SystemExit) as end:
        launcher.worker.join(lambda _: None)
    assert end.value.code == 0
    assert "training has finished before this worker took part" in capsys.readouterr().err


def test_a_launcher_that_does_not_count_has_new_workers_wait(launcher: Launcher) -> None:
    with another(launcher, 1, in_run=True):
        launcher.plans.publish(_plan.Plan(1, (1,)))
        assert launcher.worker.find_training({}) is None


def test_a_slow_rank_is_named_by_its_worker_until_the_next_epoch(launcher: Launcher) -> None:
    with joining(launcher, lambda _: None):
        launcher.plans.publish(_plan.Plan(1, (0, 7)))
    launcher.worker.report_slow(1, 2.5)
    status = launcher.wait_for(lambda it: it.slow >= 0)
    assert (status.slow, status.slow_factor) == (7, 2.5)
    launcher.worker.report_slow(1, 3.5)
    assert launcher.wait_for(lambda it: it.slow_factor > 3).slow == 7
    with joining(launcher, lambda _: None):
        launcher.plans.publish(_plan.Plan(2, (0,)))
    status = launcher.wait_for(lambda it: it.state == _plan.JOINED and it.epoch == 2)
    assert (status.slow, status.slow_factor) == (-1, 0.0)
