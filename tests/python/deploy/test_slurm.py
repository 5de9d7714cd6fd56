"""deploy/slurm on a real Slurm of one node: the batch scripts as a user submits them."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from elastic_training import TRAINING, UNDISTURBED, results
from launchers import PATIENCE_S, run, slurm

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.multiproc, pytest.mark.slow]  # Slurm itself takes seconds to start.

SCRIPTS = Path(__file__).resolve().parents[3] / "deploy" / "slurm"
MEET = "import lightcc as hvd; hvd.init(); print('rank', hvd.rank(), 'of', hvd.size(), flush=True)"


@pytest.fixture(name="variables", scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with slurm(tmp_path_factory.mktemp("slurm")) as variables:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        yield variables | {"PATH": path}


def submit(variables: dict[str, str], folder: Path, name: str, *words: str) -> str:
    """Submits a script for one node; returns the job's number. Its output is in out.NUMBER."""
    flags = ["--parsable", f"--chdir={folder}", f"--output={folder}/out.%j", "--nodes=1"]
    flags += ["--ntasks=1", "--overcommit"]
    return run("sbatch", *flags, str(SCRIPTS / name), *words, variables=variables).stdout.strip()


def wait_for(is_so: object, folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():  # type: ignore[operator]
        said = "\n".join(path.read_text() for path in folder.glob("out.*"))
        assert time.monotonic() < deadline, said
        time.sleep(0.1)


def is_over(variables: dict[str, str], job: str) -> bool:
    queue = ["squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}"]
    state = run(*queue, code=None, variables=variables).stdout.strip()
    return state not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")


def test_ranks_of_a_fixed_job_meet(variables: dict[str, str], tmp_path: Path) -> None:
    job = submit(variables, tmp_path, "fixed.sbatch", sys.executable, "-c", MEET)
    wait_for(lambda: is_over(variables, job), tmp_path)
    assert "rank 0 of 1" in (tmp_path / f"out.{job}").read_text()


def test_an_elastic_job_takes_a_node_that_joins_and_goes_on_when_that_is_cancelled(
    variables: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "wait").touch()
    (tmp_path / "train.py").write_text(TRAINING)
    story = json.dumps({})
    command = (sys.executable, str(tmp_path / "train.py"), story, str(tmp_path))
    job = submit(variables, tmp_path, "elastic.sbatch", *command)
    wait_for((tmp_path / "step.4").exists, tmp_path)
    more = submit(variables, tmp_path, "join.sbatch", job)
    wait_for(lambda: "joined" in _text(tmp_path / f"out.{more}"), tmp_path)
    wait_for((tmp_path / "joined.1").exists, tmp_path)
    run("scancel", more, variables=variables)
    wait_for(lambda: is_over(variables, more), tmp_path)
    (tmp_path / "wait").unlink()
    wait_for(lambda: is_over(variables, job), tmp_path)
    (about,) = results(tmp_path).values()
    assert about["weights"] == UNDISTURBED, _text(tmp_path / f"out.{job}")
    assert about["sizes"] == [1, 2, 1]
    assert not list(tmp_path.glob("lightcc-secret.*"))


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
