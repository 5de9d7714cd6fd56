"""Programs that tests run, and what became of processes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any


def run_to_end(argv: Any, **how: Any) -> subprocess.CompletedProcess[Any]:
    """Runs a program to its end, which a test looks at: its exit code, and its output as text."""
    usual: dict[str, Any] = {"capture_output": True, "text": True, "check": False}
    return subprocess.run(argv, **(usual | how))


def is_running(pid: int) -> bool:
    """Whether `pid` is there and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
