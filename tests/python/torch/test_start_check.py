"""Replicas that do not begin alike: one warning, at the second step, and never an error."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import lightcc.torch as hvd
from lightcc.exceptions import ShutDownError
from lightcc.testing import spawn_ranks


class Heard(logging.Handler):
    """Keeps what is said of replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        logging.getLogger("lightcc.torch._start_check").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def train(kind: str, members: Any) -> Any:
    odd = hvd.rank() == 2
    torch.manual_seed(7 if kind == "weights" and odd else 0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    rate = 0.2 if kind == "rate" and odd else 0.1
    plain = torch.optim.SGD(model.parameters(), lr=rate)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), process_set=members)
    for step in range(5):
        optimizer.zero_grad()
        model(torch.full((2, 3), hvd.rank() + 1.0)).square().mean().backward()
        optimizer.step()
        if kind == "broadcast later" and step == 0:
            hvd.broadcast_parameters(model.state_dict(), 0)
    return optimizer


def run() -> list[list[str]]:
    hvd.init(process_sets="dynamic")
    members = hvd.add_process_set([0, 2])
    heard = Heard()
    said = []
    for kind in ("alike", "weights", "rate", "broadcast later"):
        train(kind, hvd.global_process_set)
        said.append(heard.texts)
        heard.texts = []
    if members.included():
        train("weights", members)
    said.append(heard.texts)
    heard.texts = []
    # A rank that has no second step has joined by then.
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.1))
    for _ in range(1 if hvd.rank() == 1 else 3):
        optimizer.zero_grad()
        (parameter.sum() * (hvd.rank() + 1)).backward()
        optimizer.step()
    hvd.join()
    said.append(heard.texts)
    hvd.shutdown()
    return said


def end_with_the_second_step() -> None:
    hvd.init()
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.1))
    assert optimizer._exchange is not None
    check: Any = optimizer._exchange._start_check
    send = check._send

    def send_when_rank_0_has_left() -> None:
        with pytest.raises(ShutDownError):
            hvd.barrier()
        send()

    if hvd.rank() == 1:
        check._send = send_when_rank_0_has_left
    for _ in range(2):
        optimizer.zero_grad()
        parameter.sum().backward()
        optimizer.step()
    hvd.shutdown()


@pytest.mark.multiproc
def test_a_rank_that_leaves_after_its_second_step_fails_no_other() -> None:
    spawn_ranks(end_with_the_second_step, 2)


@pytest.mark.multiproc
def test_replicas_that_begin_apart_are_told_once_and_others_never() -> None:
    first, *others = spawn_ranks(run, 3)
    assert others == [[[]] * 6] * 2
    alike, weights, rate, later, members, joined = first
    assert alike == later == joined == []
    assert len(weights) == len(rate) == len(members) == 1
    assert "ranks [2] differ from the others in the parameters '0.weight', '0.bias'" in weights[0]
    assert "1 more (broadcast_parameters()" in weights[0]
    assert "the optimizer's" not in weights[0]
    assert "ranks [2] differ" in rate[0]
    assert "the optimizer's lr (broadcast_optimizer_state()" in rate[0]
    assert "ranks [2] differ" in members[0]
