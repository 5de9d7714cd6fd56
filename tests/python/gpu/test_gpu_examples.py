"""An example trains on real GPUs, which two ranks may share: `make test-gpu`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "pytorch_digits.py"

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(330)]  # Ranks import torch.


@pytest.mark.usefixtures("num_gpus")
def test_digits_reach_their_accuracy_on_a_gpu() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, which ships the data, is not installed")
    launcher = [sys.executable, "-m", "lightcc.runner", "-np", "2", "--no-prefix"]
    done = subprocess.run(
        [*launcher, sys.executable, str(EXAMPLE), "--epochs", "5", "--accuracy", "0.85"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " parameters on cuda, on 1437 digits\n" in done.stdout
    assert "\nall ranks hold the same weights, bit for bit: " in done.stdout
