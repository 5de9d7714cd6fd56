"""Objects that travel pickled, in a world of one rank."""

from __future__ import annotations

import threading

import pytest

import lightcc as hvd

pytestmark = pytest.mark.usefixtures("world")


@pytest.mark.parametrize("obj", [None, 0, "text", b"", {"a": [1, 2.5]}, list(range(10_000))])
def test_object_of_one_rank_comes_back(obj: object) -> None:
    assert hvd.broadcast_object(obj) is obj
    assert hvd.allgather_object(obj) == [obj]
    assert hvd.broadcast_object(obj, name="named") is obj


def test_object_that_cannot_be_pickled_is_the_callers_error() -> None:
    with pytest.raises(TypeError, match="pickle"):
        hvd.allgather_object(threading.Lock())
    assert hvd.allgather_object(1) == [1]


def test_root_outside_the_world_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^broadcast received invalid root rank 1"):
        hvd.broadcast_object(1, root_rank=1)
