"""Lets the compiler of this machine build for systems with glibc 2.28 (manylinux_2_28).

The headers and the list of symbols of that glibc come from the package ziglang, whose compiler
makes stubs of the shared libraries from the list. GCC takes both as its system root. libstdc++ is
linked into each library, so that the system's may be old. GCC's archive of it wants a few names of
the newer glibc that it was built with: old_glibc.c has them, hidden in each library. For GCC on
Debian or Ubuntu.

auditwheel cannot take its place: it refuses a wheel that needs newer symbols (`build_wheel`), and
makes none that needs older ones.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

GLIBC = "2.28"
TARGET = f"x86_64-linux-gnu.{GLIBC}"
# From general to special; a later one replaces what an earlier one has.
HEADERS = ("any-linux-any", "x86-linux-any", "generic-glibc", "x86-linux-gnu")
# libstdc++ includes it where it is there, and Zig's says that glibc 2.28 had none.
NEWER_HEADERS = ("sys/single_threaded.h",)
STUBS = ("m.so.6", "pthread.so.0", "dl.so.2", "rt.so.1", "util.so.1", "resolv.so.2")
MULTIARCH = "x86_64-linux-gnu"
SHIM = Path(__file__).with_suffix(".c")


def make_stubs(scratch: Path) -> Path:
    """Returns a folder with Zig's stubs of the C library.

    Raises:
        ValueError: Zig has made none.
    """
    cache = scratch / "zig"
    program = scratch / "program.c"
    program.write_text("int main(void) { return 0; }\n")
    caches = {"ZIG_GLOBAL_CACHE_DIR": str(cache), "ZIG_LOCAL_CACHE_DIR": str(cache)}
    subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", "-target", TARGET, program, "-o", f"{program}.out"],
        check=True,
        env={**os.environ, **caches},
    )
    stubs = scratch / "stubs"
    stubs.mkdir()
    for pattern in ("lib*.so.[0-9]*", "libc_nonshared.a"):
        found = list(cache.rglob(pattern))
        if not found:
            msg = f"zig has made no {pattern} for {TARGET}"
            raise ValueError(msg)
        for path in found:
            shutil.copy2(path, stubs)
    return stubs


def make_root(scratch: Path) -> Path:
    """Makes a system root in `scratch` and returns it.

    Raises:
        ValueError: ziglang is not installed.
    """
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        msg = "ziglang is not installed: tools/requirements-wheel.txt"
        raise ValueError(msg)
    root = scratch / "root"
    include, libraries = root / "usr" / "include", root / "usr" / "lib" / MULTIARCH
    headers = Path(spec.origin).parent / "lib" / "libc" / "include"
    for name in HEADERS:
        shutil.copytree(headers / name, include, dirs_exist_ok=True)
    for name in NEWER_HEADERS:
        (include / name).unlink()
    for part in (Path("c++"), Path(MULTIARCH) / "c++"):
        shutil.copytree("/usr/include" / part, include / part)
    shutil.copytree(make_stubs(scratch), libraries)
    for name in STUBS:
        (libraries / f"lib{name.partition('.so')[0]}.so").symlink_to(f"lib{name}")
    for name in ("crti.o", "crtn.o", "crt1.o", "Scrt1.o"):
        shutil.copy2(Path("/usr/lib") / MULTIARCH / name, libraries)
    script = "INPUT(libc.so.6 libc_nonshared.a AS_NEEDED(libld.so.2))\n"
    (libraries / "libc.so").write_text(script)
    return root


def compiler_flags(scratch: Path) -> dict[str, str]:
    """Returns the variables of the environment that make CMake build for `GLIBC`.

    Raises:
        ValueError: This machine is not x86-64, or ziglang is not installed.
    """
    if platform.machine() != "x86_64":
        msg = f"wheels are built on x86-64, not on {platform.machine()}"
        raise ValueError(msg)
    root = make_root(scratch)
    compile_flags = f"--sysroot={root} -D__GLIBC_MINOR__={GLIBC.partition('.')[2]}"
    shim = scratch / "shim.o"
    options = [*compile_flags.split(), "-O2", "-fPIC", "-c", str(SHIM), "-o", str(shim)]
    subprocess.run(["gcc", *options], check=True)  # noqa: S607  The one on PATH.
    libraries = root / "usr" / "lib" / MULTIARCH
    link_flags = f"-L{libraries} {shim} -static-libstdc++ -Wl,--exclude-libs,libstdc++.a"
    return {"CFLAGS": compile_flags, "CXXFLAGS": compile_flags, "LDFLAGS": link_flags}
