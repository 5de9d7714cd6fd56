"""Which of the states counts that ranks have where a world failed within a step."""

from __future__ import annotations

from lightcc.elastic._endings import Ending, Offer, choose, find_marks, fitting
from lightcc.elastic._parts import About, Stamp

BEFORE, NOW = Stamp(3, 6), Stamp(3, 7)


def ended(stamp: Stamp, version: int) -> Offer:
    return Offer(stamp, version, is_ending=True, is_marked=True)


def part(stamp: Stamp, version: int, *, is_marked: bool = False) -> Offer:
    return Offer(stamp, version, is_ending=False, is_marked=is_marked)


def test_all_go_on_from_the_commit_of_the_state_that_they_have() -> None:
    offers = [[ended(BEFORE, 11)], [ended(NOW, 12)], [], [ended(BEFORE, 11)]]
    assert choose(offers, 12) == NOW
    assert find_marks(offers, NOW) == 1
    offers[1] = []  # Its rank died before it passed its state on.
    assert choose(offers, 11) == BEFORE
    assert find_marks(offers, BEFORE) == 0


def test_nobody_has_anything_of_another_state() -> None:
    assert choose([[ended(NOW, 12)], []], 13) is None
    assert choose([[], []], 1) is None


def test_the_world_counts_in_which_most_ranks_have_something() -> None:
    later = Stamp(4, 0)
    began_again = [ended(later, 12), part(NOW, 12, is_marked=True)]
    # The second rank has not begun in the later world, and has not heard how far others had come.
    offers = [began_again, [ended(BEFORE, 11)]]
    assert choose(offers, 12) == NOW
    assert find_marks(offers, NOW) == 0
    assert choose([began_again, began_again], 12) == later
    assert find_marks([began_again, began_again], later) == 0


def test_parts_need_no_marks() -> None:
    offers = [[part(NOW, 12)], [part(NOW, 12)], []]
    assert choose(offers, 12) == NOW
    assert find_marks(offers, NOW) is None


def test_an_ending_is_not_that_of_ranks_that_have_moved_on() -> None:
    moved = Stamp(3, 7, 1)
    both = [ended(NOW, 12), part(moved, 12)]
    assert choose([both, both], 12) == moved
    assert find_marks([both, both], moved) is None
    assert choose([[ended(NOW, 12)], both], 12) == NOW
    assert find_marks([[ended(NOW, 12)], both], NOW) == 0


def test_each_tensor_is_taken_as_far_as_it_had_come() -> None:
    states = {
        "ahead": {(4, 4): b"before", (5, 5): b"after"},
        "behind": {(4, 4): b"now", (5, 5): b"cut off"},
        "void": {(5, 4): b"after", (4, 4): b"before"},
        "twice": {(6, 6): b"after", (5, 5): b"between"},
        "new": {(1, 1): b"after", (0, 0): b"nothing"},
    }
    marked = {"ahead": (4, 4), "behind": (4, 4), "void": (4, 4), "twice": (4, 4), "gone": (4, 4)}
    ending = Ending(About(NOW, 0, 2, (2, 0, 1, 0), 0), 12, marked, states)
    assert ending.tensors() == {*states, "gone"}
    assert fitting(ending, marked) == {"ahead": b"before", "behind": b"now", "void": b"before"}
    finished = dict.fromkeys(("ahead", "behind"), (5, 5)) | {"new": (1, 1), "void": (5, 4)}
    assert fitting(ending, finished) == {
        "ahead": b"after",
        "behind": b"cut off",
        "new": b"after",
        "void": b"after",
    }
