"""DistributedOptimizer with PowerSGD, on 2 x 2 ranks: what is learnt, and what is saved."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn
from two_by_two import TWO_BY_TWO, make_model, sgd, train, weights

import lightcc.torch as hvd
from lightcc.compression import CompressionWarning
from lightcc.testing import spawn_ranks
from lightcc.torch import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.multiproc

#: Of both matrices of the small model.
POWERSGD = hvd.Compression.powersgd(1, warmup_steps=0)
MATRICES = 2


def distributed(model: nn.Module, compression: Any = POWERSGD) -> Any:
    return hvd.DistributedOptimizer(sgd(model), model.named_parameters(), compression=compression)


def run(program: Callable[..., Any], *arguments: Any) -> list[Any]:
    return spawn_ranks(program, 4, *arguments, env=TWO_BY_TWO)


# -- Learning -------------------------------------------------------------------------------------

SHAPE = (20, 50)
STEPS, LOUD = 500, 20.0


def learn(compression: Any, name: str, error_feedback: bool = True) -> tuple[float, list[float]]:
    """Returns how far weights are from what they should be, and the weights.

    Gradients point there, but two directions are much louder: they say one thing in one step, and
    its opposite in the next. Two vectors are full of them.
    """
    random = np.random.default_rng(1)
    right = torch.tensor(random.normal(size=SHAPE)).float()
    left, other = (np.linalg.qr(random.normal(size=(size, 2)))[0] for size in SHAPE)
    loud = torch.tensor(LOUD * left @ other.T).float()
    # What ranks differ in cancels out.
    own = torch.tensor(np.random.default_rng(2 + hvd.rank() // 2).normal(size=SHAPE)).float()
    own = own * (1.0 if hvd.rank() % 2 else -1.0)
    weight = nn.Parameter(torch.zeros(SHAPE))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([weight], lr=0.02), [(name, weight)], compression
    )
    optimizer.set_gradient_scale(1.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        distance = ((weight - right) ** 2).sum() / 2
        (
            distance + ((loud if step % 2 else -loud) * weight).sum() + (own * weight).sum()
        ).backward()
        optimizer.step()
        if not error_feedback:
            # What is kept back becomes 0, since 1e-300 is no float32; the basis survives.
            optimizer.set_gradient_scale(1e-300)
            optimizer.set_gradient_scale(1.0)
    error = (weight.detach() - right).norm() / right.norm()
    return error.item(), weight.detach().flatten().tolist()


def learn_in_three_ways() -> dict[str, tuple[float, list[float]]]:
    hvd.init()
    torch.set_num_threads(1)
    compression = hvd.Compression.powersgd(2, warmup_steps=2)
    return {
        "dense": learn(hvd.Compression.none, "dense"),
        "feedback": learn(compression, "feedback"),
        "no feedback": learn(compression, "no feedback", error_feedback=False),
    }


def test_error_feedback_learns_what_dense_training_does_and_without_it_little_is_learnt() -> None:
    ranks = run(learn_in_three_ways)
    assert all(rank == ranks[0] for rank in ranks)  # Every bit of the weights, too.
    errors = {way: error for way, (error, _) in ranks[0].items()}
    assert errors["dense"] < 0.05, errors
    assert errors["feedback"] < 0.05, errors
    assert errors["no feedback"] > 0.7, errors


# -- Saving and loading ---------------------------------------------------------------------------


def resume(folder: str, warmup_steps: int) -> list[float]:
    """Trains 8 steps; then 4, saves, forgets everything, loads, and 4 more."""
    compression = hvd.Compression.powersgd(1, warmup_steps)
    hvd.init()
    model = make_model()
    train(model, distributed(model, compression), range(8))
    expected = weights(model)
    assert hvd.stats()["compressed_tensors"] == 8 * MATRICES
    hvd.shutdown()

    hvd.init()
    model = make_model()
    optimizer = distributed(model, compression)
    train(model, optimizer, range(4))
    hvd.save_compression_state(folder)
    by_optimizer = pickle.dumps(optimizer.compression_state_dict())
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    hvd.shutdown()

    for source in ("folder", "optimizer"):
        hvd.init()
        model = make_model()
        optimizer = distributed(model, compression)
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(copy.deepcopy(saved[1]))
        if source == "folder":
            assert hvd.load_compression_state(folder) == MATRICES
        else:
            optimizer.load_compression_state_dict(pickle.loads(by_optimizer))
        train(model, optimizer, range(4, 8))
        assert torch.equal(weights(model), expected), source
        hvd.shutdown()
    return [float(value) for value in expected]


@pytest.mark.parametrize("warmup_steps", [0, 6])
def test_training_resumes_with_the_same_bits(tmp_path: Path, warmup_steps: int) -> None:
    results = run(resume, str(tmp_path), warmup_steps)
    assert all(result == results[0] for result in results)


def make_training() -> dict[str, Any]:
    model = make_model()
    return {"model": model, "optimizer": distributed(model)}


def save_a_checkpoint_and_go_on(folder: str) -> list[float]:
    hvd.init()
    training = make_training()
    train(**training, steps=range(3))
    checkpoint.save(folder, **training, epoch=3)
    train(**training, steps=range(3, 6))
    return weights(training["model"]).tolist()


def load_a_checkpoint_and_go_on(folder: str) -> tuple[list[float], int]:
    hvd.init()
    training = make_training()
    assert checkpoint.load(folder, **training) == {"epoch": 3}
    kept = training["optimizer"].compression_state_dict()["tensors"]
    train(**training, steps=range(3, 6))
    return weights(training["model"]).tolist(), len(kept)


def test_a_checkpoint_has_what_is_kept_back(tmp_path: Path) -> None:
    first = run(save_a_checkpoint_and_go_on, str(tmp_path))
    then = run(load_a_checkpoint_and_go_on, str(tmp_path))
    assert [one[0] for one in then] == first
    assert all(one[1] == MATRICES for one in then)


def what_is_kept_back(folder: str, step: str) -> Any:
    """Sends a part and saves; or loads, and sends zeros until nothing is left."""
    hvd.init()
    if step == "save":
        x = torch.arange(1.0, 1001.0).reshape(SHAPE).sin() * (hvd.rank() + 1)
        how: dict[str, Any] = {"name": "x", "op": hvd.Sum, "compression": POWERSGD}
        sent = hvd.allreduce(x, **how)
        hvd.save_compression_state(folder)
        return sent.tolist()
    loaded = hvd.load_compression_state(folder)
    all_vectors = hvd.Compression.powersgd(20, 0, min_compression_rate=0.1)
    rest = hvd.allreduce(torch.zeros(SHAPE), name="x", op=hvd.Sum, compression=all_vectors)
    return loaded, rest.tolist()


@pytest.mark.parametrize("after", [[0, 0, 0, 1, 1, 1], [0, 1]], ids=["more", "fewer"])
def test_another_number_of_ranks_per_host_divides_what_was_kept_back_anew(
    tmp_path: Path, after: list[int]
) -> None:
    env = {"LIGHT_TOPK_THRESHOLD": "0"}
    call = (what_is_kept_back, 4, str(tmp_path), "save")
    sent = torch.tensor(spawn_ranks(*call, env=env, hosts=[0, 0, 1, 1])[0])
    call = (what_is_kept_back, len(after), str(tmp_path), "load")
    put_in = torch.arange(1.0, 1001.0).reshape(SHAPE).sin() * 10
    assert (sent - put_in).abs().max() > 1.0
    for loaded, rest in spawn_ranks(*call, env=env, hosts=after):
        assert loaded == 1
        torch.testing.assert_close(sent + torch.tensor(rest), put_in, atol=1e-4, rtol=0)


# -- Adam -----------------------------------------------------------------------------------------


def warn_under_adam() -> list[str]:
    hvd.init()
    said = []
    for i, inner in enumerate((torch.optim.AdamW, torch.optim.SGD)):
        model = make_model()
        named = [(f"{i}.{name}", p) for name, p in model.named_parameters()]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CompressionWarning)
            hvd.DistributedOptimizer(inner(model.parameters(), lr=0.1), named, POWERSGD)
        said += [str(w.message) for w in caught if w.category is CompressionWarning]
    return said


def test_it_is_warned_of_under_a_second_moment() -> None:
    results = run(warn_under_adam)
    assert len(results[0]) == 1
    assert results[0][0].startswith("PowerSGD compression under AdamW costs accuracy")
    assert not any(results[1:])
