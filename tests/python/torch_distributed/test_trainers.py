"""Trainers above torch.distributed run on the backend lightcc, with one line of their examples.

pytorch-ignite's runs as it is, on its backend for Horovod.
"""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import run_to_end

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
# Two ranks write to one pipe, so another's words may follow in the same line.
ACCURACY = r"{}, 2 ranks: accuracy (\d\.\d+) on 360 images"

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

PROGRAM_OF_HOROVOD = """
import os, runpy, sys
os.environ["LIGHT_HOST_ID"] = os.environ["LIGHT_RANK"]
import horovod.torch as hvd
import lightcc

def report_and_shutdown():
    print(f"compressed {lightcc.stats()['compressed_tensors'] > 0}\\n", end="", flush=True)
    shutdown()

shutdown, hvd.shutdown = hvd.shutdown, report_and_shutdown
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

# Each imports a trainer's package on two fresh ranks, which takes over 10 s.
pytestmark = [pytest.mark.multiproc, pytest.mark.slow]


TOPK = ("--topk", "0.05")


def check_training(
    trainer: str, backend: str, launcher: list[str], program: str, topk: tuple[str, ...], tmp: Path
) -> None:
    """Runs an example on two ranks, which learn, and compress if they are told to."""
    if find_spec(trainer) is None:
        pytest.skip(f"{trainer} is not installed")
    pytest.importorskip("sklearn", reason="scikit-learn, which ships the data, is not installed")
    file = tmp / "program.py"
    file.write_text(program)
    done = run_to_end(
        [*launcher, file, EXAMPLES / f"{trainer}_digits.py", *topk],
        cwd=tmp,
        timeout=100,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "LIGHT_TOPK_THRESHOLD": "16K",
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(ACCURACY.format(backend), done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) > 0.85
    assert done.stdout.count(f"compressed {bool(topk)}") == 2, done.stdout


@pytest.mark.parametrize(
    ("trainer", "topk"),
    [("accelerate", ()), ("accelerate", TOPK), ("lightning", TOPK), ("transformers", TOPK)],
)
def test_a_trainer_learns_on_lightcc(trainer: str, topk: tuple[str, ...], tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--nproc-per-node", "2"]
    check_training(trainer, "lightcc", launcher, PROGRAM, topk, tmp_path)


def test_ignite_learns_as_under_horovod(tmp_path: Path) -> None:
    launcher = [str(Path(sys.executable).with_name("lightccrun")), "--horovod", "-np", "2"]
    launcher += ["--no-prefix", sys.executable]
    check_training("ignite", "horovod", launcher, PROGRAM_OF_HOROVOD, TOPK, tmp_path)
