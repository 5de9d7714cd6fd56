"""Objects that travel pickled, in a world of one rank."""

from __future__ import annotations

import importlib.util
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


def test_what_only_cloudpickle_takes_travels_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Local:
        rate = staticmethod(lambda epoch: 0.5**epoch)

    found = hvd.allgather_object((lambda x: x + 1, Local))[0]
    assert (found[0](1), found[1].rate(2)) == (2, 0.25)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(AttributeError, match="local object"):
        hvd.broadcast_object(Local)


def test_root_outside_the_world_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^broadcast received invalid root rank 1"):
        hvd.broadcast_object(1, root_rank=1)
