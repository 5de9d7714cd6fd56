"""torch.profiler shows collectives by name, and nothing is recorded without one."""

from __future__ import annotations

import pytest
import torch

import lightcc.torch as hvd
from lightcc.testing import spawn_ranks
from lightcc.torch import _profile


def profiled_names() -> set[str]:
    hvd.init()
    model = torch.nn.Linear(3, 2)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        hvd.allreduce(torch.ones(3), name="mine")
        hvd.allgather(torch.ones(3))
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    hvd.shutdown()
    return {event.name for event in profile.events()}


@pytest.mark.multiproc
def test_a_profiler_shows_operations_and_gradients_by_name() -> None:
    for names in spawn_ranks(profiled_names, 2):
        assert {"lightcc::allreduce mine", "lightcc::allgather"} <= names
        for what in ("submit", "wait"):
            assert any(name.startswith(f"lightcc::{what} ") for name in names), names


def test_without_a_profiler_there_are_no_regions() -> None:
    assert not _profile.is_active()
    assert _profile.region("wait", "x") is _profile.region("submit")
