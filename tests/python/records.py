"""What became of each test, in a file that can be read before pytest ends, or if it never does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class Recorder:
    """A plugin of pytest: appends a line of JSON as each test begins, and as it is over.

    A line says `test` and `result`: begun, passed, failed or skipped, the last with a `reason`. Of
    a test that has several, the last one counts, but failed is never taken back.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._append(nodeid, "begun")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._append(report.nodeid, "failed")
        elif report.skipped:
            # Place and reason; of an expected failure it is another thing.
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "no reason"
            self._append(report.nodeid, "skipped", reason.removeprefix("Skipped: "))
        elif report.when == "call":
            self._append(report.nodeid, "passed")

    def _append(self, test: str, result: str, reason: str = "") -> None:
        line = {"test": test, "result": result} | ({"reason": reason} if reason else {})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
