"""LIGHT_TOPK_ALLREDUCE=1 compresses as suits the optimizer, and says how, on 2 x 2 ranks."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from two_by_two import TWO_BY_TWO, collect_log, make_model, train, weights

import lightcc.torch as hvd
from lightcc._adapter import compression_tuner
from lightcc.compression import CompressionWarning
from lightcc.testing import spawn_ranks

pytestmark = pytest.mark.multiproc

SWITCHED_OFF = {"LIGHT_TOPK_OPTIMIZER": "0"}
ASKS = {**TWO_BY_TWO, "LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_TOPK_RATIO": "0.05"}


class Lookahead(torch.optim.SGD):
    """An optimizer of whose step lightcc knows nothing."""


def make_inner(name: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    makers: dict[str, Any] = {
        "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        "Lookahead": lambda p: Lookahead(p, lr=0.05, momentum=0.9),
    }
    make = makers.get(name) or getattr(torch.optim, name)
    made: torch.optim.Optimizer = make(model.parameters())
    return made


def train_by_flag(name: str, compression: Any) -> tuple[list[float], list[str], list[str]]:
    """Returns weights, what was logged, and what was warned of."""
    hvd.init()
    logged = collect_log("LIGHT_TOPK_ALLREDUCE:")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CompressionWarning)
        for i in range(2):  # What is said, is said once.
            model = make_model()
            named = [(f"{i}.{part}", p) for part, p in model.named_parameters()]
            hvd.DistributedOptimizer(make_inner(name, model), named, compression=compression)
        hvd.shutdown()
        hvd.init()
        model = make_model()
        optimizer = hvd.DistributedOptimizer(
            make_inner(name, model), model.named_parameters(), compression=compression
        )
        train(model, optimizer, range(8))
        hvd.barrier()
        hvd.shutdown()
    warned = [str(w.message) for w in caught if w.category is CompressionWarning]
    return weights(model).tolist(), list(logged), warned


Training = tuple[list[float], list[str], list[str]]


def train_each(calls: list[tuple[str, Any]]) -> list[Training]:
    return [train_by_flag(name, compression) for name, compression in calls]


def trained(calls: list[tuple[str, Any]], **env: str) -> tuple[list[Training], list[Training]]:
    """Returns what rank 0 and rank 1 have found; all have the same weights."""
    first, *others = spawn_ranks(train_each, 4, calls, env={**TWO_BY_TWO, **env})
    assert all([call[0] for call in found] == [call[0] for call in first] for found in others)
    return first, others[0]


TOPK = hvd.Compression.topk
INT4_FIRST = "int4 for 2100 steps, and then by top-k whose share falls to 0.05 in 1000"


NONE = hvd.Compression.none


def test_the_flag_means_what_suits_the_optimizer() -> None:
    int4 = hvd.Compression.int4
    given = [("AdamW", int4), ("RMSprop", int4), ("SGD", int4)]
    expected, _ = trained([*given, ("SGD", TOPK(0.05)), ("AdamW", TOPK(0.05))])
    by_flag = [(name, NONE) for name, _ in given]
    first, second = trained([*by_flag, ("Lookahead", NONE), ("SGD", TOPK(0.05))], **ASKS)
    off, off_second = trained([("SGD", NONE), ("AdamW", NONE)], **ASKS, **SWITCHED_OFF)
    *known, unknown, said_by_program = first
    says = [
        "gradients of AdamW travel by int4",
        "gradients of RMSprop travel by int4",
        f"gradients of SGD travel by {INT4_FIRST} (",
        *("top-k at 0.05 (", "top-k at 0.05 ("),
    ]
    for (weights_of, logged, warned), (same, _, _), text in zip(
        [*known, *off], expected, says, strict=True
    ):
        assert weights_of == same
        assert len(logged) == 2  # One line for each of two worlds.
        assert all(text in line for line in logged), logged
        assert warned == []
    assert all(call[1:] == ([], []) for call in [*second, *off_second])

    _, logged, warned = unknown
    assert f"Lookahead travel by {INT4_FIRST} (" in logged[0]
    assert len(warned) == 2
    assert "Lookahead is no optimizer that lightcc knows" in warned[0]
    assert said_by_program[1:] == ([], [])


def ways_by_step() -> list[tuple[str, int]]:
    """Returns way and bytes of each step under SGD."""
    hvd.init()
    compression_tuner.INT4_STEPS, compression_tuner.TOPK_WARMUP_STEPS = 5, 20
    model = make_model()
    optimizer: Any = hvd.DistributedOptimizer(make_inner("SGD", model), model.named_parameters())
    found: list[tuple[str, int]] = []
    for step in range(30):
        (way,) = set(optimizer.compression_choices().values())
        sent = hvd.stats()["compressed_sent_bytes"]
        train(model, optimizer, range(step, step + 1))
        found.append((way, hvd.stats()["compressed_sent_bytes"] - sent))
    mine = weights(model)
    assert torch.equal(hvd.broadcast(mine, 0), mine)
    return found


def test_under_sgd_int4_goes_first_and_then_the_share_of_top_k_falls() -> None:
    for found in spawn_ranks(ways_by_step, 4, env=ASKS):
        assert [way for way, _ in found] == ["int4"] * 5 + ["top-k at 0.05"] * 25
        sent = [num_bytes for _, num_bytes in found]
        assert len(set(sent[:5])) == 1
        assert sent[5] > sent[15] > max(sent[25:])


@pytest.mark.parametrize(
    "env", [{"LIGHT_QUANTIZE_ALLREDUCE": "int8"}, {"LIGHT_TOPK_THRESHOLD": "1G"}], ids=str
)
def test_quantisation_counts_and_so_does_the_threshold(env: dict[str, str]) -> None:
    assert spawn_ranks(train_by_flag, 4, "SGD", NONE, env={**ASKS, **env})[0][1:] == ([], [])
