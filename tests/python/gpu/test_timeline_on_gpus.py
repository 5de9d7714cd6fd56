"""How much communication real GPUs hide behind the backward pass: `make test-gpu`.

The result is printed, and no figure is asserted: it says something of the machine, and of a small
network.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import gpu_nccl
import gpu_timeline
import pytest

import lightcc
from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(330)]  # Ranks import torch.

ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
STEPS = 6  # As in gpu_training, which imports torch.


def show(title: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        sys.stdout.write(f"\n{title}\n{text}")


@pytest.mark.usefixtures("num_gpus")
def test_gradients_by_way_of_the_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.json"
    settings = ENVIRONMENT | {"HOROVOD_TIMELINE": str(path)}
    # Each is a host of its own, whose first GPU is the same one.
    spawn_ranks(gpu_timeline.train_steps, 2, env=settings, hosts=[0, 1], fresh=True, timeout_s=300)
    text = gpu_timeline.check(path, "GPU 0 to host", STEPS)
    show("gradients by way of the host:", text, capsys)


@pytest.mark.usefixtures("num_gpus")
def test_gradients_by_nccl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not lightcc.nccl_built():
        pytest.skip("there is no NCCL of use: see python -m lightcc.doctor")
    path = tmp_path / "t.json"
    settings = gpu_nccl.with_nccl(
        gpu_nccl.visible_gpus(), 2, HOROVOD_TIMELINE=str(path), **ENVIRONMENT
    )
    spawn_ranks(gpu_timeline.train_steps, 2, env=settings, hosts=[0, 1], fresh=True, timeout_s=300)
    text = gpu_timeline.check(path, "GPU 0 NCCL", STEPS)
    show("gradients by NCCL:", text, capsys)
