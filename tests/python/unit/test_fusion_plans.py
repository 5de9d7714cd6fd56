"""Plans of gradients: schedules that parse or do not, and what they cut."""

from __future__ import annotations

import pytest

from lightcc.fusion.plans import parse_positions, parse_scopes, piecewise, scopewise

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
    assert piecewise("abcdefgh", [0, 2, 6]) == [list("ab"), list("cdef"), list("gh")]
    assert piecewise("abc", [0]) == [list("abc")]
    assert piecewise("abc", [0, 2, 600]) == [list("ab"), ["c"]]
    assert piecewise("", [0, 2]) == []


def test_scopes_are_different_words() -> None:
    assert parse_scopes("encoder;decoder.0", "it") == ["encoder", "decoder.0"]
    assert parse_scopes("", "it") == []


@pytest.mark.parametrize("schedule", [";", "a;", "a;;b", "a;a", "a; b", " ", None, 3])
def test_other_scopes_are_refused_with_an_example(schedule: str) -> None:
    with pytest.raises(ValueError, match=r"^where is .*prefixes of names.*'encoder;decoder'"):
        parse_scopes(schedule, "where")


def test_a_scope_is_a_prefix_that_ends_where_a_part_of_the_name_does() -> None:
    assert scopewise(NAMES, ["conv1"]) == [
        ["conv1.weight", "conv1.bias"],
        ["conv10.weight", "head.weight", "head.bias"],
    ]
    assert scopewise(NAMES, ["head.bias", "conv1."]) == [
        ["head.bias"],
        ["conv1.weight", "conv1.bias"],
        ["conv10.weight", "head.weight"],
    ]
    assert scopewise(["a/w:0", "a:0", "ab/w:0"], ["a"]) == [["a/w:0", "a:0"], ["ab/w:0"]]


def test_the_first_scope_that_matches_counts_and_empty_ones_vanish() -> None:
    assert scopewise(NAMES, ["head", "head.bias", "tail"]) == [
        ["head.weight", "head.bias"],
        ["conv1.weight", "conv1.bias", "conv10.weight"],
    ]
    assert scopewise(NAMES, []) == [NAMES]
    assert scopewise([], ["head"]) == []
