"""Compression that does not suit an optimizer with a second moment is warned of, once.

And a small transformer under AdamW: what it loses by each way of compressing.
"""

from __future__ import annotations

import math
import warnings
from pydoc_data.topics import topics
from typing import Any

import pytest
import torch
from torch import nn
from two_by_two import TWO_BY_TWO, make_model, sgd

import lightcc.torch as hvd
from lightcc.compression import CompressionWarning
from lightcc.testing import spawn_ranks
from lightcc.torch._adaptive import is_adaptive

pytestmark = pytest.mark.multiproc


def what_is_said(
    compression: str, optimizer: str, times: int = 1, ignored: bool = False
) -> list[str]:
    """Makes optimizers and returns their warnings."""
    hvd.init()
    ways = {"topk": hvd.Compression.topk(0.01), "whole": hvd.Compression.topk(1.0)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore" if ignored else "always", CompressionWarning)
        for i in range(times):
            model = make_model()
            named = [(f"{i}.{name}", p) for name, p in model.named_parameters()]
            make = getattr(torch.optim, optimizer)
            inner = sgd(model) if optimizer == "SGD" else make(model.parameters(), lr=1e-3)
            way = ways.get(compression) or getattr(hvd.Compression, compression)
            hvd.DistributedOptimizer(inner, named, compression=way)
    hvd.barrier()
    hvd.shutdown()
    return [str(w.message) for w in caught if w.category is CompressionWarning]


def said_in_turn(calls: list[tuple[Any, ...]]) -> list[list[str]]:
    return [what_is_said(*call) for call in calls]


ASKS = {"LIGHT_TOPK_ALLREDUCE": "1"}


@pytest.mark.parametrize(
    ("calls", "warned", "env"),
    [
        (
            [
                ("topk", "AdamW", 2),
                ("topk", "RMSprop", 2),
                ("topk", "SGD"),
                ("whole", "AdamW"),
                ("none", "AdamW"),
                ("topk", "AdamW", 1, True),  # The warning is ignored.
            ],
            2,
            {},
        ),
        ([("fp16", "Adagrad", 2), ("int4", "AdamW")], 1, ASKS),
        ([("none", "AdamW")], 0, {**ASKS, "LIGHT_QUANTIZE_ALLREDUCE": "int8"}),
        ([("topk", "AdamW")], 0, {"LIGHT_TOPK_THRESHOLD": "1G"}),
        ([("topk", "AdamW")], 0, {"LIGHT_2D_ALLREDUCE": "0", "LIGHT_INTRA_SIZE": "4"}),
    ],
)
def test_compression_under_a_second_moment_is_warned_of_once_on_the_first_rank(
    calls: list[tuple[Any, ...]], warned: int, env: dict[str, str]
) -> None:
    first, *others = spawn_ranks(said_in_turn, 4, calls, env={**TWO_BY_TWO, **env})
    for (_, optimizer, *_), said in zip(calls[:warned], first, strict=False):
        assert len(said) == 1
        assert said[0].startswith(f"top-k compression under {optimizer} costs accuracy")
        assert "hvd.Compression.int4" in said[0]
    assert not any(first[warned:])
    assert not any(said for found in others for said in found)


def test_optimizers_with_a_second_moment_are_known() -> None:
    p = [nn.Parameter(torch.zeros(2, 2))]
    names = ["Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta"]
    for name in [*names, "Adafactor"]:
        if hasattr(torch.optim, name):  # Adafactor came with torch 2.5.
            assert is_adaptive(getattr(torch.optim, name)(p).param_groups), name
    for name in ("SGD", "ASGD"):
        assert not is_adaptive(getattr(torch.optim, name)(p, lr=0.1).param_groups), name


# -- What is lost ---------------------------------------------------------------------------------

WINDOW, WIDTH, STEPS = 32, 32, 250


class Transformer(nn.Module):
    """One layer that predicts each next character of a window."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, WIDTH)
        self.layer = nn.TransformerEncoderLayer(
            WIDTH, 2, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.output = nn.Linear(WIDTH, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(WINDOW))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(self.embedding(text), src_mask=self.mask, is_causal=True)
        logits: torch.Tensor = self.output(hidden)
        return logits.flatten(0, 1)


def bits_after_training(way: str) -> tuple[float, list[float]]:
    """Trains on Python's reference; returns bits per character at the end, and the weights."""
    hvd.init()
    torch.set_num_threads(1)
    text = "".join(topics[name] for name in sorted(topics))[:60000].encode("ascii", "ignore")
    numbers = torch.tensor([min(character, 127) for character in text])
    torch.manual_seed(3)
    model = Transformer(128)
    ways = {
        "dense": hvd.Compression.none,
        "topk": hvd.Compression.topk(0.01),
    }
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=5e-3),
        model.named_parameters(),
        compression=ways.get(way) or getattr(hvd.Compression, way),
    )
    samples = torch.Generator().manual_seed(hvd.rank())
    for _ in range(STEPS):
        starts = torch.randint(len(numbers) - WINDOW - 4096, (4,), generator=samples)
        rows = torch.stack([numbers[s : s + WINDOW + 1] for s in starts])
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows[:, :-1]), rows[:, 1:].flatten()).backward()
        optimizer.step()
    test = numbers[-4096:].unfold(0, WINDOW + 1, WINDOW)
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(test[:, :-1]), test[:, 1:].flatten())
    digest = [float(p.double().sum()) for p in model.parameters()]
    return loss.item() / math.log(2), digest


@pytest.mark.slow  # Four trainings of 250 steps on four ranks.
def test_int8_and_int4_learn_as_dense_under_adamw_and_topk_does_not() -> None:
    bits = {}
    for way in ("dense", "int8", "int4", "topk"):
        results = spawn_ranks(bits_after_training, 4, way, env=TWO_BY_TWO)
        assert all(result == results[0] for result in results), way
        bits[way] = results[0][0]
    assert abs(bits["int8"] / bits["dense"] - 1) < 0.02, bits
    assert abs(bits["int4"] / bits["dense"] - 1) < 0.02, bits
    assert bits["topk"] / bits["dense"] - 1 > 0.05, bits
