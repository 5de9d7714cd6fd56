"""Builds the source distribution, and for each machine one wheel for several CPythons.

Usage: build_wheel.py [--output dist] [--machine x86_64 ...] [PYTHON...]

No PYTHON: all that `interpreters` finds. No --machine: this one. --machine aarch64 needs what
tools/get_aarch64.sh installs. The C headers of CPython are those of this machine, whose types are
as large.

Only lightcc/_core.*.so depends on Python. So an ordinary wheel is built for each interpreter, in
one copy of the source distribution, where CMake compiles the engine once; the bindings of all are
put into the first wheel. What else differs between two of the wheels is an error. `old_glibc` makes
the result work with an old C library, which auditwheel checks. `make_cubins` has CUDA's assembler
make machine code of the kernels for GPUs, which no installation from sources has.

The tags are those of the interpreters, no wider: for any other, pip takes the source distribution.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import make_cubins
import old_glibc
from interpreters import Interpreter, choose

ROOT = Path(__file__).resolve().parent.parent
BINDINGS = "lightcc/_core.*.so"
OF_ONE_WHEEL = (BINDINGS, "*.dist-info/RECORD", "*.dist-info/WHEEL")


def run_module(*arguments: str | Path) -> None:
    """Runs `python -m arguments`, with the tools that were installed beside this interpreter."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-m", *arguments]
    subprocess.run(command, check=True, env={**os.environ, "PATH": path})


def only(pattern: str, directory: Path) -> Path:
    """Returns the one path in `directory` that matches.

    Raises:
        ValueError: There is none, or more than one.
    """
    found = list(directory.glob(pattern))
    if len(found) != 1:
        message = f"{directory}: {len(found)} paths match {pattern}, not one: {found}"
        raise ValueError(message)
    return found[0]


def build_sdist(scratch: Path) -> tuple[Path, Path]:
    """Returns the source distribution of the checkout, and the folder it is unpacked in."""
    run_module("build", "--sdist", "--outdir", scratch / "sdist", ROOT)
    sdist = only("*.tar.gz", scratch / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(scratch / "sources", filter="data")
    return sdist, only("*", scratch / "sources")


def build_wheel(interpreter: Interpreter, machine: str, sources: Path, scratch: Path) -> Path:
    """Returns the contents of the ordinary wheel for one interpreter."""
    wheels = scratch / interpreter.tag
    options = ("--no-deps", "--wheel-dir", wheels)
    if machine != platform.machine():  # pybind11 reads it.
        suffix = f".cpython-{interpreter.tag[2:]}-{machine}-linux-gnu.so"
        os.environ["SETUPTOOLS_EXT_SUFFIX"] = suffix
    run_module("pip", "--python", interpreter.path, "wheel", *options, sources)
    run_module("wheel", "unpack", "--dest", wheels / "contents", only("*.whl", wheels))
    return only("*", wheels / "contents")


def common_files(contents: Path) -> dict[Path, bytes]:
    """Returns the files of a wheel that are the same for every interpreter."""
    return {
        path.relative_to(contents): path.read_bytes()
        for path in contents.rglob("*")
        if path.is_file() and not any(path.match(pattern) for pattern in OF_ONE_WHEEL)
    }


def check_cubins(cubins: Sequence[Path], contents: Path) -> None:
    """Raises ValueError where a wheel's library lacks the machine code of a file."""
    library = contents / "lightcc" / "liblightcc_cuda.so"
    held = library.read_bytes()
    lacking = [cubin.name for cubin in cubins if cubin.read_bytes() not in held]
    if lacking:
        message = f"{library} lacks {', '.join(lacking)}"
        raise ValueError(message)


def merge(trees: Sequence[Path]) -> Path:
    """Puts the bindings of all wheels into the first one's contents, and returns these.

    Raises:
        ValueError: The wheels differ in more than their bindings.
    """
    first, *others = trees
    expected = common_files(first)
    for tree in others:
        found = common_files(tree)
        differing = [
            str(name)
            for name in sorted(expected.keys() | found.keys())
            if expected.get(name) != found.get(name)
        ]
        if differing:
            message = f"the wheels {first} and {tree} differ in {', '.join(differing)}"
            raise ValueError(message)
        shutil.copy2(only(BINDINGS, tree), first / "lightcc")
    return first


def pack(contents: Path, interpreters: Sequence[Interpreter], machine: str, scratch: Path) -> Path:
    """Returns the wheel of `contents`, for `interpreters`, `machine` and `old_glibc.GLIBC`."""
    packed, audited = scratch / "packed", scratch / "audited"
    packed.mkdir()
    run_module("wheel", "pack", "--dest-dir", packed, contents)
    tags = ".".join(interpreter.tag for interpreter in interpreters)
    wheel = only("*.whl", packed)
    named = ("--python-tag", tags, "--abi-tag", tags, "--platform-tag", f"linux_{machine}")
    run_module("wheel", "tags", "--remove", *named, wheel)
    # An error where the wheel needs more than that of a system.
    platform = f"manylinux_{old_glibc.GLIBC.replace('.', '_')}_{machine}"
    repair = ("repair", "--plat", platform, "--wheel-dir", audited)
    run_module("auditwheel", *repair, only("*.whl", packed))
    return only("*.whl", audited)


def build_for(
    machine: str, interpreters: Sequence[Interpreter], sources: Path, scratch: Path
) -> Path:
    """Returns the wheel for one machine, made in `scratch`, a folder that there is not."""
    scratch.mkdir()
    before = dict(os.environ)
    # Read by setuptools in every build: all build in one folder of CMake's.
    options = scratch / "setuptools.cfg"
    options.write_text(f"[build_ext]\nbuild_temp = {scratch / 'cmake'}\n")
    os.environ["DIST_EXTRA_CONFIG"] = str(options)
    os.environ.update(old_glibc.compiler_flags(machine, scratch))
    cubins = make_cubins.make_cubins(Path(sys.prefix), scratch / "cubins")
    os.environ["LIGHTCC_CUBINS"] = str(scratch / "cubins")
    trees = [build_wheel(interpreter, machine, sources, scratch) for interpreter in interpreters]
    check_cubins(cubins, trees[0])
    wheel = pack(merge(trees), interpreters, machine, scratch)
    os.environ.clear()
    os.environ.update(before)
    return wheel


def main() -> int:
    """Builds, and leaves nothing of an earlier build in the output folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--machine", dest="machines", action="append", metavar="MACHINE")
    parser.add_argument("pythons", nargs="*", type=Path, metavar="PYTHON")
    arguments = parser.parse_args()
    machines = arguments.machines or [platform.machine()]
    try:
        interpreters = choose(arguments.pythons)
        for machine in machines:
            old_glibc.compiler_for(machine)
    except ValueError as error:
        parser.error(str(error))
    sys.stdout.write(f"{', '.join(machines)}: CPython {', '.join(map(str, interpreters))}\n")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        sdist, sources = build_sdist(scratch)
        made = [sdist]
        made += [
            build_for(machine, interpreters, sources, scratch / machine) for machine in machines
        ]
        arguments.output.mkdir(parents=True, exist_ok=True)
        for old in arguments.output.glob("lightcc-*"):
            old.unlink()
        for file in made:
            shutil.copy2(file, arguments.output)
            sys.stdout.write(f"{arguments.output / file.name}: {file.stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
