"""Elastic jobs with real processes: ranks are killed, replaced and added while they train."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from dialing import code_of
from elastic_training import LIGHTCCRUN, PATIENCE_S, UNDISTURBED, events_in, results, run_job
from processes import run_to_end

from lightcc.runner import launch

if TYPE_CHECKING:
    from pathlib import Path


def lines_of(said: str) -> list[str]:
    """Returns what the launcher has said of worlds."""
    return re.findall("^lightccrun: (epoch .*)$", said, re.MULTILINE)


def with_a_replacement(tmp_path: Path, what: str) -> dict[str, dict[str, list[float]]]:
    """Returns the results of a job whose worker 3 comes for worker 0, and does `what`."""
    (tmp_path / "wait").touch()  # Until worker 3 takes part.
    story = {"0": [5, "is killed"], "3": [-1, what]}
    job = run_job(tmp_path, story, "-np", "3", "--min-np", "2")
    assert job.returncode == 0, job.stderr
    assert lines_of(job.stderr) == [
        "epoch 2: 2 ranks go on: without worker 0 on localhost (killed by SIGKILL (exit code 137))",
        "epoch 3: 3 ranks go on: with worker 3 on localhost, new",
    ]
    found = results(tmp_path)
    assert set(found) == {"1", "2", "3"}
    for about in found.values():
        assert about["weights"] == UNDISTURBED
        assert about["sizes"] == [3, 2, 3]
    return found


def test_a_replacement_takes_over_the_state_of_the_survivors(tmp_path: Path) -> None:
    found = with_a_replacement(tmp_path, "is awaited")
    assert found["1"]["resets"] == found["1"]["sizes"][1:]
    assert found["3"]["resets"] == []


def test_the_others_train_while_a_newcomer_gets_ready_for_the_training_function(
    tmp_path: Path,
) -> None:
    found = with_a_replacement(tmp_path, "gets ready slowly")
    assert found["3"]["place"] == found["3"]["last"] == [2, 3, 2, 3, 0, 1]
    assert found["3"]["resets"] == []


@pytest.mark.parametrize("dies", ["passing on", "taking over"])
def test_the_death_of_a_rank_that_passes_a_state_on_or_takes_it_over_loses_nothing(
    tmp_path: Path, dies: str
) -> None:
    (tmp_path / "wait").touch()  # Until the last worker takes part.
    story: dict[str, list[object]] = {"0": [5, "is killed"]}
    if dies == "passing on":  # Worker 1, which is rank 0 then; worker 3 asks another one.
        story |= {"1": [-1, "dies passing on"], "4": [-1, "is awaited"]}
    else:
        story |= {"3": [-1, "dies taking over"], "4": [-1, "is awaited"]}
    job = run_job(tmp_path, story, "-np", "3", "--min-np", "2")
    assert job.returncode == 0, job.stderr
    dead = {"0", "1"} if dies == "passing on" else {"0", "3"}
    found = results(tmp_path)
    assert set(found) == {"0", "1", "2", "3", "4"} - dead, job.stderr
    for about in found.values():
        assert about["weights"] == UNDISTURBED


def test_a_rank_whose_results_are_wrong_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECK_REPLICAS", "2")
    (tmp_path / "wait").touch()  # Until worker 3 takes part.
    story = {"1": [5, "goes wrong"], "3": [-1, "is awaited"]}
    events = tmp_path / "events"
    job = run_job(tmp_path, story, "-np", "3", "--min-np", "2", "--events", str(events))
    assert job.returncode == 0, job.stderr
    assert "the replica of rank 1 is another one than that of most ranks" in job.stderr
    found = results(tmp_path)
    assert set(found) == {"0", "2", "3"}
    for about in found.values():
        assert about["weights"] == UNDISTURBED
        assert about["sizes"] == [3, 2, 3]
    lines = events_in(events)
    (broken,) = [line for line in lines if line["event"] == "epoch_broken"]
    assert broken["reason"] in (  # Whoever is first: the others, or the rank that ends.
        "rank 1 has another replica than most ranks: its results were wrong",
        "rank 1 ended with RuntimeError: the replica of rank 1 is another one than that of "
        "most ranks",
    )
    (first,) = [line for line in lines if line["event"] == "worker_ended" and line["code"]]
    assert first["worker"] == 1


def test_a_slow_rank_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = "1"
    monkeypatch.setenv("LIGHT_SLOW_TIME", "1")
    (tmp_path / "wait").touch()  # Until worker 3 takes part.
    story = {slow: [5, "is slow"], "3": [-1, "is awaited"]}
    events = tmp_path / "events"
    flags = ["-np", "3", "--min-np", "2", "--max-np", "3", "-H", "localhost:4"]
    job = run_job(tmp_path, story, *flags, "--slow-factor", "2.5", "--events", str(events))
    assert job.returncode == 0, job.stderr
    found = results(tmp_path)
    assert set(found) == {"0", "1", "2", "3"} - {slow}, job.stderr
    for about in found.values():
        assert about["weights"] == UNDISTURBED
        assert about["sizes"][0] == about["sizes"][-1] == 3
    lines = events_in(events)
    (told,) = [line for line in lines if line["event"] == "worker_slow"]
    assert (told["worker"], told["host"]) == (int(slow), "localhost")
    assert told["factor"] > 2.5
    assert not [line for line in lines if line["event"] == "epoch_broken"]  # No step was lost.
    text = f"worker {slow} on localhost is slow, and is replaced: its step takes "
    assert text in job.stderr


def test_a_host_that_the_discovery_script_adds_joins(tmp_path: Path) -> None:
    (tmp_path / "wait").touch()  # Until worker 2 takes part.
    script = tmp_path / "hosts.sh"
    script.write_text(
        f"#!/bin/sh\necho localhost:2\n[ ! -e {tmp_path}/step.10 ] || echo 127.0.0.1\n"
    )
    script.chmod(0o755)
    flags = ["-np", "2", "--host-discovery-script", str(script), "--slots", "1"]
    job = run_job(tmp_path, {"2": [-1, "is awaited"]}, *flags)
    assert job.returncode == 0, job.stderr
    found = results(tmp_path)
    assert set(found) == {"0", "1", "2"}
    for about in found.values():
        assert about["weights"] == UNDISTURBED
        assert about["sizes"] == [2, 3]


def test_a_rank_that_dies_before_it_joins_holds_nobody_up(tmp_path: Path) -> None:
    job = run_job(tmp_path, {"1": [0, "dies before init"]}, "-np", "2", "--min-np", "1")
    assert job.returncode == 0, job.stderr
    (first, *_) = lines_of(job.stderr)
    how = "killed by SIGKILL (exit code 137)"
    assert first == f"epoch 1: 1 rank begins: without worker 1 on localhost ({how})"
    assert results(tmp_path)["0"]["weights"] == UNDISTURBED


def test_a_rank_that_is_stuck_is_named_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_STALL_CHECK_TIME_SECONDS", "1")
    monkeypatch.setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "2")
    monkeypatch.setenv("LIGHT_PEER_TIMEOUT", "3")  # Is the patience before a roll call, too.
    flags = ["-np", "2", "--min-np", "1", "--stuck-timeout", "4"]
    job = run_job(tmp_path, {"1": [5, "is stuck"]}, *flags)
    assert job.returncode == 0, job.stderr
    text = "worker 1 on localhost has not left a broken epoch: the others wait for up to 4 s more"
    assert text in job.stderr
    assert "epoch 2: 1 rank goes on: without worker 1 on localhost (it did not come)" in job.stderr
    assert results(tmp_path)["0"]["weights"] == UNDISTURBED


#: Process sets are made by the training function, each time that it begins.
PROCESS_SETS = """
import os, signal, sys
from pathlib import Path
import numpy as np
import lightcc as hvd

worker, folder = os.environ["LIGHT_WORKER"], Path(sys.argv[2])
hvd.init(process_sets="dynamic")
state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0)
old = []

@hvd.elastic.run
def train(state):
    ends = hvd.add_process_set([0, hvd.size() - 1])
    for stale in old:
        try:
            hvd.allreduce(np.ones(1), name="stale", process_set=stale)
        except ValueError as error:
            (folder / f"error.{worker}").write_text(str(error))
    old.append(ends)
    while state.step < 6:
        if state.step == 3 and worker == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        if ends.included():
            total = hvd.allreduce(np.ones(1), op=hvd.Sum, name="ends", process_set=ends)
            assert total[0] == 2, total
        state.step += 1
        state.commit()

train(state)
(folder / f"result.{worker}").write_text("{}")
"""


def test_process_sets_are_made_anew_by_the_training_function(tmp_path: Path) -> None:
    script = tmp_path / "sets.py"
    script.write_text(PROCESS_SETS)
    argv = [LIGHTCCRUN, "-np", "4", "--min-np", "3", sys.executable, str(script), "{}"]
    job = run_to_end([*argv, str(tmp_path)], timeout=PATIENCE_S)
    assert job.returncode == 0, job.stderr
    assert {"0", "2", "3"} <= set(results(tmp_path))
    for worker in "023":
        text = (tmp_path / f"error.{worker}").read_text()
        assert "does not exist, or has not been registered" in text


def test_a_job_whose_ranks_all_fail_ends_with_the_reason(tmp_path: Path) -> None:
    story = {"0": [5, "is killed"], "1": [5, "is killed"]}
    job = run_job(tmp_path, story, "-np", "2", "--min-np", "1")
    assert job.returncode == 137, job.stderr
    assert "killed by SIGKILL" in job.stderr.splitlines()[-1]


def test_a_discovery_script_that_fails_is_named(tmp_path: Path) -> None:
    job = run_job(tmp_path, {}, "-np", "2", "--host-discovery-script", "exit 3")
    assert job.returncode == 1
    assert "Failed to execute discovery script: exit 3. Exit code: 3" in job.stderr


def test_a_discovery_script_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    script = f"test -e {tmp_path}/one && sleep 600; touch {tmp_path}/one; echo localhost:1"
    flags = ["-np", "1", "--min-np", "1", "--host-discovery-script", script]
    wait = f"until test $(ls {tmp_path} | wc -l) = 1; do sleep 0.1; done; sleep 1.5"
    job = subprocess.run(  # Would wait for whoever holds its pipes open.
        [LIGHTCCRUN, *flags, "sh", "-c", wait], capture_output=True, timeout=PATIENCE_S, check=True
    )
    assert not job.stderr


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["-np", "2", "--max-np", "4"], "--max-np is for elastic jobs: give --min-np"),
        (["-np", "2", "--min-np", "3"], "--min-np 3, -np 2.* must not become smaller"),
        (["-np", "2", "--min-np", "1", "--stuck-timeout", "0"], "0 is not a number of seconds"),
        (["-np", "2", "--slow-factor", "2"], "--slow-factor is for elastic jobs: give --min-np"),
        (
            ["-np", "2", "--min-np", "1", "--slow-factor", "1"],
            "1 is no factor: at least 2, at most",
        ),
        (["-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "9", "3"], "9 3 is no range"),
        (["--host-discovery-script", "x"], "needs -np or --min-np"),
        (["-np", "3", "--min-np", "1", "-H", "a:2"], "-np 3 needs 3 slots, but the hosts have 2"),
    ],
)
def test_flags_that_are_not_allowed(
    flags: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(launch.main, [*flags, "true"]) == 2
    assert re.search(text, capsys.readouterr().err)
