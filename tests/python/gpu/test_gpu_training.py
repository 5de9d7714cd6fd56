"""A network trains on real GPUs: `make test-gpu`.

Its gradients travel by way of the host and by NCCL, from two processes. These share a GPU in the
former case, and where there is one alone. How much of the communication the timeline finds hidden
is printed. This module does not import torch: its ranks do (`gpu_training`).
"""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING

import gpu_nccl
import pytest

import lightcc
from lightcc import timeline
from lightcc.testing import spawn_ranks
from lightcc.timeline import report

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(330)]  # Ranks import torch.

#: cuBLAS adds up in one order then. Tensors from so many bytes on are compressed.
ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "LIGHT_TOPK_THRESHOLD": "2048"}
STEPS = 6  # As in gpu_training, which imports torch.


def train_on_gpu(by_nccl: bool) -> None:
    """Trains dense, and by top-k with momentum correction."""
    import gpu_training

    import lightcc.torch as hvd

    gpu_training.prefer_one_order()
    hvd.init()
    device = gpu_training.use_gpu()
    for topk in (False, True):
        trained = gpu_training.train(device, "gpu", topk=topk)
        gpu_training.check(trained, gpu_training.train("cpu", "cpu", topk=topk))
        assert (trained.counted["compressed_on_gpu"] > 0) == topk
        assert (trained.counted["nccl_buckets"] > 0) == by_nccl
        if not topk:
            assert (trained.counted["staged_buckets"] > 0) != by_nccl
    hvd.shutdown()


def check_timeline(path: Path, row: str) -> str:
    """Raises AssertionError unless each step communicated on `row`; returns what users read."""
    trace = timeline.read(path)
    summary = timeline.summarize(trace)
    devices = summary.devices
    assert devices is not None
    busy = [step for step in devices.steps if step.communication > 0]
    assert len(busy) >= STEPS
    assert all(step.by_device for step in busy)
    assert devices.failure == ""
    assert devices.error_s > 0
    assert devices.rows[row].spans >= STEPS
    buckets = {(bucket.algorithm, bucket.num_bytes) for bucket in trace.buckets}
    on_row = [span for span in trace.device_spans if span.row == row]
    assert {(span.algorithm, span.bucket_bytes) for span in on_row} <= buckets
    for before, after in itertools.pairwise(on_row):
        assert before.start <= before.end <= after.start + 1e-9  # The file has nanoseconds.
    return report.text(summary)


@pytest.mark.usefixtures("_torch")
@pytest.mark.parametrize("by_nccl", [False, True], ids=["staged", "nccl"])
def test_two_processes_train_as_on_the_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], by_nccl: bool
) -> None:
    path = tmp_path / "t.json"
    settings = ENVIRONMENT | {"HOROVOD_TIMELINE": str(path)}
    environments = [settings] * 2
    if by_nccl and not lightcc.nccl_built():
        pytest.skip("there is no NCCL of use: see python -m lightcc.doctor")
    if by_nccl:
        environments = gpu_nccl.with_nccl(gpu_nccl.visible_gpus(), 2, **settings)
    # Each is a host of its own, whose first GPU is the same one.
    spawn_ranks(train_on_gpu, 2, by_nccl, env=environments, hosts=[0, 1], fresh=True, timeout_s=300)
    text = check_timeline(path, "GPU 0 NCCL" if by_nccl else "GPU 0 to host")
    with capsys.disabled():
        sys.stdout.write(f"\n{text}")
