"""HOROVOD_AUTOTUNE on real ranks: what it tries, tells and leaves alone; and sums stay right."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import lightcc as hvd
from lightcc.testing import RankProcesses, spawn_ranks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.multiproc

RANKS = 4
MOST_STEPS = 400
COLUMNS = ["fusion_strategy", "tensor_fusion_threshold", "num_streams", "chunk_bytes", "score"]
#: Four ranks of one host as two times two, so that chunks matter.
TWO_LEVELS = {"LIGHT_2D_ALLREDUCE": "1", "LIGHT_INTRA_SIZE": "2"}


def train() -> tuple[list[Any], Any]:
    """Runs steps until autotune is done; returns all that stats() told, and the wrong sums."""
    hvd.init()
    reported: list[Any] = []
    wrong = 0
    for step in range(MOST_STEPS):
        arrays = [np.full(1000 * (i + 1), step + hvd.rank(), np.float32) for i in range(6)]
        handles = [
            hvd.allreduce_async_(array, name=f"g{i}", op=hvd.Sum) for i, array in enumerate(arrays)
        ]
        for handle in handles:
            hvd.synchronize(handle)
        total = sum(step + rank for rank in range(hvd.size()))
        wrong += sum(not np.array_equal(array, np.full_like(array, total)) for array in arrays)
        # All ranks see the last step's announcements; a barrier is announced after them.
        hvd.barrier()
        if not reported or hvd.stats()["autotune"] != reported[-1]:
            reported.append(hvd.stats()["autotune"])
        if reported[-1] is not None and reported[-1]["final"]:
            break
    hvd.shutdown()
    return reported, wrong


def run(log: Path, **env: str) -> tuple[list[dict[str, str]], list[Any]]:
    """Returns the log's lines, and what rank 0 told."""
    autotune = {
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": str(log),
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "1",
    }
    results = spawn_ranks(train, RANKS, env=autotune | env, timeout_s=110)
    assert [wrong for _, wrong in results] == [0] * RANKS
    final = results[0][0][-1]
    assert final["final"]
    assert [reported[-1] for reported, _ in results] == [final] * RANKS
    with log.open() as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == COLUMNS
    assert all(float(line["score"]) > 0 for line in lines)
    winner = lines[-1]
    assert winner in lines[:-1]
    assert float(winner["score"]) == max(float(line["score"]) for line in lines)
    assert {name: str(final[name]) for name in COLUMNS[:-1]} == {
        name: winner[name] for name in COLUMNS[:-1]
    }
    return lines[:-1], results[0][0]


def test_every_dimension_is_tried_and_the_fastest_setting_stays(tmp_path: Path) -> None:
    lines, _ = run(tmp_path / "log.csv", LIGHT_NUM_STREAMS="2", **TWO_LEVELS)
    assert len(lines) == 1 + 6 + 1 + 3
    assert lines[0] == lines[0] | {
        "fusion_strategy": "auto_fusion",
        "tensor_fusion_threshold": str(64 << 20),
        "num_streams": "2",
        "chunk_bytes": "0",
    }
    assert {line["fusion_strategy"] for line in lines} == {"auto_fusion", "none", "horovod"}
    assert {line["num_streams"] for line in lines} == {"1", "2"}
    assert {line["chunk_bytes"] for line in lines} == {"0", "262144", "1048576", "4194304"}


def test_what_is_set_is_left_alone(tmp_path: Path) -> None:
    given = {"LIGHT_FUSION_STRATEGY": "none", "LIGHT_2D_CHUNK": "64K"}
    lines, _ = run(tmp_path / "log.csv", **given, **TWO_LEVELS)
    assert len(lines) == 1
    assert lines[0] == lines[0] | {"fusion_strategy": "none", "chunk_bytes": "65536"}


def test_the_number_of_settings_is_bounded(tmp_path: Path) -> None:
    lines, reported = run(tmp_path / "log.csv", HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES="3")
    assert [line["tensor_fusion_threshold"] for line in lines] == ["67108864", "1048576", "4194304"]
    assert reported[0] is None


def test_a_log_that_cannot_be_written_does_not_stop_the_job(tmp_path: Path) -> None:
    env = {
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": str(tmp_path / "nowhere" / "log.csv"),
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "0",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "1",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "1",
    }
    with RankProcesses(train, 2, env=env) as processes:
        results = processes.wait(60)
    processes.check(results)
    assert 'nowhere/log.csv": the file cannot be written' in results[0].output
    for result in results:
        assert result.value is not None
        reported, wrong = result.value
        assert wrong == 0
        assert reported[-1]["final"]
