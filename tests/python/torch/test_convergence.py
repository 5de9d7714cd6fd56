"""Top-k compression converges because of error feedback: with it as dense training, without not.

The product has no switch that turns error feedback off. These tests do without it by making it
forget: by names that were never used before, or by a scale at which nothing survives.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from two_by_two import TWO_BY_TWO

import lightcc as numpy_hvd
import lightcc.torch as hvd
from lightcc.testing import spawn_ranks

pytestmark = pytest.mark.multiproc

SMALL = {"LIGHT_TOPK_THRESHOLD": "0"}


# -- Three workers that diverge -------------------------------------------------------------------

#: Beznosikov et al., "On Biased Compression for Distributed Learning" (2020), example 1: worker i
#: has f_i(x) = <a_i, x>^2 + |x|^2 / 4. Their mean is strongly convex with its minimum at 0.
WORKERS = np.array([[-3.0, 2.0, 2.0], [2.0, -3.0, 2.0], [2.0, 2.0, -3.0]])
#: On the diagonal the largest element of each worker's gradient is the one that points away from
#: the minimum: t (-5.5, 4.5, 4.5) for the first. Their mean is -11/6 t in each coordinate.
GROWTH = 11 / 6


def descend(steps: int, learning_rate: float, error_feedback: bool) -> list[list[float]]:
    """Returns x after each step of gradient descent with Top-1, which is as long as it is wide."""
    numpy_hvd.init()
    mine = WORKERS[numpy_hvd.rank()]
    top_1 = numpy_hvd.Compression.topk(1 / 3, exact=True)
    x = np.ones(3)
    path = []
    for step in range(steps):
        gradient = 2 * (mine @ x) * mine + x / 2
        name = "x" if error_feedback else f"x{step}"
        x = x - learning_rate * numpy_hvd.allreduce(
            gradient, op=numpy_hvd.Average, name=name, compression=top_1
        )
        path.append(x.tolist())
    assert numpy_hvd.stats()["compressed_tensors"] == steps
    return path


def run_descent(*arguments: object) -> list[list[list[float]]]:
    return spawn_ranks(descend, 3, *arguments, env=SMALL, hosts=[0, 1, 2], timeout_s=110)


def test_without_error_feedback_three_workers_diverge_as_predicted() -> None:
    rate, steps = 0.02, 60
    paths = run_descent(steps, rate, False)
    assert paths[0] == paths[1] == paths[2]
    predicted = (1 + GROWTH * rate) ** np.arange(1, steps + 1)
    np.testing.assert_allclose(paths[0], np.tile(predicted[:, None], 3), rtol=1e-12)
    assert predicted[-1] > 8


def test_with_error_feedback_the_same_three_workers_converge() -> None:
    paths = run_descent(600, 0.02, True)
    assert paths[0] == paths[1] == paths[2]
    assert np.abs(paths[0][-1]).max() < 1e-4


# -- Hosts that disagree loudly about what does not matter ----------------------------------------

FEATURES, SAMPLES, STEPS = 200, 256, 250
#: Known to be misleading: on one host they are the label, on the other one its opposite.
LOUD = slice(0, FEATURES, 25)
RATIO = 0.02


class Learnt(NamedTuple):
    accuracy: float
    weights: str  # Their digest.
    compressed_tensors: int


def samples(seed: int, count: int, loud: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Two clouds whose centres differ a little in every feature; the loud ones are `loud` * label.

    Without noise in the loud ones, what hosts say about them cancels but for their other samples.
    """
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, count) * 2.0 - 1
    signs = np.where(np.arange(FEATURES) % 2 == 0, 1.0, -1.0)
    inputs = random.normal(size=(count, FEATURES)) + 0.2 * labels[:, None] * signs
    inputs[:, LOUD] = loud * labels[:, None]
    return torch.tensor(inputs).float(), torch.tensor(labels > 0).float()


def learn(compression: Any, name: str, error_feedback: bool = True) -> Learnt:
    host = hvd.rank() // 2
    inputs, labels = samples(1 + hvd.rank(), SAMPLES, 3.0 if host == 0 else -3.0)
    test_inputs, test_labels = samples(100, 2000, 0.0)
    torch.manual_seed(0)
    model = nn.Linear(FEATURES, 1)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    named = [(f"{name}.{key}", p) for key, p in model.named_parameters()]
    optimizer = hvd.DistributedOptimizer(optimizer, named, compression)
    optimizer.set_gradient_scale(1.0)
    before = hvd.stats()["compressed_tensors"]
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = model(inputs).squeeze(1)
        nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
        optimizer.step()
        if not error_feedback:
            # The residual becomes 0, since 1e-300 is no float32; the threshold survives.
            optimizer.set_gradient_scale(1e-300)
            optimizer.set_gradient_scale(1.0)
    with torch.no_grad():
        right = (model(test_inputs).squeeze(1) > 0) == (test_labels > 0)
    assert all(torch.isfinite(p).all() for p in model.parameters())
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return Learnt(
        right.float().mean().item(),
        hashlib.sha256(weights).hexdigest(),
        hvd.stats()["compressed_tensors"] - before,
    )


def learn_in_three_ways() -> dict[str, Learnt]:
    hvd.init()
    torch.set_num_threads(1)
    topk = hvd.Compression.topk(RATIO)
    return {
        "dense": learn(hvd.Compression.none, "dense"),
        "feedback": learn(topk, "feedback"),
        "no feedback": learn(topk, "no feedback", error_feedback=False),
    }


def test_error_feedback_learns_what_dense_training_does_and_without_it_nothing_is_learnt() -> None:
    ranks = spawn_ranks(learn_in_three_ways, 4, env=TWO_BY_TWO, timeout_s=110)
    assert all(rank == ranks[0] for rank in ranks)  # Every bit of the weights, too.
    dense, feedback, without = (ranks[0][key] for key in ("dense", "feedback", "no feedback"))
    assert dense.compressed_tensors == 0
    assert feedback.compressed_tensors == without.compressed_tensors == 2 * STEPS
    assert dense.accuracy > 0.97
    assert feedback.accuracy > dense.accuracy - 0.01
    # All of each shard's 2% are loud elements, in every step.
    assert without.accuracy < 0.6
