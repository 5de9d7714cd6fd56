"""`lightcc.bench --device cuda`, with a CPU build of torch and the fakes of CUDA and NCCL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_torch import build_guard
from gpu_arrays import FAKE_CUDA, needs_fake_cuda

pytestmark = [pytest.mark.multiproc, needs_fake_cuda, pytest.mark.timeout(300)]

HERE = Path(__file__).resolve().parents[1]


def test_the_command_names_gpus_and_planes(tmp_path: Path) -> None:
    build_guard()
    fakes = {
        "LD_LIBRARY_PATH": str(FAKE_CUDA.parent),
        "LIGHTCC_FAKE_CUDA": "devices=2",
        "LIGHT_NCCL_LIBRARY": str(FAKE_CUDA.parent / "libnccl.so.2"),
        "PYTHONPATH": f"{HERE / 'cuda_site'}:{HERE}",
    }
    file = tmp_path / "results.jsonl"
    quick = ["--sizes", "4K", "--rounds", "1", "--iterations", "2", "--json", str(file)]
    argv = ["allreduce", "--device", "cuda", "--variants", "lightcc+nccl", *quick]
    done = subprocess.run(
        [sys.executable, "-m", "lightcc.bench", *argv],
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
        env=os.environ | fakes,
    )
    assert done.returncode == 0, done.stderr
    machine, *rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert machine["gpus"] == ["Simulated GPU", "Simulated GPU"]
    assert machine["without_nccl"].endswith("has no NCCL")
    assert [(row["library"], row["device"], row["plane"], row["errors"]) for row in rows] == [
        ("lightcc+nccl", "cuda", "NCCL", 0),
        ("memcpy", "cuda", "", 0),
    ]
    assert "# GPU 1: Simulated GPU\n" in done.stdout
    assert "# torch's NCCL is not beside it: torch " in done.stdout
    assert "        NCCL\n" in done.stdout
