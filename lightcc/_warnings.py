"""Warnings that point at the line of the user's program, however deep they are raised."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

_PACKAGE = str(Path(__file__).parent) + os.sep


def warn_caller(text: str, category: type[Warning]) -> None:
    """Warns in the name of the first caller that is not of this package.

    Args:
        text: What is wrong, and what to write instead.
        category: For instance `DeprecationWarning`.
    """
    level = 1
    frame = sys._getframe()  # noqa: SLF001  As `warnings` itself does from Python 3.12 on.
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(text, category, stacklevel=level)
