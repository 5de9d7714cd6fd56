"""Operations on arrays of a real GPU: `make test-gpu`. Two ranks may share one."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from arrays import BFLOAT16, BOOL, DTYPES, check_same, pattern
from gpu_arrays import DRIVER, GpuArray, on_host, use_gpu
from gpu_operations import ASYNCHRONOUS, NUMBERS_ALONE, check_equal

import lightcc as hvd
from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.gpu

IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "allreduce_": lambda x: hvd.allreduce_(x, name="r", op=hvd.Max),
    "grouped_allreduce_": lambda x: hvd.grouped_allreduce_([x], name="g", op=hvd.Min)[0],
    "broadcast_": lambda x: hvd.broadcast_(x, hvd.size() - 1, name="b"),
}


def every_operation_gives_what_it_gives_for_host_memory() -> None:
    """Compares them on this rank, for dtypes and shapes."""
    use_gpu(DRIVER)
    hvd.init()
    shapes: list[tuple[int, ...]] = [(5, 7), (4098,), (4, 0, 2)]
    for dtype, shape in [
        *((dtype, (6,)) for dtype in DTYPES if dtype != BFLOAT16),  # Which has no typestr.
        *((np.dtype("float32"), shape) for shape in shapes),
    ]:
        x = pattern(dtype, shape, hvd.rank())
        what = (dtype, shape, hvd.rank())
        for name, start in (ASYNCHRONOUS | (NUMBERS_ALONE if dtype != BOOL else {})).items():
            if shape == (5, 7) and name == "alltoall":
                continue  # Five rows do not go evenly to two ranks.
            given = GpuArray(x)
            expected = hvd.synchronize(start(x.copy()))
            result = hvd.synchronize(start(given))
            check_equal(on_host(result), expected, (name, *what))
            check_same(on_host(given), x, (name, *what))
        for name, run in IN_PLACE.items():
            given = GpuArray(x)
            assert run(given) is given
            check_same(on_host(given), run(x.copy()), (name, *what))


def test_every_operation_gives_the_hosts_bits() -> None:
    spawn_ranks(every_operation_gives_what_it_gives_for_host_memory, 2, fresh=True)


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
