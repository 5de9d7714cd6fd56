"""broadcast_parameters, broadcast_optimizer_state and the object functions, between ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tensors import check_same

import lightcc.torch as hvd
from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.multiproc

ROOT = 1


def functions() -> None:
    hvd.init()
    parameters()
    for make in OPTIMIZERS:
        optimizer_state(make)
    options()
    empty_state_of_the_root()
    unusual_state()
    groups_that_differ()
    extra_state()
    objects()


def model_of(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Conv2d(2, 3, 2), torch.nn.BatchNorm2d(3), torch.nn.Flatten(), torch.nn.Linear(3, 1)
    )


def parameters() -> None:
    root_state = model_of(ROOT).state_dict()
    assert root_state["1.num_batches_tracked"].shape == ()
    forms: list[Callable[[torch.nn.Module], Any]] = [
        lambda model: model.state_dict(),
        lambda model: list(model.named_parameters()) + list(model.named_buffers()),
        lambda model: list(model.parameters()) + list(model.buffers()),
    ]
    for prepare in forms:
        model = model_of(hvd.rank()).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        weight = model.get_parameter("0.weight")
        assert not weight.is_contiguous()
        hvd.broadcast_parameters(prepare(model), root_rank=ROOT)
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, root_state[name]), name
        assert weight.requires_grad
        assert not weight.is_contiguous()

    mine = [torch.tensor(hvd.rank() == ROOT), torch.full((3,), hvd.rank(), dtype=torch.bfloat16)]
    hvd.broadcast_parameters(mine, ROOT)
    check_same(mine[0], torch.tensor(True))
    check_same(mine[1], torch.full((3,), ROOT, dtype=torch.bfloat16))
    hvd.broadcast_parameters([], ROOT)

    # Expanded dimensions have one element each, whatever their strides are elsewhere.
    row = torch.full((1, 3), float(hvd.rank()))
    hvd.broadcast_parameters({"a": row.expand(4, 3), "b": row[:, :1].expand(1, 5).t()}, ROOT)
    check_same(row, torch.full((1, 3), float(ROOT)))
    with pytest.raises(TypeError, match=r"^the entry 'x\._extra_state' of params is a dict: expe"):
        hvd.broadcast_parameters({"a": row, "x._extra_state": {"seen": 1}}, ROOT)
    with pytest.raises(ValueError, match=r"^invalid params of type: <class 'generator'>"):
        hvd.broadcast_parameters(model_of(0).named_parameters(), ROOT)
    with pytest.raises(ValueError, match=r"^broadcast received invalid root rank 9"):
        hvd.broadcast_parameters(model_of(0).state_dict(), 9)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, amsgrad=True)


def lbfgs(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(parameters, lr=0.1, max_iter=3)


OPTIMIZERS: list[Callable[[Any], torch.optim.Optimizer]] = [sgd, adam, lbfgs]


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, seed: int, steps: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(4, 2, 2, 2, generator=generator)

        def closure(x: torch.Tensor = x) -> float:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return float(loss.detach())

        optimizer.step(closure)


def flat(state: Any) -> list[Any]:
    """The leaves of a nested state, in order; tensors as (dtype, list)."""
    if isinstance(state, dict):
        return [leaf for key in sorted(state, key=str) for leaf in flat(state[key])]
    if isinstance(state, list | tuple):
        return [leaf for item in state for leaf in flat(item)]
    if isinstance(state, torch.Tensor):
        return [(str(state.dtype), state.tolist())]
    return [state]


def optimizer_state(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    model = model_of(hvd.rank())
    optimizer = make(model.parameters())
    # The root has a state, others have another or none.
    train(model, optimizer, hvd.rank(), [2, 3, 0][hvd.rank()])
    before = flat(optimizer.state_dict())
    hvd.broadcast_parameters(model.state_dict(), ROOT)
    hvd.broadcast_optimizer_state(optimizer, ROOT)
    states = hvd.allgather_object(flat(optimizer.state_dict()))
    assert len(states[ROOT]) > len(optimizer.param_groups)
    assert all(state == states[ROOT] for state in states), make
    if hvd.rank() == ROOT:
        assert states[ROOT] == before

    # What was received is a state to go on with.
    train(model, optimizer, 7, 2)
    replicas = hvd.allgather_object(flat(model.state_dict()))
    assert all(replica == replicas[0] for replica in replicas), make


def options() -> None:
    model = model_of(0)
    rate = torch.tensor(0.5 + hvd.rank(), dtype=torch.float64)
    optimizer = torch.optim.Adam(
        [
            {"params": model.get_submodule("0").parameters(), "lr": rate},
            {"params": model.get_submodule("3").parameters(), "weight_decay": float(hvd.rank())},
        ],
        betas=(0.1 * hvd.rank(), 0.9),
        foreach=hvd.rank() == ROOT,
    )
    parameters = [group["params"] for group in optimizer.param_groups]
    hvd.broadcast_optimizer_state(optimizer, ROOT, model)
    first, second = optimizer.param_groups
    check_same(first["lr"], torch.tensor(0.5 + ROOT, dtype=torch.float64))
    assert second["weight_decay"] == float(ROOT)
    for group in (first, second):
        assert group["betas"] == (0.1 * ROOT, 0.9)
        assert group["foreach"] is True
    assert [group["params"] for group in optimizer.param_groups] == parameters


def empty_state_of_the_root() -> None:
    model = model_of(hvd.rank())
    frozen = model.get_parameter("0.weight").requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = sgd(model.parameters())
    if hvd.rank() != ROOT:
        train(model, optimizer, 3, 1)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        optimizer.zero_grad()
    hvd.broadcast_optimizer_state(optimizer, ROOT)
    assert optimizer.state_dict()["state"] == {}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), "parameters are as they were"
    for parameter in model.parameters():
        if parameter is frozen:
            assert parameter.grad is None
        else:
            assert parameter.grad is not None
            assert not parameter.grad.any()


def unusual_state() -> None:
    weight = torch.nn.Parameter(torch.zeros(2, 3))
    optimizer = sgd([weight])
    if hvd.rank() == ROOT:
        shared = torch.arange(6.0).reshape(3, 2)
        optimizer.state[weight] = {
            "step": 5,
            "of another layout": shared.t(),
            "empty": torch.zeros(0, 2),
            "nested": {"same": [shared, shared], "none": None},
        }
    hvd.broadcast_optimizer_state(optimizer, ROOT)
    state = optimizer.state[weight]
    assert state["step"] == 5
    assert torch.equal(state["of another layout"], torch.arange(6.0).reshape(3, 2).t())
    check_same(state["empty"], torch.zeros(0, 2))
    assert torch.equal(state["nested"]["same"][1], torch.arange(6.0).reshape(3, 2))
    assert state["nested"]["none"] is None


def groups_that_differ() -> None:
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(1 + (hvd.rank() == ROOT))]
    optimizer = sgd(weights)
    if hvd.rank() == ROOT:
        hvd.broadcast_optimizer_state(optimizer, ROOT)
    else:
        with pytest.raises(ValueError, match="parameter group"):
            hvd.broadcast_optimizer_state(optimizer, ROOT)
    check_same(hvd.allreduce(torch.ones(1)), torch.ones(1))


class Counted(torch.nn.Linear):
    seen = 0

    def get_extra_state(self) -> Any:
        return {"seen": self.seen}

    def set_extra_state(self, state: Any) -> None:
        self.seen = state["seen"]


def extra_state() -> None:
    model = Counted(2, 1)
    model.seen = hvd.rank() + 7
    hvd.elastic.TorchState(model).sync()
    assert model.seen == 7

    # The root waits for the others' parameters, so they send them at last.
    handler = hvd.elastic.state.ModelStateHandler(
        Counted(2, 1) if hvd.rank() == 0 else torch.nn.Linear(2, 1)
    )
    if hvd.rank() > 0:
        with pytest.raises(ValueError, match=r"that of rank 0 has _extra_state: all ranks"):
            handler.sync()
        hvd.broadcast_parameters(handler.value.state_dict(), 0)
    else:
        handler.sync()


def objects() -> None:
    mine = {"rank": hvd.rank(), "tensor": torch.full((2,), hvd.rank())}
    received = hvd.broadcast_object(mine, ROOT, name="object")
    assert received["rank"] == ROOT
    check_same(received["tensor"], torch.full((2,), ROOT))
    everything = hvd.allgather_object(mine)
    assert [one["rank"] for one in everything] == list(range(hvd.size()))

    # What one rank cannot pickle is an error everywhere, and nobody waits.
    sent = (i for i in range(3)) if hvd.rank() == ROOT else None
    for call in (
        lambda: hvd.broadcast_object(sent, ROOT, name="object"),
        lambda: hvd.allgather_object(sent, name="objects"),
    ):
        error = TypeError if hvd.rank() == ROOT else ValueError
        with pytest.raises(error, match=rf"^rank {ROOT} could not pickle|generator"):
            call()
    assert hvd.allgather_object(hvd.rank(), name="objects") == list(range(hvd.size()))


def test_state_is_the_roots_on_every_rank() -> None:
    spawn_ranks(functions, 3, timeout_s=90)
