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
    """Of whose step lightcc knows nothing."""


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
    warned = [str(w.message) for w in caught if w.category is CompressionWarning]
    return weights(model).tolist(), logged, warned


TOPK = hvd.Compression.topk
INT4_FIRST = "int4 for 2100 steps, and then by top-k whose share falls to 0.05 in 1000"


@pytest.mark.parametrize(
    ("name", "means", "says", "env"),
    [
        ("AdamW", hvd.Compression.int4, "gradients of AdamW travel by int4", {}),
        ("RMSprop", hvd.Compression.int4, "gradients of RMSprop travel by int4", {}),
        ("SGD", hvd.Compression.int4, f"gradients of SGD travel by {INT4_FIRST} (", {}),
        ("SGD", TOPK(0.05), "top-k at 0.05 (", SWITCHED_OFF),
        ("AdamW", TOPK(0.05), "top-k at 0.05 (", SWITCHED_OFF),
    ],
)
def test_the_flag_means_what_suits_the_optimizer(
    name: str, means: Any, says: str, env: dict[str, str]
) -> None:
    env = {**ASKS, **env}
    by_flag = spawn_ranks(train_by_flag, 4, name, hvd.Compression.none, env=env)
    by_argument = spawn_ranks(train_by_flag, 4, name, means, env=TWO_BY_TWO)
    assert all(result[0] == by_argument[0][0] for result in by_flag)
    for _, logged, warned in by_flag[1:]:
        assert (logged, warned) == ([], [])
    _, logged, warned = by_flag[0]
    assert len(logged) == 2  # Of two worlds.
    assert all(says in text for text in logged), logged
    assert warned == []


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


def test_an_optimizer_that_is_not_known_is_warned_of() -> None:
    results = spawn_ranks(train_by_flag, 4, "Lookahead", hvd.Compression.none, env=ASKS)
    assert all(result[0] == results[0][0] for result in results)
    _, logged, warned = results[0]
    assert f"Lookahead travel by {INT4_FIRST} (" in logged[0]
    assert len(warned) == 2
    assert "Lookahead is no optimizer that lightcc knows" in warned[0]


def test_what_the_program_says_counts_and_so_does_quantisation() -> None:
    for compression, env in (
        (TOPK(0.05), ASKS),
        (hvd.Compression.none, {**ASKS, "LIGHT_QUANTIZE_ALLREDUCE": "int8"}),
        (hvd.Compression.none, {**ASKS, "LIGHT_TOPK_THRESHOLD": "1G"}),
    ):
        assert spawn_ranks(train_by_flag, 4, "SGD", compression, env=env)[0][1:] == ([], [])
