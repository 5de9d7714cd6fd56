"""Steps aside where Python has found lightcc's sources, and lightcc is installed as well.

In the folder of a checkout `import lightcc` finds the sources, which hold no engine. What is
imported after this module comes from the installed package. It has to be imported first.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path


def installed_beside(package: Path) -> Path | None:
    """Returns the installed package; `None` where `package` has an engine, or none is installed."""
    root = package.parent
    if not (root / "CMakeLists.txt").exists() or any(package.glob("_core*.so")):
        return None
    elsewhere = [entry for entry in sys.path if Path(entry).resolve() != root]
    spec = PathFinder.find_spec("lightcc", elsewhere)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _step_aside() -> None:
    package = sys.modules["lightcc"]
    found = installed_beside(Path(__file__).resolve().parent)
    if found is not None:
        package.__path__[:] = [str(found)]
        package.__file__ = str(found / "__init__.py")


_step_aside()
