"""The finder that makes `horovod.x` another name of a module of lightcc.

One module object has both names: `sys.modules["horovod.torch"] is sys.modules["lightcc.torch"]`,
and its `__name__`, `__spec__`, `__loader__` and `__package__` are those of lightcc. So classes are
the same whichever way they were imported, and what was pickled under one name loads under the
other.

`lightcc_horovod.pth` runs this file while the interpreter starts, before lightcc is imported and
without importing it: a script may still set variables that numpy reads when it is loaded. Hence
nothing but the standard library at the top level, and little of that.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys

TYPE_CHECKING = False  # As in `typing`, whose import takes longer than the rest of this file.
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from importlib.metadata import Distribution, DistributionFinder
    from types import CodeType, ModuleType
    from typing import Any

VERSION = "0.28.1"  # The release of Horovod whose interface this is.

# The longest prefix counts. What is not below one of them does not exist.
_REAL_NAMES = {
    "horovod": "lightcc.horovod",
    "horovod.common": "lightcc.horovod.common",
    "horovod.common.elastic": "lightcc.elastic",
    "horovod.common.exceptions": "lightcc.exceptions",
    "horovod.common.process_sets": "lightcc.process_sets",
    "horovod.data": "lightcc.horovod.data",
    "horovod.keras": "lightcc.keras",
    "horovod.ray": "lightcc.ray",
    "horovod.runner": "lightcc.horovod.runner",
    "horovod.spark": "lightcc.spark",
    "horovod.tensorflow": "lightcc.tensorflow",
    "horovod.torch": "lightcc.torch",
}
_NOT_YET = {
    "horovod.spark.common": "Spark's estimators",
    "horovod.spark.keras": "Spark's estimators",
    "horovod.spark.lightning": "Spark's estimators",
    "horovod.spark.torch": "Spark's estimators",
}


class HorovodFinder:
    """An entry of `sys.meta_path` for `horovod` and everything below it."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns how to import `fullname`; `None` for what is not Horovod's.

        Raises:
            ModuleNotFoundError: It is Horovod's, but lightcc does not have it. Finders further down
                must not be asked: they would make a second copy of a module of lightcc.
        """
        if fullname.partition(".")[0] != "horovod":
            return None
        real = _real_name(fullname)
        found = _find_real(real) if real is not None else None
        if real is None or found is None:
            raise ModuleNotFoundError(_absence(fullname), name=fullname)
        spec = importlib.machinery.ModuleSpec(
            fullname,
            _AliasLoader(real),  # type: ignore[arg-type]
            origin=found.origin,
            is_package=found.submodule_search_locations is not None,
        )
        if found.submodule_search_locations is not None:
            spec.submodule_search_locations = found.submodule_search_locations
        return spec

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterable[Distribution]:
        """Answers `importlib.metadata.version("horovod")`; a list of all packages stays true."""
        if context is None or (context.name or "").lower() != "horovod":
            return []
        return [_distribution()]


class _AliasLoader:
    """Gives the module of lightcc, imported if it was not."""

    def __init__(self, real: str) -> None:
        self._real = real
        self._spec: Any = None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:  # noqa: ARG002
        module = importlib.import_module(self._real)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just written the alias's spec into the module.
        module.__spec__ = self._spec

    def get_code(self, fullname: str) -> CodeType | None:  # noqa: ARG002
        """Serves `python -m horovod...`."""
        found = _find_real(self._real)
        loader: Any = None if found is None else found.loader
        code: CodeType | None = loader.get_code(self._real) if loader is not None else None
        return code


class Tensorflow1Finder:
    """An entry of `sys.meta_path` by which `import tensorflow` gives TensorFlow 1's names.

    For scripts that were written for TensorFlow 1, of which some of Horovod's examples are.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns how to import `tensorflow`, once; `None` for all else."""
        if fullname != "tensorflow":
            return None
        sys.meta_path.remove(self)
        return importlib.machinery.ModuleSpec(fullname, _Tensorflow1Loader(), is_package=True)  # type: ignore[arg-type]


class _Tensorflow1Loader:
    """Gives `tensorflow.compat.v1`, where TensorFlow behaves as its first version did."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:  # noqa: ARG002
        # lightcc's own modules use the names of TensorFlow 2, so they are imported before.
        importlib.import_module("lightcc.tensorflow")
        module = importlib.import_module("tensorflow.compat.v1")
        module.disable_v2_behavior()
        # Before TensorFlow 2.16 it is loaded when it is first asked for a name, and `from` cannot.
        importlib.import_module(module.keras.layers.__name__)
        sys.modules["tensorflow.keras"] = module.keras
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: the module is there."""


def install() -> None:
    """Puts the finder first in `sys.meta_path`, unless one is there."""
    if not is_installed():
        sys.meta_path.insert(0, HorovodFinder())
        if os.environ.get("LIGHTCC_TENSORFLOW1") == "1":
            sys.meta_path.insert(0, Tensorflow1Finder())


def is_installed() -> bool:
    """Returns whether `import horovod` gives lightcc in this process."""
    # By name: the .pth file's copy of this file and an imported one are different modules.
    return any(type(finder).__name__ == HorovodFinder.__name__ for finder in sys.meta_path)


def _find_real(real: str) -> importlib.machinery.ModuleSpec | None:
    import importlib.util

    try:
        return importlib.util.find_spec(real)
    except ModuleNotFoundError as error:
        if error.name is not None and real.startswith(error.name):
            return None
        raise


def _real_name(fullname: str) -> str | None:
    if _below(fullname, _NOT_YET) is not None:
        return None
    prefix = _below(fullname, _REAL_NAMES)
    if prefix is None or (prefix == "horovod" != fullname):
        return None
    return _REAL_NAMES[prefix] + fullname[len(prefix) :]


def _below(fullname: str, prefixes: dict[str, str]) -> str | None:
    """Returns the longest of `prefixes` that `fullname` is, or is below."""
    fits = [prefix for prefix in prefixes if f"{fullname}.".startswith(f"{prefix}.")]
    return max(fits, key=len, default=None)


def _absence(fullname: str) -> str:
    prefix = _below(fullname, _NOT_YET)
    if prefix is not None:
        return f"{fullname}: this version of lightcc does not support {_NOT_YET[prefix]} yet"
    return f"{fullname}: lightcc, which is imported in the place of Horovod, has no such module"


def _distribution() -> Distribution:
    from importlib.metadata import Distribution

    class HorovodDistribution(Distribution):
        """What `importlib.metadata` says of Horovod; it has no files."""

        def read_text(self, filename: str) -> str | None:
            if filename == "METADATA":
                return f"Metadata-Version: 2.1\nName: horovod\nVersion: {VERSION}\n"
            return None

        def locate_file(self, path: Any) -> Any:
            from pathlib import Path

            return Path(path)

    return HorovodDistribution()


if __name__ == "lightcc.horovod.startup":
    install()
