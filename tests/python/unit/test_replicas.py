"""Comparing replicas: which parts are looked at, and who differs."""

from __future__ import annotations

import numpy as np
import pytest

import lightcc as hvd
from lightcc.elastic._replicas import SAMPLE, digest, odd_ranks, sample
from lightcc.elastic._state import ObjectState


def test_every_element_is_looked_at_in_some_turn() -> None:
    for count in (1, SAMPLE, 3 * SAMPLE + 17):
        flat = np.arange(count)
        seen: set[int] = set()
        for turn in range(max(1, count // SAMPLE)):
            part = sample(flat, count, turn)
            assert len(part) <= 2 * SAMPLE
            seen.update(part.tolist())
        assert len(seen) == count


def test_who_differs_is_named_by_majority() -> None:
    right, wrong, other = b"right", b"wrong", b"other"
    assert odd_ranks([right]) == []
    assert odd_ranks([right] * 4) == []
    assert odd_ranks([right, wrong, right]) == [1]
    assert odd_ranks([wrong, right, other, right, right]) == [0, 2]
    for digests in ([right, wrong], [right, wrong, other], [right, right, wrong, wrong]):
        with pytest.raises(RuntimeError, match="nobody knows which one is right"):
            odd_ranks(digests)


def state_of(**objects: object) -> ObjectState:
    return ObjectState(lambda value: value, lambda: 0, **objects)


def test_arrays_count_and_what_is_each_ranks_own_does_not() -> None:
    def of(**objects: object) -> bytes:
        return digest(state_of(**objects).samples(0))

    array = np.arange(5.0)
    assert of(a=array, b=3) == of(a=array.copy(), b=4)
    assert of(a=array) != of(a=array + 1e-9)
    assert of(a=array, b=np.array([{}])) == of(a=array, b=np.array([{}]))


def test_what_cannot_be_checked_is_refused() -> None:
    with pytest.raises(ValueError, match="check_replicas=-1: must be a number of commits, or 0"):
        hvd.elastic.run(check_replicas=-1)

    @hvd.elastic.run(check_replicas=1)
    def train(state: ObjectState) -> None:
        del state

    with pytest.raises(ValueError, match="check_replicas does not go with this ObjectState"):
        train(state_of(step=0))
