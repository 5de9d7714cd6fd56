"""Plans of gradients: schedules that parse or do not, and what they cut."""

from __future__ import annotations

import pytest

from lightcc.fusion.plans import (
    BATCH_BYTES,
    batches,
    evenly,
    parse_positions,
    parse_scopes,
    piecewise,
    scopewise,
)

NAMES = ["conv1.weight", "conv1.bias", "conv10.weight", "head.weight", "head.bias"]


@pytest.mark.parametrize(
    ("schedule", "positions"),
    [("2;6", [0, 2, 6]), ("0", [0]), ("0;3", [0, 3]), ("7", [0, 7]), ("1;2;3", [0, 1, 2, 3])],
)
def test_positions_are_ascending_numbers(schedule: str, positions: list[int]) -> None:
    assert parse_positions(schedule, "it") == positions


@pytest.mark.parametrize(
    "schedule", ["", ";", "2;", "6;2", "2;2", "-1", "1.5", "two", "2,6", " 2", "\u00b2", None, 26]
)
def test_other_positions_are_refused_with_an_example(schedule: str) -> None:
    with pytest.raises(ValueError, match=r"^where is .*ascending positions.*'2;6'"):
        parse_positions(schedule, "where")


def test_pieces_begin_at_the_positions() -> None:
    assert piecewise(8, [0, 2, 6]) == [[0, 1], [2, 3, 4, 5], [6, 7]]
    assert piecewise(3, [0]) == [[0, 1, 2]]
    assert piecewise(3, [0, 2, 600]) == [[0, 1], [2]]
    assert piecewise(0, [0, 2]) == []


def test_scopes_are_different_words() -> None:
    assert parse_scopes("encoder;decoder.0", "it") == ["encoder", "decoder.0"]
    assert parse_scopes("", "it") == []


@pytest.mark.parametrize("schedule", [";", "a;", "a;;b", "a;a", "a; b", " ", None, 3])
def test_other_scopes_are_refused_with_an_example(schedule: str) -> None:
    with pytest.raises(ValueError, match=r"^where is .*prefixes of names.*'encoder;decoder'"):
        parse_scopes(schedule, "where")


def in_scopes(names: list[str], scopes: list[str]) -> list[list[str]]:
    return [[names[i] for i in bucket] for bucket in scopewise(names, scopes)]


def test_a_scope_is_a_prefix_that_ends_where_a_part_of_the_name_does() -> None:
    assert in_scopes(NAMES, ["conv1"]) == [
        ["conv1.weight", "conv1.bias"],
        ["conv10.weight", "head.weight", "head.bias"],
    ]
    assert in_scopes(NAMES, ["head.bias", "conv1."]) == [
        ["head.bias"],
        ["conv1.weight", "conv1.bias"],
        ["conv10.weight", "head.weight"],
    ]
    assert in_scopes(["a/w:0", "a:0", "ab/w:0"], ["a"]) == [["a/w:0", "a:0"], ["ab/w:0"]]


def test_the_first_scope_that_matches_counts_and_empty_ones_vanish() -> None:
    assert in_scopes(NAMES, ["head", "head.bias", "tail"]) == [
        ["head.weight", "head.bias"],
        ["conv1.weight", "conv1.bias", "conv10.weight"],
    ]
    assert in_scopes(NAMES, []) == [NAMES]
    assert in_scopes([], ["head"]) == []


def test_the_same_name_twice_is_two_gradients_of_one_scope() -> None:
    assert scopewise(["a", "b", "a"], ["a"]) == [[0, 2], [1]]


def test_even_groups_differ_by_one_at_most_and_none_is_empty() -> None:
    assert evenly("abcdefg", 3) == ["ab", "cd", "efg"]
    assert evenly("ab", 5) == ["a", "b"]
    assert evenly("ab", 0) == evenly("", 3) == []


def test_batches_are_full_and_one_of_unknown_size_is_alone() -> None:
    half = BATCH_BYTES // 2
    assert batches([half, half, 1]) == [[0, 1], [2]]
    assert batches([1, None, 1]) == [[0], [1], [2]]
    assert batches([3 * half, 0, half]) == [[0], [1, 2]]
    assert batches([0, 0, 0]) == [[0, 1, 2]]
    assert batches([]) == []
