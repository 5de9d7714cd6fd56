"""What compression keeps back on single ranks: parts, where they go, and what agents keep."""

from __future__ import annotations

import io
import itertools
import logging
import os
import pickle
import random
import types
from typing import TYPE_CHECKING, Any

import pytest

import lightcc as hvd
from lightcc._discovery import elastic
from lightcc._discovery.kept_commits import KeptCommits
from lightcc.elastic._kept_back import KeptBack
from lightcc.elastic._parts import (
    About,
    Held,
    Part,
    Stamp,
    divide,
    next_agents,
    next_hosts,
    read_parts,
    write_parts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightcc.elastic._parts import Position

STAMP = Stamp(3, 7)
GRIDS = [(2, 1), (3, 1), (5, 1), (2, 2), (3, 2), (2, 3), (1, 2)]


def positions(blocks: int, members: int) -> list[Position]:
    return [(blocks, b, members, m) for b in range(blocks) for m in range(members)]


def part_of(rank: int, size: int = 3, data: bytes = b"", stamp: Stamp = STAMP) -> Part:
    return Part(About(stamp, rank, size, (size, rank, 1, 0), len(data)), data)


# -- Where parts go -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("before", "after"), list(itertools.product(GRIDS, GRIDS)))
def test_each_part_counts_once_for_each_element(
    before: tuple[int, int], after: tuple[int, int], seed: int
) -> None:
    pick = random.Random(seed)
    old, new = positions(*before), positions(*after)
    held = {}
    for rank, position in enumerate(old):
        about = About(STAMP, rank, len(old), position, 1)
        holder = pick.randrange(len(new))
        held[rank] = Held(about, holder, is_own=pick.random() < 0.5)
    if seed == 4:
        del held[pick.randrange(len(old))]
    routes = divide(held, new)
    assert {route.target for route in routes} == set(range(len(new)))  # All know the tensors.
    assert all(route.holder == held[route.part].holder for route in routes)
    for rank in held:
        targets = [new[route.target] for route in routes if route.part == rank and route.counts]
        assert len({block for _, block, _, _ in targets}) == 1
        members = [member for _, _, _, member in targets]
        same = before[1] == after[1]
        assert members == ([old[rank][3]] if same else list(range(after[1])))


def test_who_is_still_there_keeps_its_own() -> None:
    old = positions(4, 1)
    held = {
        rank: Held(About(STAMP, rank, 4, old[rank], 1), holder, is_own)
        for rank, holder, is_own in [(0, 1, False), (1, 0, True), (2, 1, True), (3, 1, False)]
    }
    routes = divide(held, positions(2, 1))
    assert [(it.part, it.target) for it in routes if it.counts] == [(0, 0), (1, 0), (2, 1), (3, 1)]


def test_a_block_that_gets_nothing_is_shown_the_tensors() -> None:
    held = {0: Held(About(STAMP, 0, 1, (1, 0, 1, 0), 1), 0, is_own=True)}
    routes = divide(held, positions(2, 1))
    assert [(it.target, it.counts) for it in routes] == [(0, True), (1, False)]


def test_parts_are_written_by_the_own_host_and_the_next_one() -> None:
    assert next_agents(["a", "a", "b", "c", "b", ""]) == [
        (0, 2),
        (0, 2),
        (2, 3),
        (3, 0),
        (2, 3),
        (0, 2),
    ]
    assert next_agents(["a", "a"]) == [(0,), (0,)]
    assert next_agents(["", ""]) == [(), ()]


def test_parts_are_entrusted_to_the_next_host() -> None:
    assert next_hosts(["a", "a", "a", "b"]) == [3, 3, 3, 0]
    assert next_hosts(["a", "b", "a", "b", "c"]) == [1, 4, 3, 4, 0]
    assert next_hosts(["", "", ""]) == [1, 2, 0]
    assert next_hosts(["a"]) == [0]


# -- What agents keep -----------------------------------------------------------------------------


def written(*parts: Part, version: int = 5) -> bytes:
    file = io.BytesIO()
    write_parts(file, version, parts)
    return file.getvalue()


def test_parts_are_read_as_they_were_written() -> None:
    alone = Part(About(Stamp(1, 2, 1), 0, 1, None, 0), b"")
    parts = [part_of(0, data=b"zero"), part_of(2, data=b"two" * 1000), alone]
    assert list(read_parts(io.BytesIO(written(*parts, version=9)))) == [(9, it) for it in parts]


def test_a_damaged_part_costs_itself_alone() -> None:
    parts = [part_of(0, data=b"zero"), part_of(1, data=b"one"), part_of(2, data=b"two")]
    whole = written(*parts)
    for at in (whole.index(b"one"), whole.index(b"one") - 1, whole.index(b"zero") + 4 + 8 + 2):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        found = [part.data for _, part in read_parts(io.BytesIO(bytes(damaged)))]
        assert found == [b"zero", b"two"]


def test_nothing_is_read_after_an_end_that_comes_too_early() -> None:
    whole = written(part_of(0, data=b"zero"), part_of(1, data=b"one"))
    for length in range(len(whole)):
        found = [part.data for _, part in read_parts(io.BytesIO(whole[:length]))]
        assert found in ([], [b"zero"])
    too_long = bytearray(whole)
    too_long[whole.index(b"zero") - 5] = 0x7F  # The last byte of the length.
    assert list(read_parts(io.BytesIO(bytes(too_long)))) == []


@pytest.fixture(name="kept")
def _kept() -> Iterator[KeptCommits]:
    made = [os.memfd_create(f"lightcc-commit-parts-{name}") for name in ("index", "a", "b")]
    yield KeptCommits(made[0], (made[1], made[2]))
    for fd in made:
        os.close(fd)


@pytest.fixture(autouse=True)
def _world() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.parametrize(
    ("ranks", "damage", "commit", "lost"),
    [
        ((0, 1, 2), b"", 5, ""),
        ((0, 2), b"", 5, "on 1 of 3 ranks is lost: they have failed, and no agent that is left "),
        ((0, 1, 2), b"part 1", 5, "on 1 of 3 ranks is lost: "),
        ((2,), b"", 5, "on 2 of 3 ranks is lost: "),
        ((0, 1, 2), b"", 6, "is lost: no agent that is left keeps it of commit 6"),
        ((), b"", 5, ""),
    ],
)
def test_what_is_not_there_of_a_commit_is_said(
    kept: KeptCommits,
    caplog: pytest.LogCaptureFixture,
    ranks: tuple[int, ...],
    damage: bytes,
    commit: int,
    lost: str,
) -> None:
    parts = (part_of(rank, data=pickle.dumps({}) + b"part %d" % rank) for rank in ranks)
    data = written(*parts)
    if ranks:
        kept.write(1, lambda file: file.write(data.replace(damage, b"pArt 1") if damage else data))
    with caplog.at_level(logging.WARNING):
        KeptBack().spread(commit, kept)
    assert (lost in caplog.text) if lost else not caplog.text


def test_parts_are_of_the_commit_that_is_read(
    kept: KeptCommits, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def made() -> Any:
        return hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=6)

    fds = [os.memfd_create(f"lightcc-commit-{name}") for name in ("index", "a", "b")]
    commits = KeptCommits(fds[0], (fds[1], fds[2]))
    commits.write(5, made().write_to)
    kept.write(1, lambda file: file.write(written(*map(part_of, range(3)))))
    worker = types.SimpleNamespace(commit=3, kept=commits, kept_parts=kept)  # As was heard of it.
    monkeypatch.setattr(elastic, "worker", lambda: worker)
    state = made()
    with caplog.at_level(logging.WARNING):
        state.begin_from_kept()
        state.spread_kept_back(synchronized=True)
    assert not caplog.text
    for fd in fds:
        os.close(fd)


def test_nothing_is_said_where_nothing_was_kept_back(caplog: pytest.LogCaptureFixture) -> None:
    own = KeptBack()
    with caplog.at_level(logging.WARNING):
        own.spread(0, None)
        own.take()
        own.entrust(None)
        own.take(moved=True)
        own.spread(0, None)
        own.lose()
        own.spread(0, None)
    assert not caplog.text
