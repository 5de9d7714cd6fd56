"""Loads the engine's binding; where there is none for this Python, says which ones there are.

A wheel holds one binding for each CPython that it was built for, side by side.
"""

from __future__ import annotations

import importlib
import re
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

_NAME = "lightcc._core"
_FILE = re.compile(r"_core\.cpython-3(\d+)(\w*)-.*\.so")


def load(package: Path) -> ModuleType:
    """Returns `lightcc._core`.

    Args:
        package: The folder of lightcc, to tell what is in it.

    Raises:
        ImportError: There is no binding for this Python, or it cannot be loaded.
    """
    try:
        return importlib.import_module(_NAME)
    except ModuleNotFoundError as error:
        if error.name != _NAME:
            raise
        raise ImportError(_missing(package), name=_NAME, path=str(package)) from None


def _missing(package: Path) -> str:
    """Returns what to tell somebody whose Python has no binding in `package`."""
    found = [match for path in package.iterdir() if (match := _FILE.fullmatch(path.name))]
    minors = sorted((int(match[1]), match[2]) for match in found)
    versions = ", ".join(f"3.{minor}{flags}" for minor, flags in minors)
    this = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"
    held = f"those for CPython {versions} only" if versions else "none at all"
    instead = "Use one of these, or build" if versions else "Build"
    return (
        f"lightcc has no binding for this Python, {this} ({sysconfig.get_config_var('SOABI')}): "
        f"{package} holds {held}. {instead} lightcc for this Python, which takes a C++20 compiler: "
        "pip install --force-reinstall FOLDER, where FOLDER holds its sources, or the file "
        "lightcc-VERSION.tar.gz."
    )


_core = load(Path(__file__).parent)
