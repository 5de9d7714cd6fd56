"""A small residual network, and how ranks train it: on the host, on a GPU, or on a fake one.

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


class Block(nn.Module):
    """Two convolutions with batch norm, and what goes past them, added up."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        """Halves both sides of the image with a stride of 2."""
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns an image of each image."""
        return nn.functional.relu(self.branch(x) + self.shortcut(x))


class Network(nn.Module):
    """Classifies images of 3 channels; 13 thousand parameters."""

    def __init__(self) -> None:
        """Has the weights that torch's seed gives."""
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), Block(8, 8), Block(8, 16, stride=2), Block(16, 16)
        )
        self.classifier = nn.Linear(16, _CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Returns the logits of each image."""
        # An adaptive pooling layer's backward pass has no order on a GPU. The mean's has one.
        result: torch.Tensor = self.classifier(self.features(images).mean((2, 3)))
        return result


@dataclass
class Trained:
    """What came out on this rank."""

    losses: list[float]
    #: Parameters, and then batch norm's averages, in host memory.
    state: list[torch.Tensor]
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


def make_network(device: torch.device | str) -> Network:
    """Returns one with the same weights on all ranks. Collective."""
    torch.manual_seed(hvd.rank())  # Other weights on each rank ...
    model = Network().to(device)
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
    return _run(model, optimizer, device)


def train_by_host(device: torch.device | str, name: str, *, topk: bool) -> Trained:
    """Does the same, but copies each gradient to host memory, and all-reduces the copy there."""
    model = make_network(device)
    parameters = dict(model.named_parameters())
    threshold_bytes = int(os.environ["LIGHT_TOPK_THRESHOLD"])
    compressed = {key for key, p in parameters.items() if topk and 4 * p.numel() >= threshold_bytes}
    groups: list[dict[str, Any]] = [
        {"params": [p for key, p in parameters.items() if key not in compressed]},
        # The compression applies their momentum.
        {"params": [parameters[key] for key in sorted(compressed)], "momentum": 0.0},
    ]
    compression = hvd.Compression.topk(RATIO, momentum_correction=MOMENTUM)

    def exchange(*_: object) -> None:
        for key, p in parameters.items():
            assert p.grad is not None
            how = compression if key in compressed else hvd.Compression.none
            host = p.grad.cpu().contiguous()
            p.grad.copy_(hvd.allreduce(host, name=f"{name}.{key}", compression=how))

    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=MOMENTUM)
    optimizer.register_step_pre_hook(exchange)
    return _run(model, optimizer, device)


def check_same(one: Trained, other: Trained) -> None:
    """Raises AssertionError unless both have the same bits."""
    assert one.losses == other.losses
    for index, (a, b) in enumerate(zip(one.state, other.state, strict=True)):
        assert torch.equal(a, b), index


def check_ranks_agree(trained: Trained) -> None:
    """Raises AssertionError unless all ranks have the same parameters, bit for bit. Collective."""
    count = len(list(Network().parameters()))
    mine = [tensor.numpy().tobytes() for tensor in trained.state[:count]]
    assert all(theirs == mine for theirs in hvd.allgather_object(mine))


def check_learns(trained: Trained) -> None:
    """Raises AssertionError unless the loss has become smaller."""
    assert sum(trained.losses[-2:]) < sum(trained.losses[:2]), trained.losses


def check_close(one: Trained, other: Trained) -> None:
    """Raises AssertionError unless losses are those of another device's arithmetic.

    Differences in the last bits grow from step to step.
    """
    torch.testing.assert_close(one.losses, other.losses, rtol=0.005, atol=0.0)


def _run(model: Network, optimizer: torch.optim.Optimizer, device: torch.device | str) -> Trained:
    before = _counters()
    losses = []
    for step in range(STEPS):
        images, labels = make_batch(step, device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    state = [*model.parameters(), *model.buffers()]
    assert all(tensor.device.type == torch.device(device).type for tensor in state)
    counted = {name: count - before[name] for name, count in _counters().items()}
    return Trained(losses, [tensor.detach().cpu().clone() for tensor in state], counted)


def _counters() -> dict[str, int]:
    names = ["compressed_on_gpu", "nccl_buckets", "nccl_two_level_buckets", "staged_buckets"]
    counters: dict[str, Any] = hvd.stats()
    return {name: counters[name] for name in names}
