"""What a Python is told for which the installed package holds no binding of the engine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from processes import run_to_end

import lightcc

OTHERS = (
    "_core.cpython-39-x86_64-linux-gnu.so",
    "_core.cpython-310-other.so",
    "_core.cpython-313t-x86_64-linux-gnu.so",
)


def import_without_binding(folder: Path, others: tuple[str, ...]) -> str:
    """Imports a copy of lightcc with the bindings `others` alone; returns the last line said."""
    copy = folder / "lightcc"
    leave_out = shutil.ignore_patterns("_core*.so", "__pycache__")
    shutil.copytree(Path(lightcc.__file__).parent, copy, ignore=leave_out)
    for name in others:
        (copy / name).touch()
    done = run_to_end(
        [sys.executable, "-c", "import lightcc"],
        cwd=folder,
        env={"PYTHONPATH": str(folder)},
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    return str(done.stderr.splitlines()[-1])


def test_python_without_binding_is_told_which_ones_there_are(tmp_path: Path) -> None:
    error = import_without_binding(tmp_path, OTHERS)
    assert error.startswith("ImportError: lightcc has no binding for this Python, cpython 3."), (
        error
    )
    assert f"{sys.implementation.cache_tag}-" in error
    assert "holds those for CPython 3.9, 3.10, 3.13t only. Use one of these, or build" in error
    assert "pip install --force-reinstall FOLDER" in error


def test_sources_that_were_not_built_say_so(tmp_path: Path) -> None:
    error = import_without_binding(tmp_path, ())
    assert f"{tmp_path / 'lightcc'} holds none at all. Build lightcc" in error


@pytest.mark.parametrize("argv", [["-c", "import lightcc as it; print(it.__file__)"], ["train.py"]])
def test_sources_step_aside_for_the_installed_package(argv: list[str], tmp_path: Path) -> None:
    leave_out = shutil.ignore_patterns("_core*.so", "__pycache__", "exceptions.py")
    shutil.copytree(Path(lightcc.__file__).parent, tmp_path / "lightcc", ignore=leave_out)
    (tmp_path / "CMakeLists.txt").touch()
    (tmp_path / "train.py").write_text(
        "import lightcc.doctor\nlightcc.init()\nprint(lightcc.__file__)\n"
    )
    said = subprocess.check_output([sys.executable, *argv], cwd=tmp_path, text=True, timeout=60)
    assert said.splitlines() == [lightcc.__file__]


def test_binding_that_cannot_be_loaded_keeps_its_own_error(tmp_path: Path) -> None:
    error = import_without_binding(tmp_path, (Path(lightcc._core.__file__ or "").name,))
    assert "file too short" in error
