"""Operations on arrays of a real GPU: `make test-gpu`. Two ranks may share one."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from gpu_operations import every_operation_gives_what_it_gives_for_host_memory

import lightcc as hvd
from lightcc.testing import spawn_ranks

pytestmark = pytest.mark.gpu


def test_every_operation_gives_the_hosts_bits() -> None:
    function = every_operation_gives_what_it_gives_for_host_memory
    spawn_ranks(function, 2, "libcuda.so.1", fresh=True)


def cupy_gets_its_own_arrays() -> None:
    cupy: Any = importlib.import_module("cupy")
    cupy.cuda.Device(0).use()
    hvd.init()
    ones = cupy.ones(1000, "float32")
    for result in (hvd.allreduce(ones, op=hvd.Sum), hvd.grouped_allreduce([ones], op=hvd.Sum)[0]):
        assert type(result) is cupy.ndarray
        assert (cupy.asnumpy(result) == hvd.size()).all()
    hvd.shutdown()


def test_cupy_gets_its_own_arrays() -> None:
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    spawn_ranks(cupy_gets_its_own_arrays, 2, fresh=True)
