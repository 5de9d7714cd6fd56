"""What tests of real GPUs ask for first."""

from __future__ import annotations

import pytest

from lightcc.bench import gpus


@pytest.fixture(scope="session")
def num_gpus() -> int:
    """Returns how many GPUs there are; skips where tensors of torch cannot be on one."""
    try:
        found = gpus.find_gpus()
        gpus.why_no_nccl(len(found), 1)
    except gpus.GpuError as error:
        pytest.skip(str(error))
    return len(found)
