"""Elastic jobs of four workers, some of whom are killed, as tests have them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

LIGHTCCRUN = str(Path(sys.executable).parent / "lightccrun")


def run_story(
    training: str, story: dict[str, int], folder: Path, *, patience_s: float
) -> list[dict[str, Any]]:
    """Returns what the workers that reach the end have written.

    Args:
        training: A program. Its arguments are the story, as JSON, and the folder, in which it
            leaves a file of JSON `result.WORKER`.
        story: The step at which something happens, by worker.
        folder: An empty one.
        patience_s: The job may take so long.
    """
    script = folder / "train.py"
    script.write_text(training)
    argv = [LIGHTCCRUN, "-np", "4", "--min-np", "2", sys.executable, str(script)]
    job = subprocess.run(
        [*argv, json.dumps(story), str(folder)],
        capture_output=True,
        text=True,
        timeout=patience_s,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    assert job.returncode == 0, job.stderr
    found = [json.loads(path.read_text()) for path in folder.glob("result.*")]
    assert len(found) >= 4 - len(story), job.stderr
    return found
