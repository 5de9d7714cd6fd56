"""A small network, and how ranks train it: on the host, on a GPU, or on a fake one.

It imports torch. Ranks import it when torch has the device that they train on (cuda_torch.py).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import lightcc.torch as hvd

MOMENTUM, RATIO, STEPS = 0.9, 0.1, 6
_CLASSES = 10


@dataclass
class Trained:
    """What came out on this rank."""

    losses: list[float]
    #: In host memory.
    parameters: list[torch.Tensor]
    #: Tensors that a GPU selected elements of, and buckets by what carried them.
    counted: dict[str, int]


def prefer_one_order() -> None:
    """Has every operator of torch add up in one order, without TF32."""
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


def use_gpu() -> torch.device:
    """Makes the GPU of the local rank the current one; ranks share GPUs where there are fewer."""
    index = hvd.local_rank() % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def make_network(device: torch.device | str) -> nn.Module:
    """Returns one with the same weights on all ranks. Collective."""
    torch.manual_seed(hvd.rank())  # Other weights on each rank ...
    first = [nn.Conv2d(3, 8, 3, 2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    second = [nn.Conv2d(8, 16, 3, 2, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    model = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(64, _CLASSES)).to(device)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # ... until here.
    return model


def make_batch(step: int, device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns this rank's images and labels of a step, which are made in host memory."""
    patterns = torch.randn(_CLASSES, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(100 * step + hvd.rank())
    labels = torch.randint(_CLASSES, (16,), generator=generator)
    images = patterns[labels] + 0.5 * torch.randn(16, 3, 8, 8, generator=generator)
    return images.to(device), labels.to(device)


def train(device: torch.device | str, name: str, *, topk: bool) -> Trained:
    """Trains with DistributedOptimizer; `topk`: by top-k with momentum correction.

    `name` is that of this training, as what compression keeps back belongs to names.
    """
    model = make_network(device)
    compression: Any = hvd.Compression.none
    if topk:
        compression = hvd.Compression.topk(RATIO, momentum_correction=True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=MOMENTUM),
        [(f"{name}.{key}", p) for key, p in model.named_parameters()],
        compression=compression,
    )
    before = _counters()
    losses = []
    for step in range(STEPS):
        images, labels = make_batch(step, device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(p.device.type == torch.device(device).type for p in model.parameters())
    counted = {name: count - before[name] for name, count in _counters().items()}
    return Trained(losses, [p.detach().cpu().clone() for p in model.parameters()], counted)


def check(trained: Trained, on_cpu: Trained) -> None:
    """Raises AssertionError unless training has worked as on the CPU. Collective.

    Ranks have the same bits, and losses are those of another device's arithmetic: differences in
    the last bits grow from step to step. A fake GPU makes none.
    """
    mine = [p.numpy().tobytes() for p in trained.parameters]
    assert all(theirs == mine for theirs in hvd.allgather_object(mine))
    assert sum(trained.losses[-2:]) < sum(trained.losses[:2]), trained.losses
    if "LIGHTCC_FAKE_CUDA" in os.environ:
        assert trained.losses == on_cpu.losses
        assert mine == [p.numpy().tobytes() for p in on_cpu.parameters]
    torch.testing.assert_close(trained.losses, on_cpu.losses, rtol=0.005, atol=0.0)


def _counters() -> dict[str, int]:
    counters: dict[str, Any] = hvd.stats()
    return {
        name: counters[name] for name in ("compressed_on_gpu", "nccl_buckets", "staged_buckets")
    }
