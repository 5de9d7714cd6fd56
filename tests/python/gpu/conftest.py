"""What tests of real GPUs ask for first."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lightcc import _core


@pytest.fixture(scope="session")
def num_gpus() -> int:
    """Returns how many GPUs there are; skips where tensors of torch cannot be on one."""
    try:
        count = len(_core.find_gpus()["gpus"])
    except NotImplementedError as error:
        pytest.skip(str(error))
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    if subprocess.run([sys.executable, "-c", code], check=False).returncode != 0:
        pytest.skip("torch is built without CUDA, or finds no GPU")
    return count
