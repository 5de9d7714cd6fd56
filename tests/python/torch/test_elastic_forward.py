"""Elastic training that rolls forward: who goes on from whose step, and what is not copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from elastic_jobs import run_story

import lightcc.torch as hvd
from lightcc.elastic import State
from lightcc.exceptions import HorovodInternalError
from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STEPS = 40


def make(
    **objects: object,
) -> tuple[torch.nn.Linear, torch.optim.Optimizer, hvd.elastic.TorchState]:
    model = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    plain = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    return model, optimizer, hvd.elastic.TorchState(model, optimizer, **objects)


def step(model: torch.nn.Linear, optimizer: torch.optim.Optimizer, number: float) -> None:
    """Subtracts `number` from the weights, which whole numbers do exactly on any ranks."""
    optimizer.zero_grad()
    (model(torch.ones(1, 3)) * number).sum().backward()
    optimizer.step()


def fail_apart(ahead: int, again: bool) -> tuple[list[float], int, list[int]]:
    """Rank `ahead` ends the second step, which fails on the other rank before it is committed.

    With `again`, the other rank waits for the state of rank `ahead` when the next world fails.
    """
    hvd.init()
    model, optimizer, state = make(batch=0)
    begun: list[int] = []
    failures = iter([False, again and hvd.rank() == ahead, False])
    sync = state.sync

    def sync_or_fail() -> None:
        if next(failures):
            msg = "the world fails here"
            raise HorovodInternalError(msg)
        sync()

    state.sync = sync_or_fail  # type: ignore[method-assign]

    @hvd.elastic.run(recovery="forward")
    def train(state: hvd.elastic.TorchState) -> None:
        begun.append(state.batch)
        while state.batch < 4:
            if state.batch == 1 and len(begun) == 1 and hvd.rank() != ahead:
                with torch.no_grad():  # What its step would have waited for has come.
                    hvd.allreduce(torch.ones(3))
                msg = "the step fails here"
                raise HorovodInternalError(msg)
            if state.batch == 1 and len(begun) == 1:
                hvd.allreduce(torch.ones(3))
                with torch.no_grad():
                    model.weight -= 2.0
            else:
                step(model, optimizer, state.batch + 1.0)
            state.batch += 1
            state.commit()

    train(state)
    return model.weight.flatten().tolist(), state.batch, begun


@pytest.mark.multiproc
@pytest.mark.parametrize(("ahead", "again"), [(0, False), (1, True)])
def test_ranks_go_on_from_the_one_with_most_finished_steps(ahead: int, *, again: bool) -> None:
    for weights, batch, begun in spawn_ranks(fail_apart, 2, ahead, again):
        assert weights == [-10.0] * 3  # 1 + 2 + 3 + 4: no step is lost, none is made twice.
        assert batch == 4
        assert begun == [0, 2]


TRAINING = f"""
import json, os, signal, sys
from pathlib import Path
import torch
import lightcc.torch as hvd
from test_elastic_forward import make, step

worker, story, folder = os.environ["LIGHT_WORKER"], json.loads(sys.argv[1]), Path(sys.argv[2])
hvd.init()
model, optimizer, state = make(batch=0, sizes=[])

@hvd.elastic.run(recovery="forward", check_replicas=4)
def train(state):
    state.sizes = [*state.sizes, hvd.size()]
    while state.batch < {STEPS}:
        if story.get(worker) == state.batch:
            os.kill(os.getpid(), signal.SIGKILL)
        step(model, optimizer, state.batch + 1.0)
        if story.get(worker) == -state.batch:
            model.weight.data[0, 1] += 1
        state.batch += 1
        state.commit()

train(state)
about = {{"weights": model.weight.flatten().tolist(), "sizes": state.sizes}}
(folder / f"result.{{worker}}").write_text(json.dumps(about))
"""


@pytest.mark.slow  # Seven or eight processes import torch: 10 s.
@pytest.mark.multiproc
@pytest.mark.parametrize("story", [{"1": 7}, {"0": 7, "2": 20}, {"2": -9}])
def test_each_step_counts_once_though_ranks_are_killed_or_wrong(
    tmp_path: Path, story: dict[str, int]
) -> None:
    found = run_story(TRAINING, story, tmp_path, patience_s=120)
    for about in found:
        assert about["weights"] == [-STEPS * (STEPS + 1) / 2] * 3
        assert about["sizes"][:2] == [4, 3]


@pytest.fixture
def world() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.usefixtures("world")
def test_commits_copy_neither_model_nor_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = hvd.elastic.ElasticSampler(range(8), shuffle=False)
    model, optimizer, state = make(batch=0, sampler=sampler)
    copied: list[object] = []
    for name in ("model", "optimizer", "sampler"):
        handler = state._handlers[name]
        monkeypatch.setattr(handler, "save", lambda handler=handler: copied.append(handler.value))

    @hvd.elastic.run(recovery="forward")
    def train(state: hvd.elastic.TorchState) -> None:
        del copied[:]
        step(model, optimizer, 1.0)
        state.commit()

    train(state)
    assert copied == [sampler]


@pytest.mark.usefixtures("world")
def test_parameters_are_compared_and_buffers_are_not() -> None:
    linear, norm = torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)
    model = torch.nn.Sequential(linear, norm).to(torch.bfloat16)
    state = hvd.elastic.TorchState(model, batch=0)
    before = list(state.samples(0))
    assert len(before) == 4
    assert norm.running_mean is not None
    norm.running_mean.fill_(1)
    state.batch = 1
    assert list(state.samples(0)) == before
    with torch.no_grad():
        linear.weight[1, 2] += 1
    assert list(state.samples(0)) != before


@pytest.mark.usefixtures("world")
def test_a_step_that_is_not_committed_is_warned_of() -> None:
    model, optimizer, state = make(batch=0)
    failures = iter([True, False])

    @hvd.elastic.run(recovery="forward")
    def train(state: hvd.elastic.TorchState) -> None:
        step(model, optimizer, 1.0)
        state.batch += 1
        if next(failures):
            msg = "a rank failed"
            raise HorovodInternalError(msg)
        state.commit()

    with pytest.warns(UserWarning, match=r"commit right after optimizer\.step\(\)"):
        train(state)
    assert state.batch == 1


@pytest.mark.usefixtures("world")
def test_a_state_that_no_rank_has_whole_is_not_trained_on() -> None:
    _, _, state = make(batch=0)
    state._version = -1
    with pytest.raises(RuntimeError, match="no rank that is left has a whole state"):
        state.take_over()


@pytest.mark.usefixtures("world")
def test_what_cannot_roll_forward_is_refused() -> None:
    with pytest.raises(ValueError, match="recovery='sideways': must be 'rollback' or 'forward'"):
        hvd.elastic.run(recovery="sideways")

    @hvd.elastic.run(recovery="forward")
    def train(state: State) -> None:
        del state

    with pytest.raises(ValueError, match="does not go with State: use 'rollback'"):
        train(State(lambda it: it, hvd.rank))
