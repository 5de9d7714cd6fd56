"""A rank that keeps the others waiting in every step is found and named, and nobody else blamed."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import lightcc as hvd
from lightcc.testing import RankProcesses
from lightcc.top.export import as_prometheus
from lightcc.top.reading import read_ranks

pytestmark = pytest.mark.multiproc


def train(slow: int, steps: int) -> dict[str, Any]:
    """Trains until a slow rank has been seen, or all steps; returns what this rank has seen."""
    hvd.init()
    seen: list[Any] = []
    more, step = 1.0, 0
    while more > 0:
        step += 1
        if hvd.rank() == slow:
            time.sleep(0.1)
        handles = [hvd.allreduce_async(np.ones(4), name=f"gradient.{i}") for i in range(8)]
        for handle in handles:
            hvd.synchronize(handle)
        if not seen and hvd.stats().slow_ranks:
            seen, steps = hvd.stats().slow_ranks, step + 15  # The log says so within a second.
        waits = np.array([step < steps], np.float32)
        more = hvd.allreduce(waits, op=hvd.Min, name="more")[0]
    metrics = [line for line in as_prometheus(read_ranks()).splitlines() if "slow" in line]
    hvd.barrier()
    return {"seen": seen, "factor": hvd.stats().slow_factor, "metrics": metrics}


def test_a_rank_that_sleeps_in_each_step_is_found_and_named() -> None:
    with RankProcesses(train, 3, 2, 300, env={"LIGHT_SLOW_TIME": "0.5"}) as ranks:
        results = ranks.wait(60)
    ranks.check(results)
    about: Any = results[0].value
    (found,) = about["seen"]
    assert found["rank"] == 2
    assert found["factor"] > 2
    assert about["factor"] > 2
    log = "".join(result.output for result in results)
    assert log.count(" is slow: the others wait for it in every step") == 1
    assert "rank 2 on the host of ranks [0-2] is slow" in log
    assert any('rank="2"' in it for it in about["metrics"] if "slow_rank_factor{" in it)
