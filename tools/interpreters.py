"""Finds the CPythons of this machine that lightcc can be built for and tested with.

Usage: interpreters.py VERSION    (prints where this machine has that one, for instance 3.14)

Looks along PATH for `python3.X`, where pyenv keeps its own, and in build/pythons (get_python.sh);
of one minor version, the first that is found counts. Left out: prereleases, debug and free-threaded
builds, which have an ABI of their own, and interpreters without their C headers.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

OLDEST = (3, 10)
PROBE_LIMIT_S = 60
NAME = re.compile(r"python3\.\d+")
PYENV = Path("~/.pyenv/versions")
UNPACKED = Path(__file__).resolve().parent.parent / "build" / "pythons"
PROBE = """
import json, os, sys, sysconfig
print(json.dumps({
    "path": sys.executable,
    "version": sys.version_info[:2],
    "implementation": sys.implementation.name,
    "prerelease": sys.version_info.releaselevel != "final",
    "abi": getattr(sys, "abiflags", ""),
    "headers": os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")),
}))
"""


@dataclass(frozen=True, order=True)
class Interpreter:
    """A CPython of this machine."""

    version: tuple[int, int]
    path: Path

    @property
    def tag(self) -> str:
        """What wheels call it, and its ABI as well: "cp310"."""
        return f"cp{self.version[0]}{self.version[1]}"

    def __str__(self) -> str:
        """Returns what people call it: "3.10"."""
        return f"{self.version[0]}.{self.version[1]}"


def look_at(path: Path) -> Interpreter:
    """Starts an interpreter and asks what it is.

    Raises:
        ValueError: It cannot be started, or is none that lightcc can be built for.
    """
    try:
        probe = [str(path), "-I", "-c", PROBE]
        done = subprocess.run(
            probe, capture_output=True, text=True, timeout=PROBE_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        message = f"{path} is no Python that can be started: {error}"
        raise ValueError(message) from error
    found = json.loads(done.stdout)
    version = (found["version"][0], found["version"][1])
    wrong = {
        "is not CPython": found["implementation"] != "cpython",
        f"is {version[0]}.{version[1]}, 3.10 is the oldest allowed": version < OLDEST,
        "is a prerelease": found["prerelease"],
        f"is a debug or free-threaded build ({found['abi']!r})": found["abi"] != "",
        "has no Python.h: install its headers": not found["headers"],
    }
    for reason, applies in wrong.items():
        if applies:
            message = f"{path} {reason}"
            raise ValueError(message)
    return Interpreter(version, Path(found["path"]))


def candidates() -> Iterator[Path]:
    """Yields the paths at which there may be an interpreter, the preferred ones first."""
    for directory in map(Path, os.get_exec_path()):
        if directory.is_dir():
            yield from sorted(path for path in directory.iterdir() if NAME.fullmatch(path.name))
    yield from sorted(PYENV.expanduser().glob("*/bin/python3"))
    yield from sorted(path for path in UNPACKED.glob("*/usr/bin/*") if NAME.fullmatch(path.name))


def choose(named: Sequence[Path]) -> list[Interpreter]:
    """Returns the interpreters that are named, or else all that are found, oldest first.

    Raises:
        ValueError: One that is named cannot be used, two are of one version, or none is found.
    """
    chosen: dict[tuple[int, int], Interpreter] = {}
    for path in named or candidates():
        try:
            interpreter = look_at(path)
        except ValueError:
            if named:
                raise
            continue
        other = chosen.setdefault(interpreter.version, interpreter)
        if named and other != interpreter:
            message = f"{other.path} and {path} are both CPython {other}: one of them is enough"
            raise ValueError(message)
    if not chosen:
        places = f"PATH, pyenv and {UNPACKED} have none"
        message = f"no CPython from 3.10 on with headers: {places}"
        raise ValueError(message)
    return sorted(chosen.values())


def main() -> int:
    """Returns 1 and says so where there is none of the version."""
    (version,) = sys.argv[1:]
    for interpreter in choose([]):
        if str(interpreter) == version:
            sys.stdout.write(f"{interpreter.path}\n")
            return 0
    sys.stderr.write(f"there is no CPython {version} with headers here\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
