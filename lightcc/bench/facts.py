"""The machine on which a benchmark ran, as one JSON object."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path
from typing import Any

import numpy as np


def _search(path: str, pattern: str) -> str:
    try:
        match = re.search(pattern, Path(path).read_text(encoding="ascii", errors="replace"))
    except OSError:
        return ""
    return match[1].strip() if match else ""


def machine_facts() -> dict[str, Any]:
    """Returns processor, cores, memory, kernel, versions and load."""
    memory_kib = int(_search("/proc/meminfo", r"MemTotal:\s+(\d+)") or 0)
    return {
        "cpu": _search("/proc/cpuinfo", r"model name\s*:\s*(.+)") or platform.machine(),
        "cores": os.cpu_count(),
        "cores_allowed": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_kib / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "load_average": os.getloadavg()[0],
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
