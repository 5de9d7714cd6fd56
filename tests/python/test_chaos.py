"""A few runs of tools/chaos_elastic.py, with seeds that move with the commit (CHECK_SEED)."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lightcc as hvd
from lightcc.testing import spawn_ranks

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from chaos_kept_back import ELEMENTS, Ledger, find_lost, is_unclear
from chaos_notes import Notes, losses
from chaos_story import ALL, KINDS, LAG, OF_LINKS, draw

TOOLS = Path(__file__).resolve().parents[2] / "tools"
RUNS = 12
PATIENCE_S = 400


@pytest.mark.multiproc
@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S + 20)
def test_jobs_outlive_what_happens_to_them() -> None:
    first = RUNS * int(os.environ.get("CHECK_SEED", "0"))
    argv = [sys.executable, str(TOOLS / "chaos_elastic.py"), "--first", str(first)]
    argv += ["--runs", str(RUNS)]
    run = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert run.returncode == 0, run.stderr


def test_a_seed_has_one_story_and_seeds_have_all_kinds() -> None:
    stories = [draw(seed, namespaces=True) for seed in range(200)]
    assert stories == [draw(seed, namespaces=True) for seed in range(200)]
    assert {event.kind for story in stories for event in story.events} == {*KINDS, ALL, LAG}
    for seed in range(200):
        story = draw(seed, namespaces=False)
        assert not story.namespaces
        assert {event.kind for event in story.events}.isdisjoint(OF_LINKS)


def test_steps_that_are_made_again_are_counted(tmp_path: Path) -> None:
    (tmp_path / "notes.0").write_text(
        "start 0.0 100 a\nbegin 0.1 1 0 2\nstep 0.2 1 1 2\nstep 0.3 1 2 2\nstep 0.4 1 3 2\n"
        "begin 0.5 4 1 1\nstep 0.6 4 2 1\nstep 0.7 4 3 1\nwrong 0.7 sparse 3\nresult 0.8 3\nst"
    )
    (tmp_path / "notes.1").write_text("start 0.0 101 b\nstep 0.2 1 1 2\n")
    notes = Notes(tmp_path)
    notes.read()
    assert losses(notes) == {1: 0, 4: 2}
    assert (notes.finished, notes.epoch, notes.results) == (5, 4, {0: 3})
    assert notes.wrong == ["worker 0 has a wrong sparse at step 3"]
    assert (notes.workers[0].epoch, notes.workers[1].epoch) == (4, 1)


def rests(**kept: list[int]) -> dict[int, np.ndarray]:
    """Returns what workers keep back: the first elements of each."""
    found = {}
    for name, first in kept.items():
        rest = np.zeros(ELEMENTS, np.float32)
        rest[: len(first)] = first
        found[int(name.removeprefix("w"))] = rest
    return found


TWO_OF_THREE = "what compression kept back on 2 of 3 ranks is lost: they have failed, and no"


@pytest.mark.parametrize(
    ("now", "texts", "lost"),
    [
        (rests(w0=[1, 2], w1=[3, 4], w2=[5, 6]), [], 0),
        (rests(w1=[3, 4], w7=[6, 8]), [], 0),  # Others have what is gone.
        (rests(w0=[1, 2], w1=[3, 4]), [], None),
        (rests(w0=[1, 2]), [TWO_OF_THREE], 2),
        (rests(w7=[5, 6]), [TWO_OF_THREE], 2),
        (rests(w0=[1, 2], w1=[3, 4]), [TWO_OF_THREE], None),  # One's is missing.
        (rests(w2=[1, 2]), [TWO_OF_THREE], None),  # That of one who is there.
        (rests(w0=[1, 3]), [TWO_OF_THREE], None),  # Nobody has had that.
        (rests(w0=[1, 2]), [TWO_OF_THREE.replace("3", "4")], None),
        (rests(w0=[1, 2]), [TWO_OF_THREE + " agent that is left keeps it of commit 4"], 2),
        (rests(w0=[0]), ["it is lost: there is none of the step from which all go on"], 3),
        (rests(w0=[0]), ["it is lost: no agent that is left keeps it of commit 17"], 3),
        (rests(w0=[1]), ["it is lost: no agent that is left keeps it of commit 17"], None),
    ],
)
def test_what_is_missing_of_what_was_kept_back_is_what_was_said(
    now: dict[int, np.ndarray], texts: list[str], lost: int | None
) -> None:
    before = rests(w0=[1, 2], w1=[3, 4], w2=[5, 6])
    assert find_lost(before, now, texts) == lost


@pytest.mark.parametrize(
    ("begun", "epoch", "kept_epoch", "unclear"),
    [
        ([0, 0], 1, 0, False),
        ([2, 2, 0], 3, 2, False),  # From the last world's commit.
        ([3, 2, 0], 4, 2, True),  # The third world has lost something before its first commit.
        ([0, 0], 3, 2, False),  # All are new, and nobody has begun a world in between.
        ([0, 0], 4, 2, True),
    ],
)
def test_a_world_that_ended_before_its_first_commit_makes_it_unclear_what_there_was(
    begun: list[int], epoch: int, kept_epoch: int, unclear: bool
) -> None:
    assert is_unclear(begun, epoch, kept_epoch) is unclear


def keep_count() -> tuple[list[str], bool]:
    """Returns what a ledger complains of: nothing, and then of a rank's step of another one."""
    hvd.init()
    said: list[str] = []
    ledger = Ledger(hvd.rank(), lambda *words: said.append(" ".join(map(str, words))))
    state: Any = types.SimpleNamespace(step=0, **Ledger.first())
    ledger.begin(state)
    for _ in range(5):
        ledger.step(state)
        state.step += 1
    kept = bool(sum(state.kept.values()).any())
    ledger.begin(state)
    ledger.end(state)
    assert said == ["kept 0 0"], said
    state.step += hvd.rank()
    ledger.step(state)
    return said[1:], kept


@pytest.mark.multiproc
def test_a_rank_that_puts_in_something_else_is_noticed() -> None:
    said = (["wrong sum-of-sent-and-kept-back 5"], True)
    assert spawn_ranks(keep_count, 2, hosts=[0, 1], env={"LIGHT_TOPK_THRESHOLD": "0"})[0] == said
