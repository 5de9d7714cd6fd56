"""Residuals of compression, where ranks of an elastic job fail and come.

Inputs are whole numbers, so that sums are exact. The last step sends all residuals that there are.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from elastic_training import LIGHTCCRUN, PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

TRAINING = """
import json, os, signal, sys, time
from pathlib import Path

worker, folder = os.environ["LIGHT_WORKER"], Path(sys.argv[1])
about = json.loads(sys.argv[2])
COUNT, TENSORS = 3000, 4

os.environ["LIGHT_HOST_ID"] = worker  # Each rank is a host of its own.
os.environ["LIGHT_TOPK_THRESHOLD"] = "0"
import numpy as np
import lightcc as hvd

hvd.init()
zeros = np.zeros(COUNT, np.float32)
state = hvd.elastic.ObjectState(
    hvd.broadcast_object, hvd.rank, step=0, sizes=[], given=zeros, sent=zeros
)

def reduce_with(ratio, array):
    topk = hvd.Compression.topk(ratio)
    parts = enumerate(np.split(array, TENSORS))
    sums = [hvd.allreduce(part, op=hvd.Sum, name=f"gradient.{i}", compression=topk)
            for i, part in parts]
    return np.concatenate(sums)

@hvd.elastic.run(recovery=about["recovery"])
def train(state):
    state.sizes = [*state.sizes, hvd.size()]
    while state.step < 40:
        if state.step == 10 and worker == about["worker"]:
            if about["what"] == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            (folder / "changed").touch()
            time.sleep(2)
        numbers = np.random.default_rng(1000 * state.step + hvd.rank())
        gradient = numbers.integers(-50, 50, COUNT).astype(np.float32)
        if worker == about["silent"]:  # It never has a residual.
            gradient = zeros
        state.given = state.given + hvd.allreduce(gradient, op=hvd.Sum, name="dense")
        state.sent = state.sent + reduce_with(0.01, gradient)
        state.step += 1
        state.commit()
        time.sleep(0.01)
    residual = float(np.abs(state.given - state.sent).max())
    sent = state.sent + reduce_with(1.0, zeros)
    return residual, float(np.abs(state.given - sent).max())

residual, missing = train(state)
result = {"residual": residual, "missing": missing, "sizes": state.sizes}
(folder / f"result.{worker}").write_text(json.dumps(result))
"""
SAID = "residuals of compression begin at zero, of tensors: "


def run_job(
    folder: Path, *flags: str, **about: str
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """Returns the job, and what each rank that finished has found."""
    script = folder / "train.py"
    script.write_text(TRAINING)
    about = {"worker": "", "what": "", "silent": "", "recovery": "rollback"} | about
    soon = ("--blacklist-cooldown-range", "1", "1")
    argv = [LIGHTCCRUN, *soon, *flags, sys.executable, str(script), str(folder), json.dumps(about)]
    job = subprocess.run(
        argv, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert job.returncode == 0, job.stderr
    found = [json.loads(path.read_text()) for path in folder.glob("result.*")]
    assert found, job.stderr
    assert all(about["residual"] > 0 for about in found)
    return job, found


def test_survivors_keep_their_residuals_and_those_of_a_rank_that_died_are_gone(
    tmp_path: Path,
) -> None:
    job, found = run_job(tmp_path, "-np", "3", "--min-np", "2", worker="1", what="is killed")
    for about in found:
        assert about["sizes"][0] == 3
        assert about["missing"] > 0
    # Its slot is started anew, maybe in time, with residuals of zero.
    said = [line for line in job.stderr.splitlines() if SAID in line]
    assert [line.endswith("4 on rank 2") for line in said] in ([], [True]), job.stderr


def test_nothing_else_is_gone(tmp_path: Path) -> None:
    _, found = run_job(
        *(tmp_path, "-np", "3", "--min-np", "2"),
        worker="1",
        what="is killed",
        silent="1",
        recovery="forward",
    )
    for about in found:
        assert about["sizes"][0] == 3
        assert about["missing"] == 0


def test_ranks_that_come_begin_at_zero_and_the_log_says_so(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.sh"
    hosts.write_text(f"#!/bin/sh\nif [ -e {tmp_path}/changed ]; then echo localhost:3; else ")
    with hosts.open("a") as file:
        file.write("echo localhost:2; fi\n")
    hosts.chmod(0o755)
    flags = ["--host-discovery-script", str(hosts), "-np", "2", "--min-np", "2", "--max-np", "3"]
    job, found = run_job(tmp_path, *flags, worker="0", what="changes hosts")
    for about in found:
        assert about["sizes"][-1] == 3
        assert about["missing"] == 0
    assert job.stderr.count(SAID) == 1, job.stderr
    assert f"{SAID}4 on rank 2" in job.stderr
