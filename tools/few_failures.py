"""Prints how many tests failed in a JUnit report, where these are few enough to be run once more.

Usage: few_failures.py REPORT.xml

Few are up to 20 tests, of up to three files: tests that share their ranks fail together. Where more
failed, or none, or there is no report, it prints nothing.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

MAX_TESTS = 20
MAX_FILES = 3


def count(report: Path) -> int:
    """Returns how many failed, or 0 where those are not few."""
    if not report.exists():
        return 0
    failed = [
        case.get("classname")
        # Written by our own tools a moment ago: not hostile.
        for case in ET.parse(report).iter("testcase")  # noqa: S314
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return len(failed) if len(failed) <= MAX_TESTS and len(set(failed)) <= MAX_FILES else 0


def main() -> int:
    """Reads the report named on the command line."""
    sys.stdout.write(f"{count(Path(sys.argv[1])) or ''}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
