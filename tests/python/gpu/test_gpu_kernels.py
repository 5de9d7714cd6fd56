"""What the kernels reach on a real GPU: `make test-gpu`. Figures are shown, and never asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from lightcc.bench import gpus

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(630)]  # 64 Mi elements on the CPU as well.

OF_SIZE = {"copy by kernel", "copy by driver", "exact step", "select pass", "select step", "merge"}


def test_kernels_are_measured_with_right_results(tmp_path: Path) -> None:
    try:
        gpus.find_gpus()
    except gpus.GpuError as error:
        pytest.skip(str(error))
    file = tmp_path / "kernels.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", "lightcc.bench", "kernels", "--json", str(file)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    _, *rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert not any(row["errors"] for row in rows)
    for size in ("1M", "16M", "64M"):
        assert {row["name"] for row in rows if row["size"] == size} >= OF_SIZE
