"""What compression keeps back, where ranks of an elastic job fail, leave and come.

Inputs are whole numbers, so that sums are exact. What was sent and what is kept back are what was
put in, and the last step sends all that is kept back.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from elastic_training import PATIENCE_S

LIGHTCCRUN = str(Path(sys.executable).parent / "lightccrun")

TRAINING = """
import json, os, signal, sys, threading, time
from pathlib import Path

worker, folder = os.environ["LIGHT_WORKER"], Path(sys.argv[2])
about = json.loads(sys.argv[1])
story, options = about["story"], about["options"]
at, what = story.get(worker, [-1, ""])
is_silent = what.startswith("is silent")  # So that it keeps nothing back.
is_forward = options.get("recovery") == "forward"
COUNT, TENSORS = 3000, 4

# Each rank is a host of its own, or each two are.
host = int(worker) // 2 if about["pairs"] else worker
os.environ["LIGHT_HOST_ID"] = str(host)
os.environ["LIGHT_TOPK_THRESHOLD"] = "0"
import numpy as np
import lightcc as hvd

hvd.init()
state = hvd.elastic.ObjectState(
    hvd.broadcast_object, hvd.rank, step=0, sizes=[],
    given=np.zeros(COUNT, np.float32), sent=np.zeros(COUNT, np.float32),
)

def reduce_with(ratio, array, dies=""):
    topk = hvd.Compression.topk(ratio)
    sums = []
    for i, part in enumerate(np.split(array, TENSORS)):
        if dies == "is killed before the last tensor of a step" and i == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if dies == "is silent and killed in a step" and i == 2:  # It is on the way, or has come.
            threading.Timer(0.001, os.kill, [os.getpid(), signal.SIGKILL]).start()
        sums.append(hvd.allreduce(part, op=hvd.Sum, name=f"gradient.{i}", compression=topk))
    return np.concatenate(sums)

@hvd.elastic.run(**options)
def train(state):
    state.sizes = [*state.sizes, hvd.size()]
    processes = hvd.allgather_object(os.getpid(), name="processes")
    while state.step < 40:
        if state.step == at and what == "changes hosts and kills all":
            (folder / "changed").touch()
        if state.step == at and what == "changes hosts":
            (folder / "changed").touch()
            time.sleep(2)
        if state.step == at and what in ("kills all", "changes hosts and kills all"):
            for process in set(processes) - {os.getpid()}:
                os.kill(process, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        if state.step == at and what == "kills all and its agent":
            for process in set(processes) - {os.getpid()}:
                os.kill(process, signal.SIGKILL)
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
        if state.step == at and what == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        numbers = np.random.default_rng(1000 * state.step + hvd.rank())
        gradient = numbers.integers(-50, 50, COUNT).astype(np.float32) * (not is_silent)
        state.given = state.given + hvd.allreduce(gradient, op=hvd.Sum, name="dense")
        dies = what if state.step == at else ""
        state.sent = state.sent + reduce_with(0.01, gradient, dies)
        state.step += 1
        if state.step % 2 == 0 or is_forward:
            state.commit()
        time.sleep(0.01)
    kept = float(np.abs(state.given - state.sent).max())
    sent = state.sent + reduce_with(1.0, np.zeros(COUNT, np.float32))
    return kept, float(np.abs(state.given - sent).max())

kept, missing = train(state)
result = {"kept": kept, "missing": missing, "sizes": state.sizes}
(folder / f"result.{worker}").write_text(json.dumps(result))
"""
LOST = "what compression kept back on"
HOSTS = "if [ -e changed ]; then printf '%s\\n' {1}; else printf '%s\\n' {0}; fi"


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in folder.glob("result.*")]


def run_job(
    folder: Path,
    story: dict[str, list[object]],
    *flags: str,
    pairs: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(TRAINING)
    soon = ("--blacklist-cooldown-range", "1", "1")
    about = json.dumps({"story": story, "pairs": pairs, "options": options})
    argv = [LIGHTCCRUN, "--verbose", *soon, *flags, sys.executable, str(script), about]
    return subprocess.run(
        [*argv, str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def check(folder: Path, job: subprocess.CompletedProcess[str]) -> list[list[int]]:
    """Checks that nothing is lost; returns the sizes of each rank's worlds."""
    assert job.returncode == 0, job.stderr
    found = results(folder)
    assert found, job.stderr
    for about in found:
        assert about["kept"] > 0, "nothing was kept back before the last step"
        assert about["missing"] == 0, job.stderr
    assert LOST not in job.stderr
    return [about["sizes"] for about in found]


def discovery(folder: Path, before: str, after: str) -> list[str]:
    script = folder / "hosts.sh"
    script.write_text(f"#!/bin/sh\ncd {folder}\n{HOSTS.format(before, after)}\n")
    script.chmod(0o755)
    return ["--host-discovery-script", str(script)]


@pytest.mark.parametrize(("before", "after"), [(3, 2), pytest.param(2, 3, marks=pytest.mark.slow)])
def test_nothing_is_lost_where_all_ranks_die_and_fewer_or_more_go_on(
    tmp_path: Path, before: int, after: int
) -> None:
    flags = discovery(tmp_path, f"localhost:{before}", f"localhost:{after}")
    story = {"0": [20, "changes hosts and kills all"]}
    sizes = ("-np", str(before), "--min-np", "2", "--max-np", "3")
    job = run_job(tmp_path, story, *flags, *sizes, keep_commits=1)
    for seen in check(tmp_path, job):
        assert seen[0] == before
        assert seen[-1] == after
    assert "all begin from commit 11, which the agent of host localhost keeps" in job.stderr


def test_nothing_is_lost_with_all_ranks_and_one_of_two_hosts(tmp_path: Path) -> None:
    flags = ["-np", "2", "--min-np", "1", "-H", "localhost:1,127.0.0.1:1"]
    story = {"0": [20, "kills all and its agent"]}
    job = run_job(tmp_path, story, *flags, keep_commits=1)
    check(tmp_path, job)
    assert "host localhost was lost" in job.stderr
    assert "all begin from commit 11, which the agent of host 127.0.0.1" in job.stderr


def test_what_a_rank_kept_back_that_died_is_not_lost(tmp_path: Path) -> None:
    job = run_job(tmp_path, {"1": [21, "is killed"]}, "-np", "3", "--min-np", "2", keep_commits=1)
    for seen in check(tmp_path, job):
        assert seen[0] == 3
    assert "all begin from commit" not in job.stderr


def test_ranks_that_come_leave_what_is_kept_back_as_it_is(tmp_path: Path) -> None:
    flags = discovery(tmp_path, "localhost:2", "localhost:3")
    sizes = ("-np", "2", "--min-np", "2", "--max-np", "3")
    job = run_job(tmp_path, {"0": [10, "changes hosts"]}, *flags, *sizes)
    for seen in check(tmp_path, job):
        assert seen[-1] == 3


@pytest.mark.slow  # One more way to end a world; the others are quick.
def test_ranks_that_leave_hand_over_what_they_have_kept_back(tmp_path: Path) -> None:
    flags = discovery(tmp_path, "localhost:2 127.0.0.1:2", "localhost:2")
    job = run_job(tmp_path, {"0": [10, "changes hosts"]}, *flags, "-np", "4", "--min-np", "2")
    for seen in check(tmp_path, job):
        assert seen == [4, 2]


def test_what_no_agent_keeps_is_lost_with_its_rank_and_said_to_be(tmp_path: Path) -> None:
    job = run_job(tmp_path, {"1": [21, "is killed"]}, "-np", "3", "--min-np", "2")
    assert job.returncode == 0, job.stderr
    assert f"{LOST} 1 of 3 ranks is lost: they have failed, and no agent that is left" in job.stderr
    assert {about["missing"] > 0 for about in results(tmp_path)} == {True}


KILLED = "is silent and killed in a step"


@pytest.mark.parametrize(
    ("story", "pairs", "lost"),
    [
        ({"1": [20, KILLED]}, False, "1 of 3"),
        pytest.param(
            {"0": [20, KILLED], "2": [20, KILLED]}, False, "2 of 4", marks=pytest.mark.slow
        ),
        # From 2 x 2 to three hosts of one.
        ({"2": [20, KILLED], "3": [99, "is silent"]}, True, "1 of 4"),
    ],
)
def test_survivors_of_a_step_that_is_made_again_keep_what_they_kept_back(
    tmp_path: Path, story: dict[str, list[object]], *, pairs: bool, lost: str
) -> None:
    size = lost[-1]
    job = run_job(tmp_path, story, "-np", size, "--min-np", "2", pairs=pairs, recovery="forward")
    assert job.returncode == 0, job.stderr
    assert results(tmp_path), job.stderr
    for about in results(tmp_path):
        assert about["sizes"][0] == int(size)
        assert about["kept"] > 0
        assert about["missing"] == 0, job.stderr
    assert job.stderr.count(LOST) == 1
    assert f"{LOST} {lost} ranks is lost: they have failed, and no agent" in job.stderr


@pytest.mark.parametrize(
    ("at", "what", "keep"),
    [
        (21, "is killed", 1),
        (20, "is killed before the last tensor of a step", 2),
    ],
)
def test_what_a_rank_kept_back_is_not_lost_where_the_last_commit_is_kept(
    tmp_path: Path, at: int, what: str, keep: int
) -> None:
    flags = ("-np", "3", "--min-np", "2")
    story: dict[str, list[object]] = {"1": [at, what]}
    job = run_job(tmp_path, story, *flags, recovery="forward", keep_commits=keep)
    for seen in check(tmp_path, job):
        assert seen[0] == 3
    assert "all begin from commit" not in job.stderr


@pytest.mark.slow  # One more commit; with others, and where training rolls back, it is quick.
def test_what_a_rank_kept_back_since_the_last_commit_that_is_kept_is_lost(tmp_path: Path) -> None:
    flags = ("-np", "3", "--min-np", "2")
    job = run_job(tmp_path, {"1": [21, "is killed"]}, *flags, recovery="forward", keep_commits=2)
    assert job.returncode == 0, job.stderr
    assert job.stderr.count(LOST) == 1
    assert f"{LOST} 1 of 3 ranks is lost: they have failed, and no agent that is left" in job.stderr
    assert {about["missing"] > 0 for about in results(tmp_path)} == {True}
