"""The examples for Keras run, learn, and say what they promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
TWO_BY_TWO = {
    "LIGHT_2D_ALLREDUCE": "1", "LIGHT_INTRA_SIZE": "2", "LIGHT_TOPK_THRESHOLD": "16K",
}  # fmt: skip
pytestmark = pytest.mark.multiproc


def run(
    ranks: int, script: str, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "lightcc.runner", "-np", str(ranks), "--no-prefix"]
    return subprocess.run(
        [*launcher, sys.executable, str(EXAMPLES / script), *arguments],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **variables},
    )


def test_digits_reach_their_accuracy_with_a_few_percent_of_the_gradients() -> None:
    arguments = ("--epochs", "5", "--topk", "0.05", "--accuracy", "0.8")
    result = run(2, "keras_digits.py", *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    said = r"^2 ranks, top-k 5\.0%: accuracy 0\.[89]\d+ on 360 images"
    assert re.search(said, result.stdout, re.MULTILINE)
    assert "all ranks hold the same weights, bit for bit" in result.stdout


def test_top_k_digits_fail_when_the_accuracies_differ() -> None:
    result = run(4, "keras_topk.py", "--epochs", "1", "--margin", "-1", **TWO_BY_TWO)
    assert result.returncode == 1, result.stdout + result.stderr
    row = r" +0\.\d{3} +\d+\.\d ms +(\d+\.\d) kB$"
    dense = re.search(rf"^dense{row}", result.stdout, re.MULTILINE)
    topk = re.search(rf"^top-k 1\.0%{row}", result.stdout, re.MULTILINE)
    assert dense is not None, result.stdout
    assert topk is not None, result.stdout
    assert float(dense[1]) > 10 * float(topk[1]) > 0
