"""The shared libraries of the installed package, each in a process that has loaded nothing yet."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from processes import run_to_end

import lightcc
from lightcc import _core

PACKAGE = Path(lightcc.__file__).parent
LIBRARIES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("lib*.so"))
_LOAD = """
import ctypes, sys
from pathlib import Path
library = ctypes.CDLL(sys.argv[1])
if sys.argv[2] == "named":
    assert ctypes.CDLL(Path(sys.argv[1]).name)._handle == library._handle
"""


def load(name: str, kind: str) -> None:
    """Loads it; every symbol is looked up at once, also those of the libraries that it needs."""
    env = {name: text for name, text in os.environ.items() if name != "LD_LIBRARY_PATH"}
    done = run_to_end(
        [sys.executable, "-c", _LOAD, str(PACKAGE / name), kind],
        env=env | {"LD_BIND_NOW": "1"},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_what_this_file_is_about_is_there() -> None:
    assert {
        "harp/plugin/libnccl-net-harp.so",
        "harp/plugin/libnccl-net.so",
        "liblightcc.so",
        "liblightcc_cuda.so",
        "liblightcc_tf.so",
    } == set(LIBRARIES)


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_has_all_its_symbols_and_is_known_by_its_name_once_it_is_loaded(
    name: str,
) -> None:
    load(name, "named")


def test_the_binding_of_this_python_has_all_its_symbols() -> None:
    load(Path(_core.__file__).name, "unnamed")
