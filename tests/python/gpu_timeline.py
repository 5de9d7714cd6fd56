"""How much of a GPU's communication a timeline finds behind the backward pass.

On the fakes, or on real GPUs. Rank 0 records the file `path`, which a test reads afterwards.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
from gpu_arrays import GpuArray, on_host, use_gpu

import lightcc as hvd
from lightcc import timeline
from lightcc.timeline import report

if TYPE_CHECKING:
    from pathlib import Path

STEPS, TENSORS, ELEMENTS = 3, 4, 5000


def reduce_steps(driver: str) -> None:
    """Reduces arrays that a stream of the GPU writes, step by step."""
    gpu = use_gpu(driver)
    hvd.init()
    ones = np.ones(ELEMENTS, np.float32)
    arrays = [GpuArray(0 * ones, stream=gpu.stream) for _ in range(TENSORS)]
    for _ in range(STEPS):
        handles = []
        for number, array in enumerate(arrays):
            gpu.write_later(array.address, ones, gpu.stream)
            handles.append(hvd.allreduce_async_(array, name=f"g{number}", op=hvd.Sum))
        for handle in handles:
            hvd.synchronize(handle)
    for array in arrays:
        assert (on_host(array) == hvd.size()).all()
    hvd.shutdown()


def train_steps() -> None:
    """Trains a network with torch. Its gradients are handed in while it computes others."""
    import gpu_training

    gpu_training.prefer_one_order()
    hvd.init()
    gpu_training.check_learns(gpu_training.train(gpu_training.use_gpu(), "gpu", topk=False))
    hvd.shutdown()


def check(path: Path, row: str, steps: int) -> str:
    """Raises AssertionError unless each step communicated on `row`; returns what users read."""
    trace = timeline.read(path)
    summary = timeline.summarize(trace)
    devices = summary.devices
    assert devices is not None
    busy = [step for step in devices.steps if step.communication > 0]
    assert len(busy) >= steps
    assert all(step.by_device for step in busy)
    assert devices.failure == ""
    assert devices.error_s > 0
    assert devices.rows[row].spans >= steps
    buckets = {(bucket.algorithm, bucket.num_bytes) for bucket in trace.buckets}
    on_row = [span for span in trace.device_spans if span.row == row]
    assert {(span.algorithm, span.bucket_bytes) for span in on_row} <= buckets
    for before, after in itertools.pairwise(on_row):
        assert before.start <= before.end <= after.start + 1e-9  # The file has nanoseconds.
    return report.text(summary)
