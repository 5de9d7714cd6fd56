"""An installation without a C++20 compiler ends with one sentence, before anything is copied."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from processes import run_to_end

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ({}, "and found no c++ or g++ or clang++: install g++ or clang, or name a compiler in CXX"),
        ({"CXX": sys.executable}, f"and {sys.executable} is none: install a newer one, or name it"),
    ],
)
def test_no_compiler_is_one_sentence(compiler: dict[str, str], reason: str, tmp_path: Path) -> None:
    kept = {k: v for k, v in os.environ.items() if k not in ("CXX", "LIGHTCC_BUILD_DIR")}
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", str(tmp_path)]
    done = run_to_end(command, cwd=ROOT, env={**kept, "PATH": str(tmp_path), **compiler})
    assert done.returncode == 1
    assert f"lightcc needs a C++20 compiler, gcc 12 or clang 16 or newer, {reason}" in done.stderr
    assert not any(tmp_path.iterdir())
