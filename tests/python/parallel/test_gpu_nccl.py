"""NCCL through `import lightcc` where only Python decides: a fake NCCL on the fake driver.

The rehearsal of `make test-gpu` shows operations and failures there (test_gpu_tool.py).
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_arrays import FAKE_CUDA, GpuArray, needs_fake_cuda, use_gpu
from held_nccl import release_later, set_nccl

import lightcc as hvd
from lightcc.testing import spawn_ranks

pytestmark = [pytest.mark.multiproc, needs_fake_cuda]

NCCL = {
    "HOROVOD_GPU_OPERATIONS": "NCCL",
    "LIGHT_NCCL_LIBRARY": str(FAKE_CUDA.parent / "libnccl.so.2"),
}
CUPY_SITE = str(Path(__file__).parents[1] / "cupy_site")


def test_nccl_is_found_in_the_folder_of_torch_which_need_not_be_lightccs(tmp_path: Path) -> None:
    file = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    file.parent.mkdir(parents=True)
    shutil.copy(NCCL["LIGHT_NCCL_LIBRARY"], file)
    variables = {"PYTHONPATH": str(tmp_path), "HOROVOD_GPU_OPERATIONS": "NCCL"}
    driver = str(FAKE_CUDA)
    script = f"import ctypes; ctypes.CDLL({driver!r}); import lightcc; lightcc.init()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | variables | {"LIGHT_LOG_LEVEL": "info"},
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert f"NCCL 2.28.9 carries tensors of GPUs: {file}\n" in done.stderr


def arrays_without_a_current_stream_are_waited_for_on_the_host() -> None:
    use_gpu()
    sys.path.insert(0, CUPY_SITE)
    cupy: Any = importlib.import_module("cupy")
    cupy.cuda.Device(0).use()
    del cupy.cuda.get_current_stream  # As in an old release.
    hvd.init()
    for array in (cupy.ones(10, "float32"), GpuArray(np.ones(10, np.float32))):
        set_nccl("behind=0")
        released = threading.Event()
        thread = release_later(released)
        hvd.allreduce_(array, op=hvd.Sum)
        assert released.is_set()
        thread.join()
        assert hvd.stats().nccl_unfinished_buckets == 0
    hvd.shutdown()


def test_arrays_without_a_current_stream_are_waited_for_on_the_host() -> None:
    settings = [{"LIGHTCC_FAKE_CUDA": f"bus={rank + 1}", **NCCL} for rank in range(2)]
    spawn_ranks(arrays_without_a_current_stream_are_waited_for_on_the_host, 2, env=settings)
