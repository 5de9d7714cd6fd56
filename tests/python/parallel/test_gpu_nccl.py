"""Arrays in CUDA memory by NCCL, through `import lightcc`: a fake NCCL on the fake driver.

The C++ tests have the claims; these show that they reach Python. The same functions run on real
GPUs (tests/python/gpu).
"""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import gpu_failures
import gpu_nccl
import gpu_timeline
import numpy as np
import pytest
from gpu_arrays import FAKE_CUDA, GpuArray, needs_fake_cuda
from held_nccl import release_later, set_nccl

import lightcc as hvd
from lightcc.testing import RankProcesses, spawn_ranks
from lightcc.timeline import __main__ as tool

pytestmark = [pytest.mark.multiproc, needs_fake_cuda]

DRIVER = str(FAKE_CUDA)
NCCL = {
    "HOROVOD_GPU_OPERATIONS": "NCCL",
    "LIGHT_NCCL_LIBRARY": str(FAKE_CUDA.parent / "libnccl.so.2"),
}
CUPY_SITE = str(Path(__file__).parents[1] / "cupy_site")


def with_gpus(size: int, fake: str = "delay_us=300", **more: str) -> list[dict[str, str]]:
    """Returns the environments of ranks that have a GPU each."""
    return [{"LIGHTCC_FAKE_CUDA": f"{fake},bus={rank + 1}", **more} for rank in range(size)]


def every_collective_goes_by_nccl() -> None:
    gpu_nccl.every_collective_goes_by_nccl(DRIVER)
    assert ctypes.CDLL("libnccl.so.2").lightcc_fake_nccl_operations() > 80


def test_every_collective_goes_by_nccl() -> None:
    settings = with_gpus(2, **NCCL, LIGHTCC_FAKE_NCCL="version=22703", LIGHT_NUM_STREAMS="2")
    spawn_ranks(every_collective_goes_by_nccl, 2, env=settings)


def test_nccl_is_found_in_the_folder_of_torch_which_need_not_be_lightccs(tmp_path: Path) -> None:
    file = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    file.parent.mkdir(parents=True)
    shutil.copy(NCCL["LIGHT_NCCL_LIBRARY"], file)
    variables = {"PYTHONPATH": str(tmp_path), "HOROVOD_GPU_OPERATIONS": "NCCL"}
    script = f"import ctypes; ctypes.CDLL({DRIVER!r}); import lightcc; lightcc.init()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | variables | {"LIGHT_LOG_LEVEL": "info"},
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert f"NCCL 2.28.9 carries tensors of GPUs: {file}\n" in done.stderr


def test_a_killed_rank_is_named_and_nobody_hangs() -> None:
    # Hosts that are alike make two levels.
    settings = with_gpus(4, **NCCL, LIGHT_2D_ALLREDUCE="1")
    with RankProcesses(
        gpu_nccl.reduce_until_an_error, 4, DRIVER, 1, env=settings, hosts=[0, 0, 1, 1]
    ) as ranks:
        results = ranks.wait(60)
    for rank in (0, 2, 3):
        assert "rank 1" in str(results[rank].value)


def test_ranks_that_share_a_gpu_are_staged() -> None:
    settings = [with_gpus(1, **NCCL)[0]] * 2
    assert spawn_ranks(gpu_nccl.ranks_of_one_gpu_are_staged, 2, DRIVER, env=settings) == [22809] * 2


@pytest.mark.parametrize("nccl", [{}, NCCL], ids=["staged", "nccl"])
def test_an_illegal_access_is_named_on_all_ranks(nccl: dict[str, str]) -> None:
    env = with_gpus(2, "delay_us=2000", **nccl)
    told = spawn_ranks(gpu_failures.a_kernel_writes_nowhere, 2, DRIVER, 1, env=env)
    gpu_failures.check_illegal_access(told, 1)


def test_a_gpu_without_memory_for_an_output_is_named_on_all_ranks() -> None:
    env = with_gpus(2, "memory_mb=64", **NCCL)
    for told in spawn_ranks(gpu_failures.memory_runs_out, 2, DRIVER, 1, env=env):
        gpu_failures.check_out_of_memory(told)
        assert "rank 1: " in told


def test_memory_that_was_freed_is_refused_and_the_world_goes_on() -> None:
    for told in spawn_ranks(gpu_failures.memory_was_freed, 2, DRIVER, env=with_gpus(2)):
        assert "is no GPU's" in told


@pytest.mark.parametrize(("nccl", "row"), [({}, "GPU 0 to device"), (NCCL, "GPU 0 NCCL")])
def test_a_timeline_says_what_gpus_hid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], nccl: dict[str, str], row: str
) -> None:
    path = tmp_path / "t.json"
    env = with_gpus(2, **nccl, HOROVOD_TIMELINE=str(path))
    spawn_ranks(gpu_timeline.reduce_steps, 2, DRIVER, env=env)
    text = gpu_timeline.check(path, row, gpu_timeline.STEPS)
    assert "GPUs communicated for " in text
    assert tool.main(["summary", "--steps", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("GPU hidden GPU exposed")
    assert len(lines) >= 1 + gpu_timeline.STEPS


def prepare_cupy() -> Any:
    """Returns CuPy, for which a module over the fake driver stands, and makes a world."""
    ctypes.CDLL(DRIVER)  # Whoever opens "libcuda.so.1" later gets this one.
    sys.path.insert(0, CUPY_SITE)
    cupy: Any = importlib.import_module("cupy")
    cupy.cuda.Device(0).use()
    hvd.init()
    return cupy


def the_current_stream_of_cupy_waits_and_the_host_does_not() -> None:
    cupy = prepare_cupy()
    x = cupy.ones(1000, "float32")
    set_nccl("behind=0")
    hvd.allreduce_(x, op=hvd.Sum)
    total = hvd.allreduce(x, op=hvd.Sum)
    assert hvd.stats().nccl_unfinished_buckets == 2
    assert isinstance(total, cupy.ndarray)
    copy = cupy.ndarray(1000, "float32")
    cupy.copyto(copy, total)  # In the order of the current stream.
    released = threading.Event()
    thread = release_later(released)
    values = cupy.asnumpy(copy)
    assert released.is_set()
    thread.join()
    assert (values == hvd.size() ** 2).all()
    hvd.shutdown()


def what_is_no_array_of_cupy_is_waited_for_on_the_host() -> None:
    cupy = prepare_cupy()
    x, other = cupy.ones(10, "float32"), GpuArray(np.ones(10, np.float32))
    del cupy.cuda.get_current_stream  # Nor are arrays of an old release.
    for array in (x, other):
        set_nccl("behind=0")
        released = threading.Event()
        thread = release_later(released)
        hvd.allreduce_(array, op=hvd.Sum)
        assert released.is_set()
        thread.join()
        assert hvd.stats().nccl_unfinished_buckets == 0
    hvd.shutdown()


@pytest.mark.parametrize(
    "check",
    [
        the_current_stream_of_cupy_waits_and_the_host_does_not,
        what_is_no_array_of_cupy_is_waited_for_on_the_host,
    ],
)
def test_cupy(check: Any) -> None:
    spawn_ranks(check, 2, env=with_gpus(2, "delay_us=0", **NCCL))
