"""What tests of real GPUs ask for first."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lightcc import _core


@pytest.fixture(scope="session", autouse=True)
def num_gpus() -> int:
    """Returns how many GPUs there are; skips where there is none, or lightcc cannot use it."""
    try:
        found = _core.find_gpus()["gpus"]
    except NotImplementedError as error:
        pytest.skip(str(error))
    if all(gpu["objection"] for gpu in found):
        pytest.skip(f"no GPU of use: {found[0]['objection']}")
    return len(found)


@pytest.fixture(scope="session")
def _torch() -> None:
    """Skips where tensors of torch cannot be on a GPU."""
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    if subprocess.run([sys.executable, "-c", code], check=False).returncode != 0:
        pytest.skip("torch is not there, is built without CUDA, or finds no GPU")
