"""deploy/slurm on a real Slurm of three nodes: jobs across nodes, and nodes that die."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from elastic_training import TRAINING, UNDISTURBED, results
from launchers import wait_for
from slurm_nodes import Nodes, slurm_of_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(240)]

SCRIPTS = Path(__file__).resolve().parents[3] / "deploy" / "slurm"
NODES = 3

#: Each rank leaves a file with its place and a sum.
MEET = """
import os, sys
from pathlib import Path
import numpy as np
import lightcc as hvd

hvd.init()
total = hvd.allreduce(np.arange(3.0) + hvd.rank(), op=hvd.Sum).tolist()
place = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank()
Path(sys.argv[1], f"met.{hvd.rank()}").write_text(f"{place} {total} {os.uname().nodename}")
hvd.shutdown()
"""

WAITING = """
import sys, time
from pathlib import Path

Path(sys.argv[1], "waits").touch()
time.sleep(600)
"""


@pytest.fixture(name="nodes", scope="module")
def three_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with slurm_of_nodes(tmp_path_factory.mktemp("slurm"), NODES) as nodes:
        nodes.variables["PATH"] = path
        yield nodes


def program(folder: Path, text: str) -> list[str]:
    path = folder / "train.py"
    path.write_text(text)
    return [sys.executable, str(path)]


def submit(nodes: Nodes, folder: Path, where: Sequence[str], name: str, *words: str) -> str:
    """Submits a script; returns the job's number. Its output is in out.NUMBER."""
    flags = [*where, "--parsable", f"--chdir={folder}", f"--output={folder}/out.%j"]
    return nodes.run("sbatch", *flags, str(SCRIPTS / name), *words).strip()


def about(nodes: Nodes, job: str, form: str) -> str:
    queue = ("squeue", "--noheader", "--states=all", f"--jobs={job}", f"--format={form}")
    return nodes.run(*queue, code=None).strip()


def is_over(nodes: Nodes, job: str) -> bool:
    return about(nodes, job, "%T") not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")


def met(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.glob("met.*"))]


EXPECTED = [
    f"({rank}, 6, {rank % 2}, 2, {rank // 2}) [15.0, 21.0, 27.0] n{1 + rank // 2}"
    for rank in range(6)
]


def test_a_fixed_job_spans_three_nodes(nodes: Nodes, tmp_path: Path) -> None:
    nodes.wait_until_idle()
    words = [*program(tmp_path, MEET), str(tmp_path)]
    job = submit(nodes, tmp_path, ["--nodes=3"], "fixed.sbatch", *words)
    wait_for(lambda: is_over(nodes, job), tmp_path)
    assert met(tmp_path) == EXPECTED, (tmp_path / f"out.{job}").read_text()


def test_a_program_that_a_batch_script_starts_without_srun_is_warned(
    nodes: Nodes, tmp_path: Path
) -> None:
    nodes.wait_until_idle()
    command = shlex.join([*program(tmp_path, MEET), str(tmp_path)])
    flags = ("--parsable", "--nodes=2", "--ntasks-per-node=2", f"--output={tmp_path}/out.%j")
    job = nodes.run("sbatch", *flags, f"--wrap={command}").strip()
    wait_for(lambda: is_over(nodes, job), tmp_path)
    assert "so it trains alone; start it with srun" in (tmp_path / f"out.{job}").read_text()
    assert len(met(tmp_path)) == 1


def test_ranks_of_three_nodes_meet_through_pmix(nodes: Nodes, tmp_path: Path) -> None:
    nodes.wait_until_idle()
    words = [*program(tmp_path, MEET), str(tmp_path)]
    nodes.run("srun", "--mpi=pmix", "--nodes=3", "--ntasks-per-node=2", *words)
    assert met(tmp_path) == EXPECTED


def test_an_elastic_job_outlives_a_node_and_takes_another_one(nodes: Nodes, tmp_path: Path) -> None:
    nodes.wait_until_idle()
    (tmp_path / "wait").touch()
    story = json.dumps({"4": [-1, "is awaited"]})
    words = [*program(tmp_path, TRAINING), story, str(tmp_path)]
    nodes.variables |= {"SLOTS": "2", "LIGHT_PEER_TIMEOUT": "3"}
    job = submit(nodes, tmp_path, ["--nodes=2"], "elastic.sbatch", *words)
    wait_for((tmp_path / "step.10").exists, tmp_path)
    nodes.lose("n2")
    wait_for(lambda: about(nodes, job, "%N") == "n1", tmp_path)
    assert about(nodes, job, "%T") == "RUNNING"
    more = submit(nodes, tmp_path, ["--nodes=1"], "join.sbatch", job)
    wait_for(lambda: is_over(nodes, job) and is_over(nodes, more), tmp_path)
    said = (tmp_path / f"out.{job}").read_text()
    found = results(tmp_path)
    assert len(found) == 4, said
    assert {"4", "5"} <= set(found)
    for it in found.values():
        assert it["weights"] == UNDISTURBED
    assert [it["sizes"] for it in found.values()] == [[4, 2, 4]] * 4
    nodes.start("n2")


def test_nodes_that_joined_are_drained_when_another_job_preempts_them(
    nodes: Nodes, tmp_path: Path
) -> None:
    nodes.wait_until_idle()
    (tmp_path / "wait").touch()
    words = [*program(tmp_path, TRAINING), "{}", str(tmp_path)]
    nodes.variables |= {"SLOTS": "2"}
    job = submit(nodes, tmp_path, ["--nodes=1"], "elastic.sbatch", *words)
    wait_for((tmp_path / "step.10").exists, tmp_path)
    at_low = ("--nodes=1", "--partition=low", "--nodelist=n3")
    more = submit(nodes, tmp_path, at_low, "join.sbatch", job)
    wait_for((tmp_path / "joined.3").exists, tmp_path)
    urgent = (
        "--parsable",
        "--partition=high",
        "--nodelist=n3",
        "--exclusive",
        "--output=/dev/null",
    )
    other = nodes.run("sbatch", *urgent, "--wrap=true").strip()
    wait_for(lambda: is_over(nodes, more) and is_over(nodes, other), tmp_path)
    assert "PreemptTime=20" in nodes.run("scontrol", "show", "job", more)  # Else it says None.
    assert about(nodes, job, "%T") == "RUNNING"
    (tmp_path / "wait").unlink()
    wait_for(lambda: is_over(nodes, job), tmp_path)
    said = (tmp_path / f"out.{job}").read_text()
    assert "leaves: its worker got SIGTERM" in said
    found = results(tmp_path)
    assert set(found) == {"0", "1"}, said
    for it in found.values():
        assert it["weights"] == UNDISTURBED
        assert it["sizes"] == [2, 4, 2]


def test_a_fixed_job_whose_node_dies_is_queued_once_more(nodes: Nodes, tmp_path: Path) -> None:
    nodes.wait_until_idle()
    words = [*program(tmp_path, WAITING), str(tmp_path)]
    job = submit(nodes, tmp_path, ["--nodes=2"], "fixed.sbatch", *words)
    wait_for((tmp_path / "waits").exists, tmp_path)
    nodes.lose("n2")
    wait_for(lambda: "Restarts=1" in nodes.run("scontrol", "show", "job", job), tmp_path)
    nodes.run("scancel", job)
    nodes.start("n2")
