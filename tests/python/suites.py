"""Which of the long suites, of lightcc beside another program, run whole.

The whole of a suite runs where its own files changed, or the interface that it calls did, and
everywhere but under CHECK_CHANGED=1. Of the others a part runs that moves with CHECK_SEED. These
parts take BUDGET_SECONDS in all.
"""

from __future__ import annotations

import os
import subprocess
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

#: What other programs call: a change there runs every suite whole.
INTERFACES = ("csrc/bindings/", "lightcc/_adapter/", "lightcc/_discovery/")
BUDGET_SECONDS = 300


@dataclass(frozen=True)
class Suite:
    """Tests and sources as their paths begin, and how long the whole takes on two cores."""

    name: str
    tests: tuple[str, ...]
    sources: tuple[str, ...]
    seconds: int


SUITES = (
    Suite(
        "TensorFlow",
        ("tests/python/tensorflow/",),
        ("csrc/lightcc_tf/", "lightcc/_keras/", "lightcc/keras/", "lightcc/tensorflow/"),
        300,
    ),
    Suite("Ray", ("tests/python/programs/test_ray.py",), ("lightcc/ray/",), 80),
    Suite("Spark", ("tests/python/programs/test_spark.py",), ("lightcc/spark/",), 60),
    Suite("Slurm", ("tests/python/deploy/test_slurm",), ("deploy/slurm/",), 20),
    Suite("pods", ("tests/python/runner/test_pod.py", "tests/python/deploy/"), ("deploy/",), 20),
    Suite(
        "trainers",
        (
            "tests/python/torch_distributed/test_deepspeed.py",
            "tests/python/torch_distributed/test_trainers.py",
        ),
        ("examples/", "lightcc/torch/distributed/"),
        100,
    ),
)


def suite_of(file: str) -> Suite | None:
    """Returns the suite of a file of tests, a path from the root of the repository."""
    return next((suite for suite in SUITES if file.startswith(suite.tests)), None)


def changed_files(root: Path) -> list[str] | None:
    """Returns the files that changed; None where nobody knows, or wants to know."""
    if os.environ.get("CHECK_CHANGED") != "1":
        return None
    command = [str(root / "tools" / "changed_files.sh")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else None


class Choice:
    """What runs of each suite.

    Args:
        changed: The files that changed, as paths from the root; None runs all suites whole.
        seed: Chooses the part of the others. Seeds that follow one another choose all parts.
    """

    def __init__(self, changed: Collection[str] | None, seed: int) -> None:
        self.why = {suite: _why_whole(suite, changed) for suite in SUITES}
        rest = sum(suite.seconds for suite, why in self.why.items() if not why)
        self.parts = max(1, -(-rest // BUDGET_SECONDS))
        self._seed = seed

    def has(self, file: str, scope: str) -> bool:
        """Returns whether a test runs, which shares its ranks with all others of `scope`."""
        suite = suite_of(file)
        if suite is None or self.why[suite]:
            return True
        return (zlib.crc32(scope.encode()) + self._seed) % self.parts == 0

    def lines(self) -> list[str]:
        """Returns what runs of each suite, and why, a line each."""
        part = f"one scope in {self.parts} (CHECK_SEED={self._seed})"
        return [
            f"{suite.name}: {f'whole, as {why}' if why else part}"
            for suite, why in self.why.items()
        ]


def _why_whole(suite: Suite, changed: Collection[str] | None) -> str:
    if changed is None:
        return "all was asked for"
    begins = suite.tests + suite.sources + INTERFACES
    return next((f"{name} changed" for name in sorted(changed) if name.startswith(begins)), "")
