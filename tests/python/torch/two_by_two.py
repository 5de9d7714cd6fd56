"""What the tests of compressed gradients share: a small model, its batches, and 2 x 2 ranks."""

from __future__ import annotations

import logging

import torch
from torch import nn

import lightcc.torch as hvd

#: Four ranks of one host as two blocks of two; everything is large enough for compression.
TWO_BY_TWO = {"LIGHT_2D_ALLREDUCE": "1", "LIGHT_INTRA_SIZE": "2", "LIGHT_TOPK_THRESHOLD": "0"}


def collect_log(part: str = "") -> list[str]:
    """Returns a list that gets what lightcc logs from now on, if it has `part` in it."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.addFilter(lambda record: part in record.getMessage())
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("lightcc").addHandler(handler)
    return lines


def make_model() -> nn.Module:
    """Returns the same model on every call and rank."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns this rank's inputs and targets of a step."""
    generator = torch.Generator().manual_seed(100 * step + hvd.rank())
    return torch.randn(8, 16, generator=generator), torch.randn(8, 4, generator=generator)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    """Does some steps of ordinary training."""
    for step in steps:
        x, y = batch(step)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


def sgd(model: nn.Module, momentum: float = 0.9, lr: float = 0.05) -> torch.optim.Optimizer:
    """Returns the optimizer of one rank."""
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)


def weights(model: nn.Module) -> torch.Tensor:
    """Returns all parameters as one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])
