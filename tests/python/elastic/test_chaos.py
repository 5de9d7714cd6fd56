"""A few runs of tools/chaos_elastic.py, with seeds that move with the commit (CHECK_SEED)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

from chaos_notes import Notes, losses
from chaos_story import ALL, KINDS, LAG, OF_LINKS, draw

TOOLS = Path(__file__).resolve().parents[3] / "tools"
RUNS = 5
PATIENCE_S = 200


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
