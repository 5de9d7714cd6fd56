"""The benchmark on tensors of real GPUs: `make test-gpu`."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(330)]  # Ranks import torch.


def run_bench(folder: Path, collective: str, ranks: int, *flags: str) -> dict[str, str]:
    """Measures a collective, whose results must be right; returns what carried each library."""
    file = folder / "results.jsonl"
    quick = ["--sizes", "4K,4M", "--rounds", "2", "--iterations", "3", "--json", str(file)]
    argv = [collective, "--device", "cuda", "-np", str(ranks), *flags, *quick]
    done = subprocess.run(
        [sys.executable, "-m", "lightcc.bench", *argv],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    _, *rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert not any(row["errors"] for row in rows)
    return {row["library"]: row["plane"] for row in rows}


@pytest.mark.parametrize(
    "collective", ["allreduce", "allgather", "broadcast", "alltoall", "reducescatter"]
)
@pytest.mark.parametrize("shared", [False, True])
def test_results_are_right_whatever_carries_them(
    num_gpus: int, tmp_path: Path, collective: str, shared: bool
) -> None:
    planes = run_bench(tmp_path, collective, num_gpus + 1 if shared else num_gpus)
    if shared:
        assert planes == {"lightcc+nccl": "host staged", "lightcc": "host staged", "memcpy": ""}
    else:
        assert planes["lightcc"] == "host staged"
