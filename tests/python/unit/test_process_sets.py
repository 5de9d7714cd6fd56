"""Process sets where there is one rank: registration, questions, and refused sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import check_same

import lightcc as hvd


def test_set_sorts_its_ranks_and_is_not_registered() -> None:
    process_set = hvd.ProcessSet([3, 0, 2])
    assert process_set.ranks == [0, 2, 3]
    assert process_set.process_set_id is None
    assert process_set.size() is process_set.rank() is process_set.included() is None
    assert str(process_set) == "ProcessSet(process_set_id=None, ranks=[0, 2, 3], mpi_comm=None)"


@pytest.mark.parametrize("ranks", [[1, 1], [-1]])
def test_impossible_ranks_are_refused(ranks: list[int]) -> None:
    with pytest.raises(ValueError, match="different ranks, none negative"):
        hvd.ProcessSet(ranks)


def test_global_set_has_all_ranks_while_initialized() -> None:
    assert hvd.global_process_set.process_set_id == 0
    hvd.init()
    assert hvd.global_process_set.ranks == [0]
    assert hvd.global_process_set.size() == 1
    assert hvd.global_process_set.rank() == 0
    assert hvd.global_process_set.included() is True
    assert hvd.process_set_ids() == [0]
    assert hvd.get_process_set_ids_and_ranks() == {0: [0]}
    hvd.shutdown()
    assert hvd.global_process_set.process_set_id == 0
    assert hvd.global_process_set.ranks == []


@pytest.mark.parametrize(
    ("sets", "text"),
    [
        ([hvd.ProcessSet([0])], "Attempted to add a duplicate process set"),
        ([hvd.global_process_set], "ranks from 0 to 0, at least one"),
        ([hvd.ProcessSet([])], "ranks from 0 to 0, at least one"),
        ([hvd.ProcessSet([1])], "ranks from 0 to 0, at least one"),
        ("static", r"process_sets is 'static': expected a list of ProcessSet or 'dynamic'"),
    ],
)
def test_static_sets_are_checked_before_the_world_is_made(sets: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        hvd.init(process_sets=sets)
    assert not hvd.is_initialized()


def test_set_that_is_not_registered_cannot_be_used() -> None:
    hvd.init()
    process_set = hvd.ProcessSet([0])
    for call in (
        lambda: hvd.allreduce(np.zeros(1), process_set=process_set),
        lambda: hvd.barrier(process_set),
        lambda: hvd.broadcast_object(1, process_set=process_set),
    ):
        with pytest.raises(
            ValueError, match="Process set provided does not exist, or has not been registered"
        ):
            call()


def test_sets_cannot_be_changed_unless_asked_for() -> None:
    hvd.init()
    with pytest.raises(ValueError, match="Set HOROVOD_DYNAMIC_PROCESS_SETS=1"):
        hvd.add_process_set([0])


@pytest.mark.parametrize("how", ["variable", "argument"])
def test_dynamic_sets_check_their_ranks(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "variable":
        monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
        hvd.init()
    else:
        hvd.init(process_sets="dynamic")
    with pytest.raises(ValueError, match=r"Attempted to add a duplicate process set: .*\[0\]"):
        hvd.add_process_set([0])
    with pytest.raises(ValueError, match="ranks from 0 to 0, at least one; found"):
        hvd.add_process_set([0, 1])
    assert hvd.remove_process_set(hvd.global_process_set) is False
    assert hvd.remove_process_set(hvd.ProcessSet([0])) is False
    check_same(hvd.allreduce(np.ones(2)), np.ones(2))
