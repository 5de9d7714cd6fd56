"""Builds the engine, its Python binding and HARP with CMake; the rest is in pyproject.toml."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pybind11
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

# Read by every interpreter that starts; does something only where LIGHTCC_HOROVOD is 1.
PTH = "lightcc_horovod.pth"


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
        super().run()
        if not self.editable_mode:
            self.copy_file(f"lightcc/horovod/{PTH}", f"{self.build_lib}/{PTH}")


setup(
    ext_modules=[Extension("lightcc._core", sources=[])],
    cmdclass={"build_ext": CMakeBuild, "build_py": BuildWithPth},
)
