"""What compression keeps back is told by tensor, and a warning names tensors where it is much."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from two_by_two import TWO_BY_TWO, make_model, train

import lightcc.torch as hvd
from lightcc.compression import CompressionWarning
from lightcc.testing import spawn_ranks

pytestmark = pytest.mark.multiproc

ELEMENTS = 256  # Two shards of 128.


def input_of(rank: int, step: int) -> Any:
    return np.random.default_rng([rank, step]).standard_normal(ELEMENTS)


def energies_are_those_of_the_shards() -> None:
    hvd.init()
    compression = hvd.Compression.topk(0.125, exact=True)
    block, member = divmod(hvd.rank(), 2)
    shard = slice(128 * member, 128 * member + 128)
    kept = np.zeros(128)
    inputs, remainders = [], []
    for step in range(3):
        hvd.allreduce(
            torch.from_numpy(input_of(hvd.rank(), step)),
            name="a",
            op=hvd.Sum,
            compression=compression,
        )
        came = (input_of(2 * block, step) + input_of(2 * block + 1, step))[shard]
        kept = kept + came
        kept[np.argsort(-abs(kept))[:16]] = 0.0
        inputs.append((came**2).sum())
        remainders.append((kept**2).sum())
    report = hvd.stats()
    (tensor,) = report.compression
    assert (tensor.process_set, tensor.name, tensor.steps) == (0, "allreduce.a", 3)
    assert tensor.sent_bytes == report.compressed_sent_bytes > 0
    assert tensor.dense_bytes == report.compressed_dense_bytes == 3 * 128 * 8
    np.testing.assert_allclose(tensor.input_energy, np.mean(inputs))
    np.testing.assert_allclose(tensor.kept_energy, np.mean(remainders))
    ratio = (np.mean(remainders) / np.mean(inputs)) ** 0.5
    np.testing.assert_allclose(tensor.kept_ratio, ratio)
    assert report.scalars()["compression_kept_ratio"] == tensor.kept_ratio
    assert json.loads(json.dumps(report))["compression"][0]["steps"] == 3

    # A step that does not count is not in them.
    hvd.allreduce(torch.full((ELEMENTS,), torch.nan), name="b", compression=compression)
    (tensor,) = (t for t in hvd.stats().compression if t.name == "allreduce.b")
    assert (tensor.steps, tensor.input_energy, tensor.kept_ratio) == (0, 0.0, 0.0)


def test_energies_are_those_of_the_shards() -> None:
    spawn_ranks(energies_are_those_of_the_shards, 4, env=TWO_BY_TWO)


def guarded(name: str, steps: int) -> list[str]:
    """Trains by the flag; returns what was warned of."""
    hvd.init()
    torch.manual_seed(3)
    model = make_model()
    inner: Any = (
        torch.optim.AdamW(model.parameters(), lr=1e-3)
        if name == "AdamW"
        else torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    )
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CompressionWarning)
        train(model, optimizer, range(steps))
    hvd.barrier()
    hvd.shutdown()
    return [str(w.message) for w in caught if w.category is CompressionWarning]


def guarded_in_turn(steps: int) -> list[list[str]]:
    return [guarded(name, steps) for name in ("AdamW", "SGD")]


FLAG = {**TWO_BY_TWO, "LIGHT_TOPK_ALLREDUCE": "1"}


def test_the_flag_warns_once_by_name_where_much_is_kept_back() -> None:
    env = {**FLAG, "LIGHT_TOPK_OPTIMIZER": "0", "LIGHT_TOPK_RATIO": "0.001"}
    first, *others = spawn_ranks(guarded_in_turn, 4, 200, env=env)
    assert others == [[[], []]] * 3
    named = ("up to 0.5 times does little harm: ", "up to 8 times does little harm: 0.weight (")
    for told, text in zip(first, named, strict=True):
        assert len(told) == 1
        assert text in told[0]
        assert "0.weight" in told[0]
        assert " times)" in told[0]


def test_nothing_is_said_where_the_flag_does_little_harm() -> None:
    env = {**FLAG, "LIGHT_TOPK_RATIO": "0.05"}
    assert spawn_ranks(guarded_in_turn, 4, 100, env=env) == [[[], []]] * 4
