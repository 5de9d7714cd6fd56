"""Processes of tools/chaos_elastic.py, as the kernel knows them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def children(pid: int) -> list[int]:
    """Returns the children of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def is_child_of(pid: int, parent: int) -> bool:
    """Returns whether a process is there, and has this parent."""
    with contextlib.suppress(OSError):
        about = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return about[0] != "Z" and int(about[1]) == parent
    return False


def kill(pid: int, signum: int) -> None:
    """Signals a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)
