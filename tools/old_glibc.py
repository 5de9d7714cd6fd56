"""Lets a compiler of this machine build for systems with glibc 2.28 (manylinux_2_28).

The headers and the list of symbols of that glibc come from the package ziglang, whose compiler
makes stubs of the shared libraries from the list. GCC takes both in place of the system's own.
libstdc++ is linked into each library, so that the system's may be old. GCC's archive of it wants a
few names of the newer glibc that it was built with: old_glibc.c has them, hidden in each library.
For GCC on Debian or Ubuntu: the machine's own, or the cross-compiler for aarch64.

auditwheel cannot take its place: it refuses a wheel that needs newer symbols (`build_wheel`), and
makes none that needs older ones.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

GLIBC = "2.28"
MACHINES = ("x86_64", "aarch64")
# From general to special; a later one replaces what an earlier one has.
HEADERS = {
    "x86_64": ("any-linux-any", "x86-linux-any", "generic-glibc", "x86-linux-gnu"),
    "aarch64": ("any-linux-any", "aarch64-linux-any", "generic-glibc", "aarch64-linux-gnu"),
}
# libstdc++ includes it where it is there, and Zig's says that glibc 2.28 had none.
NEWER_HEADERS = ("sys/single_threaded.h",)
STUBS = ("m.so.6", "pthread.so.0", "dl.so.2", "rt.so.1", "util.so.1", "resolv.so.2")
SHIM = Path(__file__).with_suffix(".c")
TOOLCHAIN = Path(__file__).resolve().parent.parent / "cmake" / "aarch64.cmake"


def compiler_for(machine: str) -> str:
    """Returns the C compiler for a machine.

    Raises:
        ValueError: This machine has none.
    """
    if machine not in MACHINES:
        msg = f"wheels are built for {', '.join(MACHINES)}, not for {machine}"
        raise ValueError(msg)
    if machine == platform.machine():
        return "gcc"
    named = re.search(r"CMAKE_C_COMPILER (.*)\)", TOOLCHAIN.read_text())
    if machine != "aarch64" or named is None or shutil.which(named[1]) is None:
        msg = f"there is no compiler for {machine} on {platform.machine()}: tools/get_aarch64.sh"
        raise ValueError(msg)
    return named[1]


def make_stubs(target: str, scratch: Path) -> Path:
    """Returns a folder with Zig's stubs of the C library.

    Raises:
        ValueError: Zig has made none.
    """
    cache = scratch / "zig"
    program = scratch / "program.c"
    program.write_text("int main(void) { return 0; }\n")
    caches = {"ZIG_GLOBAL_CACHE_DIR": str(cache), "ZIG_LOCAL_CACHE_DIR": str(cache)}
    subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", "-target", target, program, "-o", f"{program}.out"],
        check=True,
        env={**os.environ, **caches},
    )
    stubs = scratch / "stubs"
    stubs.mkdir()
    for pattern in ("lib*.so.[0-9]*", "libc_nonshared.a"):
        found = list(cache.rglob(pattern))
        if not found:
            msg = f"zig has made no {pattern} for {target}"
            raise ValueError(msg)
        for path in found:
            shutil.copy2(path, stubs)
    return stubs


def make_root(machine: str, scratch: Path) -> Path:
    """Makes a folder of headers and one of libraries in `scratch`, and returns their parent.

    Raises:
        ValueError: ziglang is not installed.
    """
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        msg = "ziglang is not installed: tools/requirements-wheel.txt"
        raise ValueError(msg)
    root = scratch / "root"
    include, libraries = root / "include", root / "lib"
    headers = Path(spec.origin).parent / "lib" / "libc" / "include"
    for name in HEADERS[machine]:
        shutil.copytree(headers / name, include, dirs_exist_ok=True)
    for name in NEWER_HEADERS:
        (include / name).unlink()
    shutil.copytree(make_stubs(f"{machine}-linux-gnu.{GLIBC}", scratch), libraries)
    for name in STUBS:
        (libraries / f"lib{name.partition('.so')[0]}.so").symlink_to(f"lib{name}")
    script = "INPUT(libc.so.6 libc_nonshared.a AS_NEEDED(libld.so.2))\n"
    (libraries / "libc.so").write_text(script)
    return root


def own_headers(compiler: str, language: str) -> list[Path]:
    """Returns the folders of headers that come with a compiler, and not with a C library."""
    look = [compiler, "-x", language, "-E", "-v", os.devnull]
    done = subprocess.run(look, check=True, capture_output=True, text=True)
    searched = done.stderr.partition("<...> search starts here:\n")[2].partition("End of search")[0]
    folders = [Path(line.strip()).resolve() for line in searched.splitlines()]
    return [folder for folder in folders if re.search("/c[+][+]/|/lib/gcc", str(folder))]


def compiler_flags(machine: str, scratch: Path) -> dict[str, str]:
    """Returns the variables of the environment that make CMake build for `machine` and `GLIBC`.

    Raises:
        ValueError: There is no compiler for it here, or ziglang is not installed.
    """
    compiler = compiler_for(machine)
    root = make_root(machine, scratch)
    minor = GLIBC.partition(".")[2]
    flags = {}
    for language in ("c", "c++"):
        folders = [*own_headers(compiler, language), root / "include"]
        searched = " ".join(f"-isystem {folder}" for folder in folders)
        flags[language] = f"-nostdinc {searched} -D__GLIBC_MINOR__={minor}"
    shim = scratch / "shim.o"
    options = [*flags["c"].split(), "-O2", "-fPIC", "-c", str(SHIM), "-o", str(shim)]
    subprocess.run([compiler, *options], check=True)
    link_flags = f"-L{root / 'lib'} {shim} -static-libstdc++ -Wl,--exclude-libs,libstdc++.a"
    variables = {"CFLAGS": flags["c"], "CXXFLAGS": flags["c++"], "LDFLAGS": link_flags}
    if machine != platform.machine():
        variables["CMAKE_TOOLCHAIN_FILE"] = str(TOOLCHAIN)
    return variables
