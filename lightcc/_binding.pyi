# Modules take `_core` from `_binding`: by `from lightcc import _core`, import-linter sees an import
# of the whole package.
from pathlib import Path
from types import ModuleType

from lightcc import _core as _core

def load(package: Path) -> ModuleType: ...
