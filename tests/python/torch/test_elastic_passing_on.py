"""Newcomers take over a state from several ranks at once, which go on with their step."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

import lightcc.torch as hvd
from lightcc.elastic import ObjectState, _passing_on
from lightcc.elastic._passing_on import Route, cut, plan_routes
from lightcc.exceptions import HorovodInternalError, PeerFailedError
from lightcc.testing import spawn_ranks

HOSTS = ["a", "a", "a", "b", "b"]
NEWCOMERS = (2, 3, 4)


def test_a_state_comes_from_the_own_host_or_crosses_the_network_once() -> None:
    assert plan_routes([[0, 1, 2], [3, 4, 5]], [2, 3, 4, 5]) == {
        2: Route((0, 1), -1, -1),
        3: Route((0, 1), -1, 4),
        4: Route((0, 1), 3, 5),
        5: Route((0, 1), 4, -1),
    }


def test_parts_are_views_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_passing_on, "_PART_BYTES", 4)
    arrays = [np.arange(6, dtype=np.uint8), np.zeros(0, np.uint8), np.arange(4, dtype=np.uint8)]
    parts = cut(arrays)
    assert [part.tolist() for part in parts] == [[0, 1, 2, 3], [4, 5], [0, 1, 2, 3]]
    assert parts[1].base is arrays[0]
    monkeypatch.setattr(_passing_on, "_MAX_PARTS", 2)
    assert [part.size for part in cut(arrays)] == [5, 1, 4]


class Model(torch.nn.Module):
    """With all that a model may have: large and small, buffers, another dtype, a stride."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.wide = torch.nn.Linear(200, 300)
        self.norm = torch.nn.BatchNorm1d(300)
        self.short = torch.nn.Parameter(torch.randn(100, 100, dtype=torch.bfloat16))
        self.turned = torch.nn.Parameter(torch.randn(70, 90).t())
        self.tied = self.turned
        self.norm.running_mean = torch.full((300,), float(seed))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.norm(self.wide(x)).sum() + self.turned.square().sum()
        return values + self.short.float().square().sum()


def make(seed: int) -> tuple[Model, torch.optim.Optimizer, hvd.elastic.TorchState]:
    model = Model(seed)
    plain = torch.optim.Adam(model.parameters(), lr=0.01 * seed, foreach=False)
    names = model.named_parameters()
    optimizer = hvd.DistributedOptimizer(plain, names)
    sampler = hvd.elastic.ElasticSampler(range(50), shuffle=False)
    sampler.record_batch(0, seed)
    return model, optimizer, hvd.elastic.TorchState(model, optimizer, sampler=sampler, batch=seed)


def step(model: Model, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(4, 200)).backward()
    optimizer.step()


def digest(state: hvd.elastic.TorchState) -> str:
    found = hashlib.sha256()
    tensors = list(state.model.state_dict().values())
    for one in state.optimizer.state_dict()["state"].values():
        tensors += [one[name] for name in sorted(one)]
    for tensor in tensors:
        data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        found.update(data.numpy().tobytes())
    return found.hexdigest()


def pass_on(rolls_forward: bool, has_stepped: bool) -> list[object]:
    """Ranks 0 and 1 have a state; returns what each rank has, then and after another step."""
    _passing_on._PART_BYTES = 50_000
    hvd.init()
    is_new = hvd.rank() in NEWCOMERS
    model, optimizer, state = make(2 if is_new else 1)
    if rolls_forward:
        state.roll_forward()
    if has_stepped:
        step(model, optimizer)
    state._version = -5 if is_new else 7
    if is_new:
        for source in (0, 1):  # The others have begun, and do not wait.
            hvd.recv(torch.zeros(1), source, name="begun")
    else:
        state.on_reset()  # As they come from another world.
    state.pass_on(NEWCOMERS)
    if not is_new:
        for newcomer in NEWCOMERS:
            hvd.send(torch.zeros(1), newcomer, name="begun")
    then = digest(state)
    state.end_training(failed=False)
    about = [state.batch, state._version, state.optimizer.param_groups[0]["lr"]]
    about += [len(state.sampler), state.sampler.processed_num]
    step(model, optimizer)
    after = digest(state)
    if not rolls_forward and is_new:
        state.restore()
        assert digest(state) == then  # It has saved what has arrived.
    return [then, after, about]


@pytest.mark.multiproc
@pytest.mark.parametrize(("rolls_forward", "has_stepped"), [(False, True), (True, False)])
def test_newcomers_have_the_same_bits_as_the_others(
    *, rolls_forward: bool, has_stepped: bool
) -> None:
    found = spawn_ranks(pass_on, 5, rolls_forward, has_stepped, hosts=HOSTS)
    assert found == [found[0]] * 5
    assert found[0][2] == [1, 7, 0.01, 9, 5]


def differ() -> str:
    """Rank 1 has one other bit than rank 0; returns what rank 2 makes of it."""
    hvd.init()
    model, _, state = make(1)
    if hvd.rank() == 1:
        with torch.no_grad():
            model.wide.weight[0, 0] += 1
    try:
        state.pass_on([2])
        state.end_training(failed=False)
    except PeerFailedError as error:
        text = str(error)
    else:
        text = ""
    hvd.barrier()
    return text


def change() -> str:
    """The others change a parameter while rank 2 takes it over; returns what they hear."""
    hvd.init()
    model, _, state = make(1)
    text = ""
    try:
        state.pass_on([2])
        if hvd.rank() != 2:
            with torch.no_grad():
                model.wide.weight[0, 0] += 1
        state.commit()
    except HorovodInternalError as error:
        text = str(error)
    state.end_training(failed=True)
    return text


@pytest.mark.multiproc
def test_parameters_that_change_too_early_are_an_error_of_the_world() -> None:
    texts = spawn_ranks(change, 3)
    assert all(texts), texts
    # The first to find it out ends the world, so another may hear of that alone.
    told = "parameters were changed while a newcomer took them over"
    assert any(told in text for text in texts[:2]), texts


@pytest.mark.multiproc
def test_sources_that_differ_are_found_out() -> None:
    *others, text = spawn_ranks(differ, 3)
    assert others == ["", ""]
    assert "that rank 1 has passed on is not what rank 0 has: it was damaged, or" in text


def test_a_sync_of_somebody_else_is_not_passed_by() -> None:
    class Own(ObjectState):
        def sync(self) -> None:
            super().sync()

    class Handler(hvd.elastic.state.ModelStateHandler):
        pass

    assert ObjectState(lambda it: it, lambda: 0, step=0).can_pass_on()
    assert not Own(lambda it: it, lambda: 0, step=0).can_pass_on()
    state = hvd.elastic.TorchState(torch.nn.Linear(2, 2), step=0)
    assert state.can_pass_on()
    state._handlers["model"] = Handler(state.model)
    assert not state.can_pass_on()
