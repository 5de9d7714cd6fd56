"""State that is loaded: every optimizer of torch, with each dtype, goes on alike on all ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lightcc.torch as hvd
from lightcc.testing import spawn_ranks

ROOT = 1
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
OPTIONS: dict[type, Any] = {
    torch.optim.SGD: {"momentum": 0.9},
    torch.optim.RMSprop: {"momentum": 0.9},
    torch.optim.LBFGS: {"max_iter": 2},
}


class WideMomentum(torch.optim.Optimizer):
    """Keeps its momentum in float32, whatever its parameters are, as many trainers do."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            for p in group["params"]:
                zeros = torch.zeros_like(p, dtype=torch.float32)
                state = self.state[p].setdefault("kept", {"momentum": zeros})
                state["momentum"].mul_(0.9).add_(p.grad.float())
                p.add_(state["momentum"].to(p.dtype), alpha=-group["lr"])


def optimizers() -> list[type[torch.optim.Optimizer]]:
    found = [getattr(torch.optim, name) for name in torch.optim.__all__]
    kinds = [it for it in found if isinstance(it, type) and issubclass(it, torch.optim.Optimizer)]
    return [it for it in kinds if it is not torch.optim.Optimizer] + [WideMomentum]


class Training:
    """A parameter, its optimizer, and a scheduler that was made before the optimizer is wrapped."""

    def __init__(self, kind: type[Any], dtype: torch.dtype) -> None:
        options: dict[str, Any] = OPTIONS.get(kind, {})
        generator = torch.Generator().manual_seed(5)
        values = torch.randn(4, 3, generator=generator)
        self.weight = torch.nn.Parameter(values.to(dtype))
        self.is_sparse = kind is torch.optim.SparseAdam
        self.plain = kind([self.weight], lr=0.01 * (hvd.rank() + 1), **options)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.plain, 0.98)
        self.optimizer = self.plain

    def loss(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = (self.weight.square().sum() + self.weight.sum()) * (hvd.rank() + 1)
        loss.backward()
        return loss

    def sparse(self) -> None:
        """Makes the gradient sparse; hooks of the optimizer have to see it so."""
        self.optimizer.zero_grad()
        rows = self.weight.detach().to_sparse(1) * (hvd.rank() + 1)
        torch.autograd.backward(self.weight, rows)

    def step(self) -> None:
        if self.is_sparse:
            self.sparse()
            self.optimizer.step()
        elif isinstance(self.optimizer, torch.optim.LBFGS):
            self.optimizer.step(self.loss)
        else:
            self.loss()
            self.optimizer.step()
        self.schedule.step()

    def wrap(self) -> None:
        self.optimizer = hvd.DistributedOptimizer(self.plain, [("weight", self.weight)])

    def facts(self) -> Any:
        """Everything that has to be the same on all ranks."""
        return leaves([self.optimizer.state_dict(), self.weight])


def leaves(state: Any) -> list[Any]:
    if isinstance(state, dict):
        return [leaf for key in sorted(state, key=str) for leaf in [key, *leaves(state[key])]]
    if isinstance(state, list | tuple):
        return [leaf for item in state for leaf in leaves(item)]
    if isinstance(state, torch.Tensor):
        dense = state.detach().to_dense() if state.layout is not torch.strided else state.detach()
        return [str(state.dtype), dense.double().tolist()]
    return [state]


def objects(optimizer: Any) -> list[int]:
    """The ids of what others may hold: the groups, their list, and the state of parameters."""
    return [
        id(optimizer.param_groups),
        *map(id, optimizer.param_groups),
        id(optimizer.state),
        *map(id, optimizer.state.values()),
    ]


def train_all() -> None:
    hvd.init()
    torch.set_num_threads(1)
    for kind in optimizers():
        for dtype in DTYPES:
            check(kind, dtype)
    hvd.shutdown()


def check(kind: type[Any], dtype: torch.dtype) -> None:
    what = f"{kind.__name__} with {dtype}"
    training = Training(kind, dtype)
    for _ in range(1 if hvd.rank() == 0 else 2):
        training.step()
    training.wrap()
    optimizer: Any = training.optimizer
    before, groups = objects(optimizer), optimizer.param_groups
    hvd.broadcast_parameters([training.weight], ROOT)
    hvd.broadcast_optimizer_state(optimizer, ROOT)
    training.schedule.load_state_dict(hvd.broadcast_object(training.schedule.state_dict(), ROOT))
    assert objects(optimizer) == before, what
    assert training.plain.param_groups is groups, what
    for _ in range(10):
        training.step()
    facts = hvd.allgather_object(training.facts())
    assert facts[0] == facts[1], what
    assert groups[0]["lr"] == training.schedule.get_last_lr()[0], what

    # What a job goes back to is what it had, too, and the scheduler goes on with it.
    state = hvd.elastic.TorchState(optimizer=optimizer, schedule=training.schedule)
    own = training.facts()[:-2], training.schedule.state_dict()
    training.step()
    state.restore()
    assert (training.facts()[:-2], training.schedule.state_dict()) == own, what
    assert objects(optimizer) == before, what
    optimizer.load_state_dict(optimizer.state_dict())
    assert training.facts()[:-2] == own[0], what
    assert objects(optimizer) == before, what


@pytest.mark.multiproc
def test_every_optimizer_goes_on_alike_after_a_broadcast_and_a_restore() -> None:
    spawn_ranks(train_all, 2, timeout_s=110)
