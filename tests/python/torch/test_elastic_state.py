"""The states and the sampler of lightcc.torch.elastic, with one rank."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
import torch

import lightcc.torch as hvd
from lightcc.exceptions import HostsUpdatedInterrupt, RankMismatchError
from lightcc.torch.elastic.state import get_handler_registry

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def test_restoring_goes_back_to_the_last_commit() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    state = hvd.elastic.TorchState(model, optimizer, batch=0)
    committed: dict[str, torch.Tensor] = {}
    for state.batch in (1, 2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        if state.batch == 1:
            state.commit()
            committed = {name: value.clone() for name, value in model.state_dict().items()}
    assert not torch.equal(model.weight, committed["weight"])
    state.restore()
    assert state.batch == 1
    assert all(torch.equal(value, committed[name]) for name, value in model.state_dict().items())
    assert len(optimizer.state_dict()["state"]) == 2


def test_assigning_a_model_saves_it() -> None:
    state = hvd.elastic.TorchState(torch.nn.Linear(2, 1))
    other = torch.nn.Linear(2, 1)
    weight = other.weight.detach().clone()
    state.model = other
    with torch.no_grad():
        other.weight.zero_()
    state.restore()
    assert torch.equal(other.weight, weight)
    assert [kind for kind, _ in get_handler_registry()][:3] == [
        torch.nn.Module,
        hvd.LocalSteps,
        torch.optim.Optimizer,
    ]


@pytest.mark.parametrize("ranks", [[2, 3], [3, 1, 2]])
def test_no_sample_is_lost_when_ranks_change_within_an_epoch(
    ranks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Counter[int] = Counter()
    done: dict[str, int] = {"epoch": 4, "processed_num": 0}
    count = 36
    for size in ranks:
        monkeypatch.setattr("lightcc._ops.basics.size", lambda size=size: size)
        samplers = []
        for rank in range(size):
            monkeypatch.setattr("lightcc._ops.basics.rank", lambda rank=rank: rank)
            sampler = hvd.elastic.ElasticSampler(range(count), seed=3)
            sampler.load_state_dict(done)
            samplers.append(sampler)
        taken = len(samplers[0]) if size == ranks[-1] else 6 // size * 2
        for sampler in samplers:
            seen.update(list(sampler)[:taken])
            sampler.record_batch(0, taken)
        done = samplers[0].state_dict()
    assert seen == Counter(range(count))


@pytest.mark.parametrize("updates", [1, 2], ids=["ranks left", "ranks came"])
def test_each_world_deals_the_samples_that_are_left(
    updates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightcc._ops.basics.size", lambda: 2)
    sampler = hvd.elastic.ElasticSampler(range(12), shuffle=False)
    state = hvd.elastic.TorchState(sampler=sampler)
    dealt: list[list[int]] = []

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        dealt.append(list(sampler))
        if len(dealt) == 1:
            sampler.record_batch(0, 2)
            monkeypatch.setattr("lightcc._ops.basics.size", lambda: 1)
            state.on_hosts_updated(1, updates)  # type: ignore[arg-type]
            state.commit()

    train(state)
    assert dealt == [[0, 2, 4, 6, 8, 10], [4, 5, 6, 7, 8, 9, 10, 11]]


def test_fewer_samples_than_ranks_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightcc._ops.basics.size", lambda: 5)
    sampler = hvd.elastic.ElasticSampler(range(2), shuffle=False)
    assert len(sampler) == len(list(sampler)) == 1


def test_a_notice_interrupts_at_the_next_commit_and_the_function_goes_on() -> None:
    state = hvd.elastic.TorchState(batch=0)
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState, last: int) -> int:
        while state.batch < last:
            state.batch += 1
            if state.batch == 2:
                state.on_hosts_updated(1, 2)  # type: ignore[arg-type]
            state.commit()
        return int(state.batch)

    assert train(state, 4) == 4
    assert resets == [1]


def test_an_interrupt_says_whether_hosts_were_only_removed() -> None:
    state = hvd.elastic.TorchState(batch=0)
    for serial, result in enumerate((1, 2, 3), start=1):
        state.on_hosts_updated(serial, result)  # type: ignore[arg-type]
        with pytest.raises(HostsUpdatedInterrupt) as caught:
            state.check_host_updates()
        assert caught.value.skip_sync is (result == 1)
    state.on_hosts_updated(3, 1)  # type: ignore[arg-type]  # It is known already.
    state.check_host_updates()


def test_ranks_that_disagree_are_not_tried_again() -> None:
    calls = []

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        calls.append(state)
        msg = "ranks disagree"
        raise RankMismatchError(msg)

    with pytest.raises(RankMismatchError, match="ranks disagree"):
        train(hvd.elastic.TorchState())
    assert len(calls) == 1
