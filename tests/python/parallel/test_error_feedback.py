"""Top-k compression converges because of error feedback: with it as dense training, without not.

The product has no switch that turns error feedback off. These tests do without it by names that
were never used before.
"""

from __future__ import annotations

import numpy as np
import pytest

import lightcc as hvd
from lightcc.testing import spawn_ranks

pytestmark = pytest.mark.multiproc

SMALL = {"LIGHT_TOPK_THRESHOLD": "0"}


#: Beznosikov et al., "On Biased Compression for Distributed Learning" (2020), example 1: worker i
#: has f_i(x) = <a_i, x>^2 + |x|^2 / 4. Their mean is strongly convex with its minimum at 0.
WORKERS = np.array([[-3.0, 2.0, 2.0], [2.0, -3.0, 2.0], [2.0, 2.0, -3.0]])
#: On the diagonal the largest element of each worker's gradient is the one that points away from
#: the minimum: t (-5.5, 4.5, 4.5) for the first. Their mean is -11/6 t in each coordinate.
GROWTH = 11 / 6


RATE, STEPS = 0.04, 300


def descend(steps: int, error_feedback: bool) -> list[list[float]]:
    """Returns x after each step of gradient descent with Top-1, which is as long as it is wide."""
    hvd.init()
    mine = WORKERS[hvd.rank()]
    top_1 = hvd.Compression.topk(1 / 3, exact=True)
    x = np.ones(3)
    path = []
    for step in range(steps):
        gradient = 2 * (mine @ x) * mine + x / 2
        name = "x" if error_feedback else f"x{step}"
        x = x - RATE * hvd.allreduce(gradient, op=hvd.Average, name=name, compression=top_1)
        path.append(x.tolist())
    assert hvd.stats()["compressed_tensors"] == steps
    hvd.barrier()
    hvd.shutdown()
    return path


def descend_without_and_with() -> list[list[list[float]]]:
    return [descend(STEPS // 10, error_feedback=False), descend(STEPS, error_feedback=True)]


def test_three_workers_diverge_as_predicted_without_error_feedback_and_converge_with_it() -> None:
    paths = spawn_ranks(descend_without_and_with, 3, env=SMALL, hosts=[0, 1, 2], timeout_s=110)
    assert paths[0] == paths[1] == paths[2]
    without, feedback = paths[0]
    predicted = (1 + GROWTH * RATE) ** np.arange(1, len(without) + 1)
    np.testing.assert_allclose(without, np.tile(predicted[:, None], 3), rtol=1e-12)
    assert predicted[-1] > 8
    assert np.abs(feedback[-1]).max() < 1e-4
