"""The synthetic benchmarks run on two ranks with a small model, and print what Horovod's print.

Each takes over 10 s: two ranks import TensorFlow, make a model and trace it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
pytestmark = pytest.mark.multiproc

TINY = [
    *("--model=MobileNetV2", "--image-size=32", "--batch-size=2"),
    *("--num-warmup-batches=1", "--num-batches-per-iter=1", "--num-iters=2"),
]


def run(command: list[str], ranks: int = 2, **variables: str) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "lightcc.runner", "-np", str(ranks), "--no-prefix"]
    return subprocess.run(
        [*launcher, sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **variables},
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
    result = run([str(EXAMPLES / script), *TINY, *arguments])
    assert result.returncode == 0, result.stdout + result.stderr
    number = r"\d+\.\d"
    for line in (
        "Model: MobileNetV2",
        "Batch size: 2",
        "Number of CPUs: 2",
        "Running warmup...",
        "Running benchmark...",
        f"Iter #1: {number} img/sec per CPU",
        rf"Img/sec per CPU: {number} \+-{number}",
        rf"Total img/sec on 2 CPU\(s\): {number} \+-{number}",
    ):
        assert re.search(f"^{line}$", result.stdout, re.MULTILINE), (line, result.stdout)


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
