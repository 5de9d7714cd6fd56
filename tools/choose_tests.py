"""Chooses C++ tests, and says what has to be built for them.

Usage: ctest --show-only=json-v1 [options] | choose_tests.py BUILD_FOLDER CHOSEN

Chooses all tests, unless CHECK_CHANGED=1 and history says what changed. Then a change of the engine
or of its build chooses the engine's tests, a change of HARP those of HARP. A third of the other
tests, which moves with CHECK_SEED, is chosen as well. CHOSEN gets a regular expression for ctest,
then one line for each file of BUILD_FOLDER that the chosen tests need.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

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


def is_harp(test: dict[str, Any], build: Path) -> bool:
    """Whether the program that the test starts comes from harp_plugin."""
    return any(f"{build}/harp_plugin/" in word for word in test["command"])


def choose(
    tests: list[dict[str, Any]], build: Path, changed: list[str] | None, seed: int
) -> list[dict[str, Any]]:
    """Returns the tests to run."""
    if changed is None:
        return tests
    engine = any(ENGINE.match(name) for name in changed)
    harp = any(HARP.match(name) for name in changed)
    return [
        test
        for test in tests
        if (harp if is_harp(test, build) else engine)
        or (zlib.crc32(test["name"].encode()) + seed) % SHARE == 0
    ]


def main() -> int:
    """Reads what ctest says on standard input."""
    build = Path(sys.argv[1]).resolve()
    seed = int(os.environ.get("CHECK_SEED", "0"))
    # A test without a command is one whose program CMake does not know: none of ours.
    tests = [test for test in json.load(sys.stdin)["tests"] if "command" in test]
    chosen = choose(tests, build, changed_files(), seed)
    needed = {
        str(Path(word).relative_to(build))
        for test in chosen
        for word in test["command"]
        if word.startswith(f"{build}/")
    }
    names = "|".join(re.escape(test["name"]) for test in chosen) or "no test at all"
    Path(sys.argv[2]).write_text("\n".join([f"^({names})$", *sorted(needed), ""]))
    sys.stdout.write(f"{len(chosen)} of {len(tests)} tests chosen, seed {seed}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
