"""What compression keeps back in a GPU's memory, where training rolls forward after a failure."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gpu_arrays import FAKE_CUDA, GpuArray, needs_fake_cuda, on_host, use_gpu

import lightcc as hvd
from lightcc.exceptions import HorovodInternalError
from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from arrays import Array

pytestmark = [pytest.mark.multiproc, needs_fake_cuda]

COUNT, STEPS = 3000, 8


def train(*, on_gpu: bool, fails: bool, every: int) -> tuple[Array, list[int]]:
    """Returns the sum of what came, and where training began.

    The world fails once, where all ranks have all-reduced in step 5 and have not committed it.
    """
    hvd.init()
    state: Any = hvd.elastic.ObjectState(
        hvd.broadcast_object, hvd.rank, step=0, sums=np.zeros((2, COUNT))
    )
    failures = ["the world fails here"] if fails else []
    begun: list[int] = []

    def reduce(step: int, index: int) -> Array:
        numbers = np.random.default_rng([step, index, hvd.rank()])
        mine = numbers.normal(size=COUNT).astype(np.float32)
        how = hvd.Compression.topk(0.02, fp16=index == 1)
        array = GpuArray(mine) if on_gpu else mine
        return np.array(on_host(hvd.allreduce(array, op=hvd.Sum, name=f"{index}", compression=how)))

    @hvd.elastic.run(recovery="forward")
    def loop(state: Any) -> None:
        begun.append(state.step)
        while state.step < STEPS:
            sums = [reduce(state.step, index) for index in range(2)]
            if state.step == 5 and failures:
                raise HorovodInternalError(failures.pop())
            state.sums = state.sums + sums
            state.step += 1
            if state.step % every == 0:
                state.commit()

    loop(state)
    on_gpus = hvd.stats()["compressed_on_gpu"]
    assert (on_gpus > 0) == on_gpu, on_gpus
    hvd.shutdown()
    return state.sums, begun


def compare(every: int) -> tuple[list[str], bool, bool, list[int]]:
    """Returns what is logged, whether results are as without a failure and as of host memory."""
    use_gpu(str(FAKE_CUDA))
    texts: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("lightcc.elastic").addHandler(handler)
    whole, _ = train(on_gpu=True, fails=False, every=every)
    found, begun = train(on_gpu=True, fails=True, every=every)
    expected, _ = train(on_gpu=False, fails=True, every=every)
    return texts, np.array_equal(found, whole), np.array_equal(found, expected), begun


@pytest.mark.parametrize(("every", "again"), [(1, 5), (3, 3)])
def test_nothing_is_lost_where_training_rolls_forward(every: int, again: int) -> None:
    env = {"LIGHT_TOPK_THRESHOLD": "0"}
    for told in spawn_ranks(compare, 2, every, env=env, hosts=[0, 1]):
        assert told == ([], True, True, [0, again])
