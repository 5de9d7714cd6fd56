"""The machine on which a benchmark ran, as one JSON object."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any


def _search(path: str, pattern: str) -> str:
    try:
        match = re.search(pattern, Path(path).read_text(encoding="ascii", errors="replace"))
    except OSError:
        return ""
    return match[1].strip() if match else ""


def machine_facts() -> dict[str, Any]:
    """Returns processor, cores, kernel and load."""
    return {
        "cpu": _search("/proc/cpuinfo", r"model name\s*:\s*(.+)") or platform.machine(),
        "cores_allowed": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "load_average": os.getloadavg()[0],
    }
