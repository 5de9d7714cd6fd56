"""What only a GPU can show: `make test-gpu`."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lightcc import _core, doctor

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def gpus() -> list[dict[str, Any]]:
    """Returns the GPUs that lightcc's kernels are for; skips where there is none."""
    try:
        found: list[dict[str, Any]] = _core.find_gpus()["gpus"]
    except NotImplementedError as error:
        pytest.skip(str(error))
    if all(gpu["objection"] for gpu in found):
        pytest.skip(f"no GPU of use: {found[0]['objection']}")
    return found


def test_all_kernels_load_and_one_packs_tensors(gpus: list[dict[str, Any]]) -> None:
    for index, gpu in enumerate(gpus):
        if not gpu["objection"]:
            _core.try_gpu(index)


def test_a_gpu_that_is_not_there_is_refused(gpus: list[dict[str, Any]]) -> None:
    with pytest.raises(RuntimeError, match="cuDeviceGet: "):
        _core.try_gpu(len(gpus))


def test_the_doctor_describes_each_gpu(gpus: list[dict[str, Any]]) -> None:
    found = {f.name: f.detail for f in doctor.check_libraries() if re.fullmatch(r"GPU \d+", f.name)}
    assert len(found) == len(gpus)
    for index, gpu in enumerate(gpus):
        assert gpu["name"] in found[f"GPU {index}"]
