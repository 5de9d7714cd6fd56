"""Arrays of real GPUs by a real NCCL: `make test-gpu`.

Where there are fewer GPUs than ranks, all ranks share the first one, and each has an `NCCL_HOSTID`
of its own. So NCCL takes them for hosts, and sends by its network what they reduce. Results are
compared with those of host memory: small integers, so that NCCL may add in any order.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
from typing import TYPE_CHECKING, Any

import gpu_nccl
import numpy as np
import pytest
from arrays import check_same, pattern
from gpu_arrays import DRIVER, GpuArray, on_host, use_gpu
from gpu_operations import ASYNCHRONOUS, NUMBERS_ALONE, check_equal

import lightcc as hvd
from lightcc.testing import RankProcesses, spawn_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrays import Array

pytestmark = pytest.mark.gpu

#: That NCCL reduces. The array interface has no word for bfloat16.
INTEGERS = [np.dtype(name) for name in ("uint8", "int8", "int32", "int64")]
FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64")]


@pytest.fixture(scope="module")
def gpus() -> list[str]:
    """Returns the GPUs that ranks may be given; skips where NCCL cannot use them."""
    try:
        return gpu_nccl.visible_gpus()
    except NotImplementedError as error:
        pytest.skip(str(error))


def check_by_nccl(run: Callable[[Any], Any], x: Array, what: object) -> None:
    """Raises AssertionError unless NCCL carries an operation, with the result of host memory."""
    expected = run(x.copy())
    before = hvd.stats()
    result = on_host(run(GpuArray(x)))
    after = hvd.stats()
    assert after.nccl_buckets > before.nccl_buckets, what
    assert after.staged_buckets == before.staged_buckets, what
    check_equal(result, expected, what)


def every_collective_goes_by_nccl() -> None:
    """Compares every operation and dtype that NCCL carries, and a set of one rank."""
    use_gpu(DRIVER)
    hvd.init(process_sets="dynamic")
    assert hvd.nccl_built() >= 22005
    for dtype in [*INTEGERS, *FLOATS]:
        # Factors are powers of two, or of sums that have few bits: nobody rounds.
        operations = ASYNCHRONOUS | NUMBERS_ALONE
        if dtype in INTEGERS:  # Means of which go by way of the host.
            del operations["average, scaled"], operations["grouped_reducescatter"]
        for name, start in operations.items():

            def run(x: Any, start: Callable[[Any], Any] = start) -> Any:
                return hvd.synchronize(start(x))

            check_by_nccl(run, pattern(dtype, (600,), hvd.rank()), (name, dtype))
    x = pattern(np.dtype("float32"), (10 * (hvd.rank() + 1),), hvd.rank())
    check_by_nccl(lambda x: hvd.allgather(x, name="v"), x, "allgather, uneven")
    last = hvd.add_process_set([hvd.size() - 1]) if hvd.size() > 1 else hvd.global_process_set
    if last.included():
        check_by_nccl(lambda x: hvd.allreduce(x, name="s", process_set=last), x, "a set")
    hvd.barrier()
    hvd.shutdown()


@pytest.mark.parametrize("size", [1, 2])
def test_every_collective_goes_by_nccl(gpus: list[str], size: int) -> None:
    environments = gpu_nccl.with_nccl(gpus, size)
    spawn_ranks(every_collective_goes_by_nccl, size, env=environments, fresh=True)


def chunks_go_by_nccl_within_hosts() -> None:
    """Reduces on two levels: NCCL within hosts, lightcc's transport between them."""
    use_gpu(DRIVER)
    hvd.init()
    for dtype in FLOATS:
        x = pattern(dtype, (9001,), hvd.rank())
        before = hvd.stats().nccl_two_level_buckets
        check_by_nccl(lambda x: hvd.allreduce(x, op=hvd.Sum, name="r"), x, dtype)
        assert hvd.stats().nccl_two_level_buckets > before
    hvd.shutdown()


def test_two_levels_have_nccl_within_hosts(gpus: list[str]) -> None:
    environments = gpu_nccl.with_nccl(gpus, 4, LIGHT_2D_ALLREDUCE="1")
    function = chunks_go_by_nccl_within_hosts
    spawn_ranks(function, 4, env=environments, hosts=[0, 0, 1, 1], fresh=True)


def a_held_stream_does_not_hold_the_host() -> None:
    """Reduces arrays of CuPy behind what the GPU waits for."""
    cupy: Any = importlib.import_module("cupy")
    gpu = use_gpu(DRIVER)
    cupy.cuda.Device(0).use()
    hvd.init()
    x = cupy.ones(1000, "float32")
    hvd.allreduce_(x, op=hvd.Sum, name="first")
    assert (cupy.asnumpy(x) == hvd.size()).all()
    hvd.barrier()
    word = gpu.hold(cupy.cuda.get_current_stream().ptr)
    hvd.allreduce_(x, op=hvd.Sum, name="second")
    total = hvd.allreduce(x, op=hvd.Sum, name="third")
    assert hvd.stats().nccl_unfinished_buckets == 2
    word.value = 1
    assert (cupy.asnumpy(total) == hvd.size() ** 3).all()
    hvd.shutdown()


def test_a_held_stream_does_not_hold_the_host(gpus: list[str]) -> None:
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    function = a_held_stream_does_not_hold_the_host
    spawn_ranks(function, 2, env=gpu_nccl.with_nccl(gpus, 2), fresh=True)


def ranks_of_one_gpu_are_staged() -> int:
    """Reduces by way of host memory, as NCCL would refuse; returns the NCCL that there is."""
    use_gpu(DRIVER)
    hvd.init()
    x = np.arange(100, dtype=np.float32)
    check_same(on_host(hvd.allreduce(GpuArray(x), op=hvd.Sum)), hvd.size() * x)
    assert hvd.stats().nccl_buckets == 0
    assert hvd.stats().staged_buckets == 1
    return hvd.nccl_built()


def test_two_ranks_of_one_gpu_are_staged(gpus: list[str]) -> None:
    same = {"HOROVOD_GPU_OPERATIONS": "NCCL", "CUDA_VISIBLE_DEVICES": gpus[0]}
    assert all(spawn_ranks(ranks_of_one_gpu_are_staged, 2, env=same, fresh=True))


def reduce_until_an_error(victim: int) -> str:
    """Reduces groups by NCCL until a rank kills itself; returns what the others are told."""
    use_gpu(DRIVER)
    hvd.init()
    arrays: list[Any] = [GpuArray(np.ones(1000, np.float32)) for _ in range(3)]
    for step in range(1000):
        if hvd.rank() == victim and step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            hvd.grouped_allreduce_(arrays, op=hvd.Sum, name=str(step))
        except hvd.HorovodInternalError as error:
            return str(error)
        assert hvd.stats().nccl_buckets == step + 1
    return "no error"


@pytest.mark.parametrize(
    ("hosts", "more"),
    [([0, 0], {}), ([0, 0, 1, 1], {"LIGHT_2D_ALLREDUCE": "1"})],
    ids=["flat", "two levels"],
)
def test_a_killed_rank_is_named_and_nobody_hangs(
    gpus: list[str], hosts: list[int], more: dict[str, str]
) -> None:
    size = len(hosts)
    environments = gpu_nccl.with_nccl(gpus, size, **more)
    with RankProcesses(
        reduce_until_an_error, size, 1, env=environments, hosts=hosts, fresh=True
    ) as ranks:
        results = ranks.wait(100)
    for rank in set(range(size)) - {1}:
        assert "rank 1" in str(results[rank].value), results[rank]
