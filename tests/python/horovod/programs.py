"""Runs Horovod programs as their users do: a script, an interpreter, its output."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S = 100.0
RUN = [sys.executable, "-m", "lightcc.horovod"]


def write(path: Path, text: str) -> str:
    """Writes a script and returns its path."""
    path.write_text(textwrap.dedent(text))
    return str(path)


def output(
    *argv: str, code: int = 0, cwd: Path | None = None, variables: dict[str, str] | None = None
) -> str:
    """Runs a command to its end and returns what it printed; it must exit with `code`."""
    result = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=cwd,
        env=os.environ | (variables or {}),
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout if code == 0 else result.stderr
