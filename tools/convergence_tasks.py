"""The two tasks of tools/convergence.py: data, model, and what the test measures.

Both are sized for minutes on a laptop: thousands of steps of a few milliseconds. The data come with
Debian's package dataset-fashion-mnist and with every Python installation (the reference texts
behind `help()`); nothing is downloaded.
"""

from __future__ import annotations

import gzip
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from torch import nn

FASHION = Path("/usr/share/datasets/fashion-mnist")

BLOCK = 4096  # Characters of the text that go to training or to the test together.
CONTEXT = 16  # Characters that the language model sees.


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
        train: Inputs and labels, shape (samples, ...) and (samples,).
        test: The same, not seen in training.
        make_model: Returns a new model that maps inputs to logits, by torch's random numbers.
        measure: Of logits and labels, summed over samples.
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


def text() -> Task:
    """Python's reference, character by character: the next one from the 16 before it.

    The model is a feed-forward one (Bengio et al., "A Neural Probabilistic Language Model", 2003):
    a step takes a quarter of the time of a recurrent network's of its size.
    """
    characters = "".join(topics[name] for name in sorted(topics)).encode("ascii", "ignore")
    alphabet, numbers = np.unique(np.frombuffer(characters, np.uint8), return_inverse=True)
    blocks = torch.from_numpy(numbers[: len(numbers) // BLOCK * BLOCK]).view(-1, BLOCK)
    windows = blocks.unfold(1, CONTEXT + 1, 1)
    of_test = torch.arange(len(blocks)) % 10 == 0

    def split(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return part[:, :CONTEXT], part[:, CONTEXT]

    width = 32

    def make_model() -> nn.Module:
        return nn.Sequential(
            nn.Embedding(len(alphabet), width),
            nn.Flatten(),
            nn.Linear(CONTEXT * width, 384),
            nn.ReLU(),
            nn.Linear(384, 128),
            nn.ReLU(),
            nn.Linear(128, len(alphabet)),
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


TASKS = {"fashion": fashion, "text": text}
