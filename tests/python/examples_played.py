"""Runs an example on ranks that are forked from a warm process, as importing takes longest."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def play(script: str, *arguments: str) -> tuple[int, str]:
    """Runs a script of examples/ on this rank; returns its exit code and what it has printed."""
    path = EXAMPLES / script
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(EXAMPLES))
    code = 0
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:
            code = int(end.code or 0)
    return code, out.getvalue()
