"""What is said of what compression had kept back, where another world begins."""

from __future__ import annotations

import logging

import pytest

from lightcc.elastic._parts import About, Held, Stamp
from lightcc.elastic._reports import Report, is_whole, own_parts, tell

STAMP, EARLIER = Stamp(3, 7), Stamp(3, 6)


def about(rank: int, length: int = 5, stamp: Stamp = STAMP) -> About:
    return About(stamp, rank, 3, (3, rank, 1, 0), length)


def report(
    *parts: About,
    entrusted: tuple[About, ...] = (),
    is_grid: bool = True,
    is_lost: bool = False,
    sets: int = 0,
) -> Report:
    return Report(0, (STAMP,), parts, entrusted, "", (2, 0, 1, 0), is_grid, is_lost, sets)


def held(*ranks: int, length: int = 5) -> dict[int, Held]:
    return {rank: Held(about(rank, length), rank, is_own=True) for rank in ranks}


def test_a_part_of_its_own_rank_comes_before_one_that_was_entrusted() -> None:
    reports = [report(about(0), entrusted=(about(1), about(2))), report(about(1))]
    found = own_parts(reports, [STAMP])[STAMP]
    assert {rank: (it.holder, it.is_own) for rank, it in found.items()} == {
        0: (0, True),
        1: (1, True),
        2: (0, False),
    }
    assert is_whole(found)


def test_parts_of_other_stamps_are_left_out() -> None:
    reports = [report(about(0), about(0, stamp=EARLIER)), report(about(1, stamp=EARLIER))]
    assert list(own_parts(reports, [STAMP])) == [STAMP]
    assert not is_whole(own_parts(reports, [STAMP])[STAMP])
    assert own_parts(reports, []) == {}
    assert not is_whole({})


NONE_OF_STEP = "on 2 ranks is lost: there is none of the step from which all go on"
NO_AGENT = "is lost: no agent that is left keeps it of commit 4"
FAILED = "on 1 of 3 ranks is lost: they have failed, and no agent that is left keeps it of "
OF_TENSORS = "of 2 tensors is lost: not all ranks have it of the step from which all go on"
ONE_HOST = "stays so until ranks are on several hosts again: all share a host now, between which"


@pytest.mark.parametrize(
    ("reports", "found", "commit", "num_lost", "is_kept", "said"),
    [
        ([report()] * 2, {}, 0, 0, False, []),
        ([report(is_lost=True)] * 2, {}, 0, 0, False, [NONE_OF_STEP]),
        ([report(is_lost=True)] * 2, {}, 4, 0, True, [NO_AGENT]),
        ([report(is_lost=True)] * 2, {}, 4, 0, False, [NONE_OF_STEP]),
        ([report()] * 2, held(0, 1, 2), 0, 0, False, []),
        ([report()] * 2, held(0, 2, length=0), 0, 0, False, []),
        ([report()] * 2, held(0, 2), 0, 0, False, [FAILED + "the last commit"]),
        ([report()] * 2, held(0, 2), 4, 0, True, [FAILED + "commit 4"]),
        ([report()] * 2, held(0, 1, 2), 0, 2, False, [OF_TENSORS]),
        ([report(is_grid=False)], held(0, 1, 2), 0, 0, False, [ONE_HOST]),
        ([report(), report(sets=1)], {}, 0, 0, False, ["kept back in process sets is lost: "]),
    ],
)
def test_what_is_lost_is_said_and_nothing_else(
    reports: list[Report],
    found: dict[int, Held],
    commit: int,
    num_lost: int,
    is_kept: bool,
    said: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        tell(reports, found, commit, num_lost, is_kept=is_kept)
    lines = caplog.messages
    assert len(lines) == len(said)
    for line, part in zip(lines, said, strict=True):
        assert line.startswith("what compression kept back ")
        assert part in line
