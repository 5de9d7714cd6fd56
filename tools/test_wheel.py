"""Installs one wheel under every CPython that it is for, and compares the bits of its results.

Usage: test_wheel.py FOLDER [--with 3.11=torch==2.13.0 ...] [PYTHON...]

FOLDER holds one wheel of lightcc for this machine. For each interpreter a fresh environment gets
the wheel, what it depends on, and what --with adds for that version; nothing is compiled.
wheel_program.py runs there on four ranks; its digests must be those of all other interpreters. Also
fails when an interpreter that the wheel is for is not there: a wheel is as good as what was tested
of it. That the wheel is as portable as its name says, auditwheel has found when it was built.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from interpreters import Interpreter, choose

PROGRAM = Path(__file__).resolve().parent / "wheel_program.py"
RANKS = 4
RUN_LIMIT_S = 1200
EXTRA = re.compile(r"(3\.\d+)=(.+)")


@dataclass
class Outcome:
    """What the program printed under one interpreter."""

    versions: str
    digests: dict[str, str]


def missing_interpreters(wheel: Path, interpreters: Sequence[Interpreter]) -> list[str]:
    """Returns one line for each Python that `wheel` is for and that is not there, or vice versa."""
    tags = set(wheel.stem.split("-")[2].split("."))
    there = {interpreter.tag for interpreter in interpreters}
    return [
        *(f"{tag}: the wheel is for it, but it is not here" for tag in sorted(tags - there)),
        *(f"{tag}: is here, but the wheel is not for it" for tag in sorted(there - tags)),
    ]


def install(wheel: Path, interpreter: Interpreter, extras: Sequence[str], folder: Path) -> Path:
    """Makes an environment in `folder` and returns its folder of programs."""
    make = [str(interpreter.path), "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(make, check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder), "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet", "--only-binary=:all:", str(wheel), *extras]
    subprocess.run(install, check=True)
    subprocess.run([*pip, "check"], check=True)
    return folder / "bin"


def run_program(
    programs: Path,
    *options: str,
    python: Sequence[str] = (),
    ranks: int = RANKS,
    variables: Mapping[str, str] | None = None,
) -> Outcome:
    """Runs the program on all ranks and returns what it printed.

    Args:
        programs: Folder of the `lightccrun` that starts them.
        options: The program's.
        python: What runs the program; empty: the Python of `programs`.
        ranks: How many there are.
        variables: What their environment has beside this one's.
    """
    launch = [str(programs / "lightccrun"), "--no-prefix", "-np", str(ranks)]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [*launch, *(python or [str(programs / "python")]), str(PROGRAM), *options],
        check=True,
        cwd=programs,
        env={**own, **(variables or {})},
        stdout=subprocess.PIPE,
        text=True,
        timeout=RUN_LIMIT_S,
    )
    found = json.loads(done.stdout)
    versions = ", ".join(
        f"{part} {found[part]}" for part in ("machine", "python", "numpy", "torch")
    )
    return Outcome(versions, found["digests"])


def differences(outcomes: Sequence[Outcome]) -> list[str]:
    """Returns one line for each result whose bits are not the same everywhere."""
    first: dict[str, tuple[str, str]] = {}
    problems = []
    for outcome in outcomes:
        for name, digest in outcome.digests.items():
            other, expected = first.setdefault(name, (outcome.versions, digest))
            if digest != expected:
                problems.append(f"{name}: other bits under {outcome.versions} than under {other}")
    return problems


def extras_by_version(arguments: Sequence[str]) -> dict[str, list[str]]:
    """Returns what --with adds, by version of Python.

    Raises:
        ValueError: An argument is not of the form 3.X=REQUIREMENT.
    """
    extras: dict[str, list[str]] = {}
    for argument in arguments:
        match = EXTRA.fullmatch(argument)
        if match is None:
            message = f"--with {argument}: must be 3.X=REQUIREMENT, as 3.11=torch==2.13.0"
            raise ValueError(message)
        extras.setdefault(match[1], []).append(match[2])
    return extras


def main() -> int:
    """Tests the wheel; returns 1 and says what is wrong where something is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--with", dest="extras", action="append", default=[])
    parser.add_argument("pythons", nargs="*", type=Path, metavar="PYTHON")
    arguments = parser.parse_args()
    wheels = list(arguments.folder.glob(f"lightcc-*_{platform.machine()}.whl"))
    if len(wheels) != 1:
        parser.error(f"{arguments.folder} must hold one wheel for this machine, not {len(wheels)}")
    wheel = wheels[0].resolve()
    try:
        interpreters = choose(arguments.pythons)
        extras = extras_by_version(arguments.extras)
    except ValueError as error:
        parser.error(str(error))
    problems = missing_interpreters(wheel, interpreters)
    unused = extras.keys() - {str(interpreter) for interpreter in interpreters}
    problems += [f"--with {version}=...: there is no such Python" for version in sorted(unused)]
    outcomes = []
    for interpreter in interpreters:
        with tempfile.TemporaryDirectory() as directory:
            added = extras.get(str(interpreter), [])
            programs = install(wheel, interpreter, added, Path(directory) / "venv")
            outcomes.append(run_program(programs))
        sys.stdout.write(f"{outcomes[-1].versions}: {len(outcomes[-1].digests)} results\n")
        sys.stdout.flush()
    problems += differences(outcomes)
    for problem in problems:
        sys.stdout.write(f"FAILED {problem}\n")
    sys.stdout.write(f"{wheel.name}: {len(outcomes)} interpreters, {len(problems)} problems\n")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
