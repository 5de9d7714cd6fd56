"""Commits that the agents of hosts keep: all ranks are killed, and new ones go on from there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import elastic_training
import pytest
from elastic_training import UNDISTURBED, events_in, results

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

SOON = ("--blacklist-cooldown-range", "1", "1")


def run_job(
    folder: Path, story: dict[str, list[object]], *flags: str
) -> subprocess.CompletedProcess[str]:
    return elastic_training.run_job(folder, story, *SOON, *flags)


def beginnings(folder: Path) -> dict[str, int]:
    """At which step each worker came last into the training function."""
    return {path.suffix[1:]: int(path.read_text()) for path in folder.glob("began.*")}


@pytest.fixture(autouse=True)
def _kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEEP_COMMITS", "1")


def test_a_job_goes_on_from_the_last_commit_when_all_ranks_are_killed(tmp_path: Path) -> None:
    events = tmp_path / "events"
    job = run_job(
        tmp_path, {"0": [20, "kills all"]}, "-np", "3", "--min-np", "3", "--events", str(events)
    )
    assert job.returncode == 0, job.stderr
    assert (
        "no worker that has the state of training is left: all begin from commit 11, which the "
        "agent of host localhost keeps"
    ) in job.stderr
    found = results(tmp_path)
    assert len(found) == 3, job.stderr
    for worker, about in found.items():
        assert about["weights"] == UNDISTURBED
        assert beginnings(tmp_path)[worker] == 20
    lines = events_in(events)
    taken = [line for line in lines if line["event"] == "commit_taken_up"]
    assert [(line["commit"], line["host"]) for line in taken] == [(11, "localhost")]


def test_a_commit_outlives_all_ranks_and_one_of_two_hosts(tmp_path: Path) -> None:
    flags = ["-np", "2", "--min-np", "1", "-H", "localhost:1,127.0.0.1:1"]
    job = run_job(tmp_path, {"0": [20, "kills all and its agent"]}, *flags)
    assert job.returncode == 0, job.stderr
    assert "host localhost was lost" in job.stderr
    assert re.search(r"all begin from commit 11, which the agent of host 127.0.0.1", job.stderr)
    found = results(tmp_path)
    assert found
    for worker, about in found.items():
        assert about["weights"] == UNDISTURBED
        assert beginnings(tmp_path)[worker] == 20


def test_what_fails_in_the_same_step_each_time_ends_the_job(tmp_path: Path) -> None:
    job = run_job(tmp_path, {"all": [20, "kills all"]}, "-np", "2", "--min-np", "2")
    assert job.returncode != 0
    assert "commit 11 is followed by a failure each time" in job.stderr, job.stderr
    assert job.stderr.count("all begin from commit 11") == 3
    assert results(tmp_path) == {}


def test_without_kept_commits_the_death_of_all_ranks_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEEP_COMMITS", "0")
    job = run_job(tmp_path, {"all": [20, "kills all"]}, "-np", "2", "--min-np", "2")
    assert job.returncode != 0
    assert "begin from commit" not in job.stderr
    assert results(tmp_path) == {}


def test_a_failure_has_the_commit_kept_from_which_all_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEEP_COMMITS", "4")  # The first, the fifth, the ninth ...
    story: dict[str, list[object]] = {"1": [10, "is killed"], "0": [13, "kills all"]}
    job = run_job(tmp_path, story, "-np", "3", "--min-np", "2")
    assert job.returncode == 0, job.stderr
    assert "all begin from commit 6," in job.stderr
    for about in results(tmp_path).values():
        assert about["weights"] == UNDISTURBED
