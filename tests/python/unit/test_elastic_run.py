"""The loop around a training function, on one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import lightcc as hvd
from lightcc._ops import basics

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _world() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.parametrize("stands_elsewhere", [False, True])
def test_reset_callbacks_run_where_a_newcomer_stands_elsewhere_than_it_was_told(
    monkeypatch: pytest.MonkeyPatch, *, stands_elsewhere: bool
) -> None:
    monkeypatch.setattr(basics, "join_training", lambda: stands_elsewhere)
    seen = []
    state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0)
    state.register_reset_callbacks([lambda: seen.append("reset")])

    @hvd.elastic.run
    def train(state: hvd.elastic.ObjectState) -> int:
        seen.append("trains")
        return int(state.step)

    assert train(state) == 0
    assert seen == ["reset", "trains"][not stands_elsewhere :]
