"""What compression keeps back where a world fails within a step, and training rolls forward."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from compressed_grids import SMALL, few_grids

import lightcc as hvd
from lightcc.exceptions import HorovodInternalError

pytestmark = pytest.mark.multiproc

SHAPE = (40, 30)
STEPS = 8
FAILED = 5
WAYS: dict[str, Any] = {
    "topk": hvd.Compression.topk(0.02),
    "dense at first": hvd.Compression.topk(0.02, warmup_steps=2),
    "int4": hvd.Compression.int4,
    "onebit": hvd.Compression.onebit,
    "powersgd": hvd.Compression.powersgd(2),
}

#: Each tensor is reduced twice in a step.
TWICE = {way: WAYS[way] for way in ("topk", "int4", "powersgd")}

ALL = -1

#: After how many tensors the step fails on ranks 0, 1 and all others; None: after its commit.
FAILURES = {
    "before": (0, 0, 0),
    "between two tensors": (3, 3, 3),
    "after all tensors": (ALL, ALL, ALL),
    "on the others, as the first has committed": (None, ALL, ALL),
    "on the first, as the second has committed": (ALL, None, ALL),
}


def gradient(step: int, rank: int, way: str) -> Any:
    numbers = np.random.default_rng([step, rank, len(way)])
    return numbers.normal(size=SHAPE).astype(np.float32)


def train(ends: tuple[int | None, ...] | None, ways: dict[str, Any], times: int) -> dict[str, Any]:
    """Trains; its world ends once, as `ends` says. Reduces each tensor so many times in a step."""
    hvd.init()
    zeros = {way: np.zeros(SHAPE) for way in ways}
    state: Any = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0, sums=zeros)
    end = None if ends is None else ends[min(hvd.rank(), 2)]
    failures = [] if ends is None else ["the world fails here"]

    def fail_after(tensors: int | None) -> None:
        if failures and state.step == FAILED and end == tensors:
            raise HorovodInternalError(failures.pop())

    @hvd.elastic.run(recovery="forward")
    def loop(state: Any) -> None:
        while state.step < STEPS:
            sums = dict(state.sums)
            fail_after(0)
            for i, (way, compressor) in enumerate([*ways.items()] * times):
                mine = gradient(state.step, hvd.rank(), way)
                sent = hvd.allreduce(mine, op=hvd.Sum, name=way, compression=compressor)
                sums[way] = sums[way] + np.array(sent)
                fail_after(i + 1)
            fail_after(ALL)
            state.sums = sums
            state.step += 1
            try:
                state.commit()
            except HorovodInternalError:
                assert failures.pop()  # Others have failed in the step that is committed here.
                raise

    loop(state)
    assert not failures
    hvd.shutdown()
    return dict(state.sums)


def compare(ways: dict[str, Any], times: int) -> list[str]:
    """Returns which trainings have other results than one whose world never ended."""
    texts: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("lightcc.elastic").addHandler(handler)
    expected = train(None, ways, times)
    for what, ends in FAILURES.items():
        found = train(ends, ways, times)
        texts += [f"{way}: {what}" for way in ways if not np.array_equal(found[way], expected[way])]
    return texts


@pytest.mark.parametrize(("ways", "times"), [(WAYS, 1), (TWICE, 2)])
@few_grids
def test_results_are_those_of_a_training_whose_world_never_failed(
    grid: Any, env: dict[str, str], blocks: list[list[int]], ways: dict[str, Any], times: int
) -> None:
    del blocks
    assert grid.run(compare, ways, times, env=SMALL | env) == [[]] * grid.ranks
