"""What only a GPU can show: `make test-gpu`."""

from __future__ import annotations

import re

import pytest

from lightcc import _core, doctor

pytestmark = pytest.mark.gpu


def test_all_kernels_load_and_one_packs_tensors() -> None:
    for index, gpu in enumerate(_core.find_gpus()["gpus"]):
        if not gpu["objection"]:
            _core.try_gpu(index)


def test_the_doctor_describes_each_gpu() -> None:
    gpus = _core.find_gpus()["gpus"]
    found = {f.name: f.detail for f in doctor.check_libraries() if re.fullmatch(r"GPU \d+", f.name)}
    assert len(found) == len(gpus)
    for index, gpu in enumerate(gpus):
        assert gpu["name"] in found[f"GPU {index}"]
