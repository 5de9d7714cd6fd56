"""Runs the aarch64 wheel by qemu-user, and compares its results with this machine's, bit by bit.

Usage: test_aarch64.py FOLDER ROOT    (with the Python of an environment that has lightcc)

FOLDER holds the wheel, ROOT is what tools/get_aarch64.sh has unpacked. The wheel and numpy for
aarch64 are put beside ROOT's CPython. Then wheel_program.py runs on two ranks of one host and on
two blocks of two, once here and once there. The launcher is this machine's both times.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from build_wheel import only
from old_glibc import GLIBC
from test_wheel import differences, run_program

BLOCKS = {"LIGHT_2D_ALLREDUCE": "1", "LIGHT_INTRA_SIZE": "2", "LIGHT_TOPK_THRESHOLD": "16K"}
GRIDS: tuple[tuple[int, dict[str, str]], ...] = ((2, {}), (4, BLOCKS))


def install(wheel: Path, version: str, folder: Path) -> None:
    """Puts the wheel and what the program imports for aarch64 into a folder."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    platform = f"manylinux_{GLIBC.replace('.', '_')}_aarch64"
    chosen = ["--only-binary=:all:", "--platform", platform, "--python-version", version]
    for older in ("manylinux_2_17_aarch64", "manylinux2014_aarch64"):
        chosen += ["--platform", older]
    packages = [str(wheel), "numpy", "ml_dtypes"]
    subprocess.run([*pip, *chosen, "--target", str(folder), *packages], check=True)


def main() -> int:
    """Returns 1 and says what differs where something does."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("root", type=Path)
    arguments = parser.parse_args()
    wheel = only("lightcc-*_aarch64.whl", arguments.folder).resolve()
    python = only("usr/bin/python3.[0-9]*", arguments.root).resolve()
    programs = Path(sys.executable).parent
    problems = []
    with tempfile.TemporaryDirectory() as directory:
        install(wheel, python.name.removeprefix("python"), Path(directory))
        # The launcher must not see that folder.
        emulated = ["qemu-aarch64", "-E", f"PYTHONPATH={directory}"]
        emulated += ["-L", str(arguments.root.resolve()), str(python)]
        for ranks, variables in GRIDS:
            here = run_program(programs, "--numpy", ranks=ranks, variables=variables)
            there = run_program(
                programs, "--numpy", python=emulated, ranks=ranks, variables=variables
            )
            lacking = sorted(here.digests.keys() ^ there.digests.keys())
            problems += [f"{name}: on one of the two alone" for name in lacking]
            problems += differences([here, there])
            first = {
                here.digests[f"{kind} of float32, step 0"] for kind in ("int8", "int4", "topk")
            }
            if len(first) != (3 if variables else 1):
                problems.append(f"{ranks} ranks: {len(first)} of 3 compressors differ")
            same = len(here.digests.keys() & there.digests.keys())
            sys.stdout.write(f"{ranks} ranks, {here.versions}; {there.versions}: {same} results\n")
            sys.stdout.flush()
    for problem in problems:
        sys.stdout.write(f"FAILED {problem}\n")
    sys.stdout.write(f"{wheel.name}: {len(problems)} problems\n")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
