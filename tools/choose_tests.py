"""Chooses C++ tests, and says what has to be built for them.

Usage: ctest --show-only=json-v1 [options] | choose_tests.py BUILD_FOLDER CHOSEN

Chooses all tests, unless CHECK_CHANGED=1 and history says what changed. Then a change of the engine
or of its build chooses the engine's tests, a change of HARP those of HARP. A third of the other
tests, which moves with CHECK_SEED, is chosen as well; files that share a program go together.
CHOSEN gets a regular expression for ctest, then one line for each file of BUILD_FOLDER that the
chosen tests need.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import zlib
from pathlib import Path

from tracked_files import ROOT

SHARE = 3
ENGINE = re.compile(r"^(csrc|tests/(cpp|fuzz)|cmake|CMake\w+\.\w+$|harp_plugin/abi)")
HARP = re.compile(r"^(harp_plugin|cmake|CMake\w+\.\w+$)")


def changed_files() -> list[str] | None:
    """Returns the files that changed; None where nobody knows."""
    if os.environ.get("CHECK_CHANGED") != "1":
        return None
    command = [str(ROOT / "tools" / "changed_files.sh")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stdout.split("\n") if done.returncode == 0 else None


def commands_of(build: Path) -> dict[str, list[str]]:
    """Returns each test's command. ctest itself names none whose program is not built yet."""
    commands = {}
    for file in build.rglob("CTestTestfile.cmake"):
        for match in re.finditer(r"^add_test\((.*)\)$", file.read_text(), re.MULTILINE):
            name, *command = shlex.split(match[1])
            commands[name] = command
    return commands


def is_harp(command: list[str], build: Path) -> bool:
    """Whether the program that a test starts comes from harp_plugin."""
    return any(f"{build}/harp_plugin/" in word for word in command)


def kin(name: str, command: list[str]) -> str:
    """Returns what tests have in common that are chosen together."""
    return command[0] if any(word.startswith("--file=") for word in command) else name


def choose(
    tests: dict[str, list[str]], build: Path, changed: list[str] | None, seed: int
) -> dict[str, list[str]]:
    """Returns the tests to run, of tests with their commands."""
    if changed is None:
        return tests
    engine = any(ENGINE.match(name) for name in changed)
    harp = any(HARP.match(name) for name in changed)
    return {
        name: command
        for name, command in tests.items()
        if (harp if is_harp(command, build) else engine)
        or (zlib.crc32(Path(kin(name, command)).name.encode()) + seed) % SHARE == 0
    }


def main() -> int:
    """Reads what ctest says on standard input."""
    build = Path(sys.argv[1]).resolve()
    seed = int(os.environ.get("CHECK_SEED", "0"))
    commands = commands_of(build)
    # What CMake does not know the program of, as where GoogleTest is missing, is none of ours.
    listed = [test["name"] for test in json.load(sys.stdin)["tests"]]
    tests = {name: commands[name] for name in listed if name in commands}
    chosen = choose(tests, build, changed_files(), seed)
    needed = {
        str(Path(word).relative_to(build))
        for command in chosen.values()
        for word in command
        if word.startswith(f"{build}/")
    }
    names = "|".join(map(re.escape, chosen)) or "no test at all"
    Path(sys.argv[2]).write_text("\n".join([f"^({names})$", *sorted(needed), ""]))
    sys.stdout.write(f"{len(chosen)} of {len(tests)} tests chosen, seed {seed}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
