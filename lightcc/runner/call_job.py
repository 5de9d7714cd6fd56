"""The launcher of `call`: `python -m lightcc.runner.call_job FOLDER PARENT`.

It ends with its parent, and its end ends the ranks.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lightcc.runner.call import FAILURE, INPUT, OPTIONS, RESULT
from lightcc.runner.launch import launch

if TYPE_CHECKING:
    from lightcc.runner.arguments import LaunchOptions
    from lightcc.runner.job import Job

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Runs the job; returns its exit code."""
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        return 1
    options: LaunchOptions = pickle.loads((folder / OPTIONS).read_bytes())  # noqa: S301 - ours.

    def on_end(job: Job) -> None:
        for rank, data in job.results.items():
            (folder / RESULT.format(rank)).write_bytes(data)
        (folder / FAILURE).write_text(json.dumps(job.failure()), encoding="utf-8")

    return launch(options, (folder / INPUT).read_bytes(), on_end)


if __name__ == "__main__":
    sys.exit(main())
