"""Trainers above torch.distributed run on the backend lightcc, with one line of their examples."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
# Two ranks write to one pipe, so another's words may follow in the same line.
ACCURACY = re.compile(r"lightcc, 2 ranks: accuracy (\d\.\d+) on 360 images")

# Compression is between hosts, so each rank is one. The counters are read before the group ends.
PROGRAM = """
import os, runpy, sys
os.environ["LIGHT_HOST_ID"] = os.environ["RANK"]
import torch.distributed as dist
import lightcc

def report_and_destroy(*arguments):
    print(f"compressed {lightcc.stats()['compressed_tensors'] > 0}\\n", end="", flush=True)
    destroy(*arguments)

destroy, dist.destroy_process_group = dist.destroy_process_group, report_and_destroy
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
if dist.is_initialized():
    dist.destroy_process_group()
"""

# Each imports a trainer's package on two fresh ranks, which takes over 10 s.
pytestmark = [pytest.mark.multiproc, pytest.mark.slow]


@pytest.mark.parametrize("topk", [(), ("--topk", "0.05")], ids=["dense", "topk"])
@pytest.mark.parametrize("trainer", ["accelerate", "lightning", "transformers"])
def test_a_trainer_learns_on_lightcc(trainer: str, topk: tuple[str, ...], tmp_path: Path) -> None:
    if find_spec(trainer) is None:
        pytest.skip(f"{trainer} is not installed")
    pytest.importorskip("sklearn", reason="scikit-learn, which ships the data, is not installed")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launcher, program, EXAMPLES / f"{trainer}_digits.py", *topk],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "LIGHT_TOPK_THRESHOLD": "16K",
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = ACCURACY.search(done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) > 0.85
    assert done.stdout.count(f"compressed {bool(topk)}") == 2, done.stdout
