"""Where NCCL is, for when the process has loaded none yet."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_WHEEL = "nvidia/nccl/lib/libnccl.so.2"


def nccl_file(environment: Mapping[str, str] = os.environ) -> str:
    """Returns LIGHT_NCCL_LIBRARY, or the file of the wheel that torch would take, or "".

    torch and lightcc may be in different folders: one in a virtual environment, the other in the
    system's Python.
    """
    files = (Path(folder, _WHEEL) for folder in sys.path)
    return environment.get("LIGHT_NCCL_LIBRARY") or next(
        (str(file) for file in files if file.is_file()), ""
    )
