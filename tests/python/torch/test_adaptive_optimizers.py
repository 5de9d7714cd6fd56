"""Compression that does not suit an optimizer with a second moment is warned of, once."""

from __future__ import annotations

import warnings
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
