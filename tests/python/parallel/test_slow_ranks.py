"""Ranks that keep the others waiting in every step: found, named, and nobody else blamed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LIGHTCCRUN = str(Path(sys.executable).parent / "lightccrun")
PATIENCE_S = 120

#: Rank 0 writes what it has seen when it has seen a slow rank, or after all steps.
TRAINING = """
import json, sys, time
import numpy as np
import lightcc as hvd
from lightcc.top.export import as_prometheus
from lightcc.top.reading import read_ranks

slow, steps, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
hvd.init()
more, seen, step = 1.0, [], 0
while more > 0:
    step += 1
    sum(range(200_000))  # As long as a machine gives the ranks: about 5 ms, if they are alone.
    if hvd.rank() == slow:
        time.sleep(0.2)
    handles = [hvd.allreduce_async(np.ones(4), name=f"gradient.{i}") for i in range(8)]
    for handle in handles:
        hvd.synchronize(handle)
    if not seen and hvd.stats().slow_ranks:
        seen, steps = hvd.stats().slow_ranks, step + 20  # The log says so within a second.
    waits = np.array([step < steps], np.float32)
    more = hvd.allreduce(waits, op=hvd.Min, name="more")[0]
if hvd.rank() == 0:
    metrics = [line for line in as_prometheus(read_ranks()).splitlines() if "slow" in line]
    about = {"seen": seen, "step": step, "factor": hvd.stats().slow_factor, "metrics": metrics}
    open(path, "w").write(json.dumps(about))
hvd.barrier()
"""


def train(folder: Path, slow: int, steps: int, ranks: int) -> tuple[Any, str]:
    script, result = folder / "train.py", folder / "result"
    script.write_text(TRAINING)
    argv = [LIGHTCCRUN, "-np", str(ranks), sys.executable, str(script)]
    argv += [str(slow), str(steps), str(result)]
    job = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert job.returncode == 0, job.stderr
    return json.loads(result.read_text()), job.stderr


@pytest.mark.multiproc
@pytest.mark.parametrize("slow", [0, 2])
def test_a_rank_that_sleeps_in_each_step_is_found_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: int
) -> None:
    monkeypatch.setenv("LIGHT_SLOW_TIME", "1.5")
    about, log = train(tmp_path, slow, 300, 3)
    (found,) = about["seen"]
    assert found["rank"] == slow
    assert found["factor"] > 2
    assert about["factor"] > 2
    assert log.count(" is slow: the others wait for it in every step") == 1
    assert f"rank {slow} on the host of ranks [0-2] is slow" in log
    assert any(f'rank="{slow}"' in it for it in about["metrics"] if "slow_rank_factor{" in it)


@pytest.mark.multiproc
def test_equal_ranks_on_a_busy_machine_are_not_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHT_SLOW_TIME", "2")
    about, log = train(tmp_path, -1, 150, 6)
    assert about["seen"] == []
    assert about["step"] == 150
    assert "is slow" not in log


@pytest.mark.multiproc
def test_a_time_of_0_looks_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHT_SLOW_TIME", "0")
    about, log = train(tmp_path, 1, 40, 2)
    assert about["seen"] == []
    assert "is slow" not in log
