"""Prints a regular expression for the tests that passed in a report of ctest.

Usage: passed_tests.py REPORT.xml

A GoogleTest program in which something was skipped is not among them: what it wanted may be there
by now. Without a report, or without a test that passed, the expression matches nothing.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from check_skips import GOOGLETEST_SKIP


def passed_tests(report: Path) -> list[str]:
    """Returns their names."""
    if not report.exists():
        return []
    return [
        case.get("name", "")
        # Written by our own tools a moment ago: not hostile.
        for case in ET.parse(report).iter("testcase")  # noqa: S314
        if case.get("status") == "run"
        and not GOOGLETEST_SKIP.search(case.findtext("system-out") or "")
    ]


def main() -> int:
    """Reads the report named on the command line."""
    names = passed_tests(Path(sys.argv[1]))
    sys.stdout.write(f"^({'|'.join(map(re.escape, names)) or 'no test at all'})$\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
