"""The synthetic benchmarks run on two ranks with a small model, and print what Horovod's print."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

import examples_played
import pytest
import tensorflow as tf  # noqa: F401  for the warm process that has imported it.
from examples_played import EXAMPLES
from processes import run_to_end

from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    import subprocess

pytestmark = pytest.mark.multiproc

TINY = [
    *("--model=MobileNet", "--image-size=32", "--batch-size=2"),
    *("--num-warmup-batches=1", "--num-batches-per-iter=1", "--num-iters=2"),
]


def play(*words: str) -> tuple[int, str]:
    return examples_played.play(*words)


def run(command: list[str], ranks: int = 2, **variables: str) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "lightcc.runner", "-np", str(ranks), "--no-prefix"]
    return run_to_end(
        [*launcher, sys.executable, *command], timeout=110, env={**os.environ, **variables}
    )


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("tensorflow2_synthetic_benchmark.py", ["--topk=0.1"]),
        ("tensorflow_synthetic_benchmark.py", ["--fp16-allreduce"]),
        pytest.param("tensorflow_synthetic_benchmark.py", ["--eager"], marks=pytest.mark.slow),
    ],
)
def test_benchmark_prints_what_horovods_prints(script: str, arguments: list[str]) -> None:
    (code, said), _ = spawn_ranks(play, 2, script, *TINY, *arguments)
    assert code == 0, said
    number = r"\d+\.\d"
    for line in (
        "Model: MobileNet",
        "Batch size: 2",
        "Number of CPUs: 2",
        "Running warmup...",
        "Running benchmark...",
        f"Iter #1: {number} img/sec per CPU",
        rf"Img/sec per CPU: {number} \+-{number}",
        rf"Total img/sec on 2 CPU\(s\): {number} \+-{number}",
    ):
        assert re.search(f"^{line}$", said, re.MULTILINE), (line, said)


def test_an_unknown_model_is_refused() -> None:
    result = run([str(EXAMPLES / "tensorflow2_synthetic_benchmark.py"), "--model=VGG61"], ranks=1)
    assert result.returncode == 2
    assert "keras.applications has no VGG61" in result.stderr


def test_scripts_of_tensorflow_1_get_its_names() -> None:
    program = """
import tensorflow as tf
import horovod.tensorflow as hvd
from tensorflow.keras import layers
hvd.init()
optimizer = hvd.DistributedOptimizer(tf.train.GradientDescentOptimizer(1.0))
weight = tf.get_variable("weight", initializer=3.0 + hvd.rank())
train = optimizer.minimize(weight * (1.0 + hvd.rank()))
hook = hvd.BroadcastGlobalVariablesHook(1)
with tf.train.MonitoredTrainingSession(hooks=[hook], config=tf.ConfigProto()) as session:
    before = session.run(weight)
    session.run(train)
    print("weight", before, session.run(weight), tf.executing_eagerly(), layers.Dense.__name__)
"""
    result = run(["-c", program], LIGHTCC_HOROVOD="1", LIGHTCC_TENSORFLOW1="1")
    assert result.returncode == 0, result.stdout + result.stderr
    assert (
        re.findall("^weight.*$", result.stdout, re.MULTILINE) == ["weight 4.0 2.5 False Dense"] * 2
    )
