"""The tasks of measure/convergence.py: data, model, and what the test measures.

They are sized for minutes on a laptop: thousands of steps of a few milliseconds. The data come with
Debian's package dataset-fashion-mnist and with every Python installation (the reference texts
behind `help()`), or are its source; nothing is downloaded. Word pieces need the package tokenizers.
"""

from __future__ import annotations

import gzip
import importlib
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from torch import nn

FASHION = Path("/usr/share/datasets/fashion-mnist")

BLOCK = 4096  # Characters of the text that go to training or to the test together.
CONTEXT = 16  # Characters that the language model sees.

#: Variants in which hosts train on their own.
_LOCAL = (
    "local steps",
    "local steps after int4",
    "sparse local steps",
    "sparse local steps after int4",
)


@dataclass(frozen=True)
class Task:
    """What is learnt, and how.

    Attributes:
        unit: What `measure` gives, in words.
        points: Factor from what `measure` gives to what tables show.
        higher_is_better: Whether more of it is better.
        steps: Of the optimizer.
        batch: Samples of a step, of all ranks together.
        learning_rate: At the first step; falls linearly to 0.
        train: Inputs and labels, shape (samples, ...) and (samples,) or (samples, positions).
        test: The same, not seen in training.
        make_model: Returns a new model that maps inputs to logits, shape (labels, classes), by
            torch's random numbers.
        measure: Of logits and labels, summed over labels.
        optimizer: "sgd", with momentum 0.9, or "adamw" with torch's settings.
        warmup_steps: In which the learning rate rises.
        variants: Which are run; None: those of SGD.
        ranks_per_host: Of the four ranks.
    """

    name: str
    unit: str
    points: float
    higher_is_better: bool
    steps: int
    batch: int
    learning_rate: float
    train: tuple[torch.Tensor, torch.Tensor]
    test: tuple[torch.Tensor, torch.Tensor]
    make_model: Callable[[], nn.Module]
    measure: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    optimizer: str = "sgd"
    warmup_steps: int = 0
    variants: tuple[str, ...] | None = None
    ranks_per_host: int = 2


def _read_idx(name: str) -> torch.Tensor:
    """Returns the bytes of one of the data set's files, in their shape."""
    path = FASHION / f"{name}.gz"
    if not path.exists():
        sys.exit(f"{path} is missing: apt-get install dataset-fashion-mnist")
    data = gzip.decompress(path.read_bytes())
    dimensions = data[3]
    shape = np.frombuffer(data, ">u4", dimensions, 4)
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions)
    return torch.from_numpy(values.reshape(shape.astype(int)).copy())


def _count_correct(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (logits.argmax(1) == labels).sum()


def _count_bits(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits, labels, reduction="sum") / math.log(2)


def fashion() -> Task:
    """Fashion-MNIST: 70,000 photographs of ten kinds of clothes, and a network of two layers."""

    def load(part: str) -> tuple[torch.Tensor, torch.Tensor]:
        images = _read_idx(f"{part}-images-idx3-ubyte").float().flatten(1)
        return (images - 72.9) / 90.0, _read_idx(f"{part}-labels-idx1-ubyte").long()

    def make_model() -> nn.Module:
        return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))

    return Task(
        name="fashion",
        unit="accuracy, %",
        points=100.0,
        higher_is_better=True,
        steps=7500,
        batch=64,
        learning_rate=0.02,
        train=load("train"),
        test=load("t10k"),
        make_model=make_model,
        measure=_count_correct,
    )


class _Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.GroupNorm(4, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.GroupNorm(4, outputs),
        )
        self.around = (
            nn.Identity()
            if inputs == outputs
            else nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(4, outputs)
            )
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.convolutions(images) + self.around(images))


def convolutions() -> Task:
    """Fashion-MNIST in 14 x 14 pixels for a residual network of 8 layers (He et al. 2016).

    It normalizes groups of channels and not batches, whose statistics would differ from rank to
    rank.
    """

    def load(part: str) -> tuple[torch.Tensor, torch.Tensor]:
        images = _read_idx(f"{part}-images-idx3-ubyte").float().unsqueeze(1)
        images = nn.functional.avg_pool2d((images - 72.9) / 90.0, 2)
        return images, _read_idx(f"{part}-labels-idx1-ubyte").long()

    def make_model() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, 1, 1, bias=False),
            nn.GroupNorm(4, 16),
            nn.ReLU(),
            _Block(16, 16, 1),
            _Block(16, 32, 2),
            _Block(32, 64, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, 10),
        )

    return Task(
        name="convolutions",
        unit="accuracy, %",
        points=100.0,
        higher_is_better=True,
        steps=2000,
        batch=64,
        learning_rate=0.1,
        train=load("train"),
        test=load("t10k"),
        make_model=make_model,
        measure=_count_correct,
        warmup_steps=50,
        variants=("dense", "int8", "int4", "default", "auto", *_LOCAL),
    )


def _read_text() -> tuple[int, torch.Tensor]:
    """Returns how many characters there are, and blocks of their numbers."""
    characters = "".join(topics[name] for name in sorted(topics)).encode("ascii", "ignore")
    alphabet, numbers = np.unique(np.frombuffer(characters, np.uint8), return_inverse=True)
    blocks = torch.from_numpy(numbers[: len(numbers) // BLOCK * BLOCK]).view(-1, BLOCK)
    return len(alphabet), blocks


def text() -> Task:
    """Python's reference, character by character: the next one from the 16 before it.

    The model is a feed-forward one (Bengio et al., "A Neural Probabilistic Language Model", 2003):
    a step takes a quarter of the time of a recurrent network's of its size.
    """
    characters, blocks = _read_text()
    windows = blocks.unfold(1, CONTEXT + 1, 1)
    of_test = torch.arange(len(blocks)) % 10 == 0

    def split(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return part[:, :CONTEXT], part[:, CONTEXT]

    width = 32

    def make_model() -> nn.Module:
        return nn.Sequential(
            nn.Embedding(characters, width),
            nn.Flatten(),
            nn.Linear(CONTEXT * width, 384),
            nn.ReLU(),
            nn.Linear(384, 128),
            nn.ReLU(),
            nn.Linear(128, characters),
        )

    return Task(
        name="text",
        unit="bits/character",
        points=1.0,
        higher_is_better=False,
        steps=4000,
        batch=64,
        learning_rate=0.1,
        train=split(windows[~of_test].flatten(0, 1)),
        test=split(windows[of_test].flatten(0, 1)[::4]),
        make_model=make_model,
        measure=_count_bits,
    )


class _Transformer(nn.Module):
    """Predicts each next character of a window from those before it."""

    def __init__(self, characters: int, window: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.positions = nn.Parameter(0.02 * torch.randn(window, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(
            layer, layers, nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.output = nn.Linear(width, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(window))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Maps windows, shape (n, window), to logits, shape (n * window, characters)."""
        hidden = self.layers(self.embedding(text) + self.positions, mask=self.mask, is_causal=True)
        logits: torch.Tensor = self.output(hidden)
        return logits.flatten(0, 1)


def transformer(width: int = 64) -> Task:
    """The same text for a small transformer under AdamW, 64 characters at a time."""
    characters, blocks = _read_text()
    window = 64
    of_test = torch.arange(len(blocks)) % 10 == 0

    def split(part: torch.Tensor, stride: int) -> tuple[torch.Tensor, torch.Tensor]:
        windows = part.unfold(1, window + 1, stride).flatten(0, 1)
        return windows[:, :window], windows[:, 1:]

    return Task(
        name="transformer",
        unit="bits/character",
        points=1.0,
        higher_is_better=False,
        steps=1500,
        batch=16,
        learning_rate=6e-3,
        train=split(blocks[~of_test], 1),
        test=split(blocks[of_test], window),
        make_model=lambda: _Transformer(characters, window, width, 2),
        measure=_count_bits,
        optimizer="adamw",
        warmup_steps=50,
        variants=(
            "dense",
            "int4",
            "int8",
            "auto",
            "feedback",
            "warm-up",
            *_LOCAL,
            "sharded",
            "sharded, int8 and int4",
            "sharded, int4 differences and int4",
            "HSDP, int4",
        ),
    )


def large_transformer() -> Task:
    """A model of three times as many parameters."""
    return replace(transformer(width=112), name="transformer, three times as large")


def pieces() -> Task:
    """The source text of Python's standard library in word pieces, for the transformer.

    They are learnt by byte-pair encoding. Most are rare: a step has gradients for few rows of the
    embedding.
    """
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    parts = ["", ""]  # For training, and for the test: every tenth file.
    for i, file in enumerate(files):
        parts[i % 10 == 0] += file.read_text(encoding="utf-8").encode("ascii", "ignore").decode()
    known = importlib.import_module("tokenizers").ByteLevelBPETokenizer()
    known.train_from_iterator(parts[0].splitlines(keepends=True), 1024, show_progress=False)
    window = 32

    def windows(part: str, stride: int) -> tuple[torch.Tensor, torch.Tensor]:
        found = torch.tensor(known.encode(part).ids).unfold(0, window + 1, stride)
        return found[:, :window], found[:, 1:]

    return replace(
        transformer(),
        name="pieces",
        unit="bits/piece",
        train=windows(parts[0], 1),
        test=windows(parts[1][:200_000], window),
        make_model=lambda: _Transformer(known.get_vocab_size(), window, 64, 2),
    )


def _vary(make: Callable[[], Task], name: str, **changes: Any) -> Task:
    return replace(make(), name=name, **changes)


TASKS: dict[str, Callable[[], Task]] = {
    "fashion": fashion,
    "convolutions": convolutions,
    "text": text,
    "transformer": transformer,
    "pieces": pieces,
}
#: The same at other rates, for longer, and on four hosts. What they vary follows the comma.
VARIED: dict[str, Callable[[], Task]] = {
    f"{make.__name__}, {label}": partial(_vary, make, f"{make.__name__}, {label}", **changes)
    for make, label, changes in (
        (transformer, "rate 0.003", {"learning_rate": 3e-3}),
        (transformer, "rate 0.012", {"learning_rate": 12e-3}),
        (transformer, "6000 steps", {"steps": 6000}),
        (transformer, "4 x 1", {"ranks_per_host": 1}),
        (transformer, "4 x 1, 64 windows", {"ranks_per_host": 1, "batch": 64}),
        (convolutions, "rate 0.05", {"learning_rate": 0.05}),
        (convolutions, "rate 0.2", {"learning_rate": 0.2}),
        (convolutions, "6000 steps", {"steps": 6000}),
        (convolutions, "4 x 1", {"ranks_per_host": 1}),
        (text, "4 x 1", {"ranks_per_host": 1}),
    )
} | {"transformer, three times as large": large_transformer}
