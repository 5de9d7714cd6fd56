"""Builds the engine, its Python binding and HARP with CMake, and makes the package's description.

The rest is in pyproject.toml.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pybind11
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

# Links and pictures of the repository are none elsewhere: their words stay.
DESCRIPTION = re.sub(
    r"!?\[([^]]*)\]\((?!https?://)[^)]*\)",
    r"\1",
    Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
)
# Read by every interpreter that starts; does something only where LIGHTCC_HOROVOD is 1.
PTH = "lightcc_horovod.pth"

# What CMake looks for, and what the sources need.
COMPILERS = (os.environ["CXX"],) if "CXX" in os.environ else ("c++", "g++", "clang++")
PROBE = """
#include <concepts>
#if defined(__clang__) ? __clang_major__ < 16 : __GNUC__ < 12
#error
#endif
"""


def require_compiler() -> None:
    """Ends the installation with one sentence where no C++20 compiler is found."""
    needed = "lightcc needs a C++20 compiler, gcc 12 or clang 16 or newer"
    found = next((path for name in COMPILERS if (path := shutil.which(name.split()[0]))), None)
    if found is None:
        names = " or ".join(COMPILERS)
        sys.exit(f"{needed}, and found no {names}: install g++ or clang, or name a compiler in CXX")
    command = [found, "-std=c++20", "-fsyntax-only", "-xc++", "-"]
    if subprocess.run(command, input=PROBE, text=True, capture_output=True, check=False).returncode:
        sys.exit(f"{needed}, and {found} is none: install a newer one, or name it in CXX")


class CMakeBuild(build_ext):
    """Configures, builds and installs with CMake, into the package."""

    def run(self) -> None:
        """Puts the libraries into the built package, or beside the sources if editable.

        LIGHTCC_BUILD_DIR names a configured build folder to take them from; `make` has one, whose
        C++ tests use the same objects. LIGHTCC_HARP=0 leaves HARP out. LIGHTCC_CUBINS names a
        folder that tools/make_cubins.py has written.
        """
        source = Path(__file__).resolve().parent
        prefix = source if self.inplace else Path(self.build_lib).resolve()
        shared = os.environ.get("LIGHTCC_BUILD_DIR")
        has_harp = os.environ.get("LIGHTCC_HARP") != "0"
        if shared:
            targets = ["_core", "lightcc_tf", *(["nccl-net-harp", "nccl-net"] if has_harp else [])]
            subprocess.run(["cmake", "--build", shared, "--target", *targets], check=True)
            installed = shared if has_harp else f"{shared}/csrc"
            subprocess.run(["cmake", "--install", installed, "--prefix", prefix], check=True)
            return
        build = Path(self.build_temp).resolve()
        configure = [
            "cmake",
            "--fresh",  # pip builds in an environment whose paths change from call to call
            f"-S{source}",
            f"-B{build}",
            "-GNinja",
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DCMAKE_INSTALL_PREFIX={prefix}",
            f"-DPython_EXECUTABLE={sys.executable}",
            # CMake asks no interpreter where it compiles for another machine.
            f"-DPython_INCLUDE_DIR={sysconfig.get_path('include')}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        ]
        if not has_harp:
            configure.append("-DLIGHTCC_HARP=OFF")
        if cubins := os.environ.get("LIGHTCC_CUBINS"):
            configure.append(f"-DLIGHTCC_CUBINS={cubins}")
        subprocess.run(configure, check=True)
        subprocess.run(["cmake", "--build", build, "--target", "install"], check=True)


class BuildWithPth(build_py):
    """Copies the modules, and one file beside the package, into site-packages itself."""

    def run(self) -> None:
        """Does without the file in an editable install, which has no place for it."""
        if "LIGHTCC_BUILD_DIR" not in os.environ:
            require_compiler()  # Before the long list of what is copied.
        super().run()
        if not self.editable_mode:
            self.copy_file(f"lightcc/horovod/{PTH}", f"{self.build_lib}/{PTH}")


setup(
    long_description=DESCRIPTION,
    long_description_content_type="text/markdown",
    ext_modules=[Extension("lightcc._core", sources=[])],
    cmdclass={"build_ext": CMakeBuild, "build_py": BuildWithPth},
)
