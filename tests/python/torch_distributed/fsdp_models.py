"""A small model, sharded by FSDP2, and its loss."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import lightcc.torch as hvd

HOSTS = [0, 0, 1, 1]
SMALL = {"LIGHT_TOPK_THRESHOLD": "0"}
WORDS, WIDTH = 80, 64


class Block(nn.Module):
    """Two parameters of 16,384 elements, and small ones between them; a pass may leave it out."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, short: bool = False) -> torch.Tensor:
        hidden = torch.tanh(self.up(self.norm(x)))
        return x + (hidden[..., :WIDTH] if short else self.down(hidden))


class Model(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, WORDS)
        self.register_buffer("shift", torch.rand(WIDTH))

    def forward(self, x: torch.Tensor, **options: Any) -> torch.Tensor:
        hidden = self.words(x) + self.shift
        for block in self.blocks:
            hidden = block(hidden, **options)
        out: torch.Tensor = self.head(hidden)
        return out


def sharded(mesh: Any, seed: int = 3, **options: Any) -> Any:
    model = Model(seed)
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, **options)
    return model


def loss_of(model: Any, step: int, **options: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    x = torch.randint(0, WORDS, (16,), generator=generator)
    return nn.functional.cross_entropy(model(x, **options), (x + 1) % WORDS)


def sent() -> int:
    """Returns what this rank has sent compressed."""
    return int(hvd.stats()["compressed_sent_bytes"])


def take_step(model: Any, optimizer: Any, number: int, factor: float = 1.0) -> int:
    """Returns what this rank has sent of it compressed."""
    optimizer.zero_grad()
    before = sent()
    (loss_of(model, number) * factor).backward()
    optimizer.step()
    return sent() - before
