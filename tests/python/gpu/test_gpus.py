"""What only a GPU can show: `make test-gpu`."""

from __future__ import annotations

import pytest

from lightcc import _core

pytestmark = pytest.mark.gpu


def test_all_kernels_load_and_one_packs_tensors() -> None:
    for index, gpu in enumerate(_core.find_gpus()["gpus"]):
        if not gpu["objection"]:
            _core.try_gpu(index)
