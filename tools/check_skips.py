"""Adds up JUnit reports and fails on a test that was skipped without being on the list.

Usage: check_skips.py [--any-skip] REPORT.xml...

Reads the reports of pytest and of ctest; in ctest's it also finds the skips inside one GoogleTest
program, which ctest counts as passed. A test that one report skipped and another ran is no skip.
Beside REPORT.xml there may be REPORT-alone.xml, with what failed first and then ran alone
(run_python_tests.sh): what passed there is listed, and has not failed.
tests/allowed-skips.txt lists what may be skipped: one shell pattern per line, matched against
"suite::test", with the reason after " # ". The last line printed is the sum: "N passed, N failed,
N skipped".
"""

from __future__ import annotations

import argparse
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

ALLOWED = Path(__file__).resolve().parent.parent / "tests" / "allowed-skips.txt"
ALONE = "-alone"
GOOGLETEST_SKIP = re.compile(r"^\[  SKIPPED \] ([\w./]+\.[\w./]+)(?: \(\d+ ms\))?$", re.MULTILINE)
GOOGLETEST_PASS = re.compile(r"^\[  PASSED  \] (\d+) tests?\.$", re.MULTILINE)


@dataclass
class Totals:
    """What a set of reports says."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    ran: set[str] = field(default_factory=set)
    passed_alone: set[str] = field(default_factory=set)


def add_case(totals: Totals, case: ET.Element) -> None:
    """Adds one <testcase> to `totals`."""
    name = f"{case.get('classname', '')}::{case.get('name', '')}"
    if case.find("skipped") is not None or case.get("status") in {"notrun", "disabled"}:
        totals.skipped.append(name)
        return
    totals.ran.add(name)
    if case.find("failure") is not None or case.find("error") is not None:
        totals.failed.append(name)
        return
    output = case.findtext("system-out") or ""
    inner = sorted(set(GOOGLETEST_SKIP.findall(output)))
    totals.skipped += [f"{case.get('name', '')}::{skipped}" for skipped in inner]
    ran = GOOGLETEST_PASS.search(output)
    totals.passed += int(ran[1]) if ran else 1


def add_report(totals: Totals, path: Path) -> None:
    """Adds all cases of the report at `path` to `totals`."""
    # Written by our own tools a moment ago: not hostile.
    for case in ET.parse(path).iter("testcase"):  # noqa: S314
        add_case(totals, case)


def read_reports(paths: list[Path]) -> Totals:
    """Adds up all `paths`."""
    totals, alone = Totals(), Totals()
    for path in paths:
        if path.stem.endswith(ALONE):
            continue
        add_report(totals, path)
        again = path.with_stem(path.stem + ALONE)
        if again.exists():
            add_report(alone, again)
    totals.skipped = [name for name in totals.skipped if name not in totals.ran]
    totals.passed_alone = {name for name in totals.failed if name in alone.ran} - set(alone.failed)
    totals.failed = [name for name in totals.failed if name not in totals.passed_alone]
    totals.passed += len(totals.passed_alone)
    return totals


def allowed_patterns(text: str) -> list[str]:
    """Returns the patterns of an allowed-skips file.

    Raises:
        ValueError: a pattern has no reason.
    """
    patterns = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        pattern, separator, reason = line.partition(" # ")
        if not separator or not reason.strip():
            message = f"line {number}: no reason after ' # ': {line}"
            raise ValueError(message)
        patterns.append(pattern.strip())
    return patterns


def main() -> int:
    """Reads the reports named on the command line."""
    parser = argparse.ArgumentParser(description="Adds up test reports and checks their skips.")
    parser.add_argument("--any-skip", action="store_true", help="count skips, but accept them all")
    parser.add_argument("reports", nargs="+", type=Path)
    arguments = parser.parse_args()
    totals = read_reports(arguments.reports)
    patterns = allowed_patterns(ALLOWED.read_text())
    unlisted = [
        name
        for name in totals.skipped
        if not arguments.any_skip and not any(fnmatchcase(name, p) for p in patterns)
    ]
    for name in sorted(totals.passed_alone):
        sys.stdout.write(f"PASSED ALONE, failed beside other tests: {name}\n")
    for name in totals.failed:
        sys.stdout.write(f"FAILED {name}\n")
    for name in unlisted:
        sys.stdout.write(f"SKIPPED, but not listed in tests/allowed-skips.txt: {name}\n")
    sys.stdout.write(
        f"{totals.passed} passed, {len(totals.failed)} failed, {len(totals.skipped)} skipped\n"
    )
    return 1 if totals.failed or unlisted else 0


if __name__ == "__main__":
    sys.exit(main())
