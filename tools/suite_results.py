"""What becomes of tests that others wrote: read from pytest's reports, and shown on a page."""

from __future__ import annotations

import textwrap
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Worse results first: of the ranks' results of one test, the worst counts.
ORDER = ("failed", "skipped", "passed")

_MAX_REASONS, _RARE_TESTS = 20, 5


@dataclass
class Result:
    """What became of one test."""

    status: str
    reason: str = ""

    def worse(self, other: Result) -> Result:
        """Returns the one that counts; a rank that only waited for another says less than it."""
        return min(self, other, key=lambda it: (ORDER.index(it.status), "Timeout" in it.reason))


Results = dict[str, Result]


def first_line(message: str) -> str:
    """Returns the first line of a message, or nothing."""
    return message.partition("\n")[0]


def result_of(case: ET.Element, reason_of: Callable[[str], str]) -> Result:
    """Returns the result that a <testcase> tells."""
    for tag, status in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        found = case.find(tag)
        if found is None:
            continue
        text = found.text or ""
        return Result(status, reason_of(f"{found.get('message', '')}\n{text}".strip()))
    return Result("passed")


def read_reports(
    file: str, reports: list[Path], reason_of: Callable[[str], str] = first_line
) -> Results:
    """Returns the results of one file's tests by "file::class::test", the worst rank's.

    The class is empty for a function of the module. `reason_of` finds the reason in a message.
    """
    module = Path(file).stem
    results: Results = {}
    for report in reports:
        # Written by pytest a moment ago: not hostile.
        for case in ET.parse(report).iter("testcase"):  # noqa: S314
            group = case.get("classname", "").rpartition(".")[2]
            name = "::".join([file, "" if group == module else group, case.get("name", "")])
            result = result_of(case, reason_of)
            results[name] = result.worse(results.get(name, result))
    return results


def count_line(name: str, results: Results) -> str:
    """Returns a row of a table: passed, failed, skipped."""
    counts = [sum(it.status == status for it in results.values()) for status in ORDER]
    return f"| {name} | {counts[2]} | {counts[0]} | {counts[1]} |"


def skip_table(reasons: Iterable[str]) -> list[str]:
    """Returns a table of how many tests skipped for each reason, rare ones among many together."""
    counts = Counter(reason.replace("|", "/") for reason in reasons).most_common()
    shown = [it for it in counts if len(counts) <= _MAX_REASONS or it[1] > _RARE_TESTS]
    rows = [f"| {count} | {reason} |" for reason, count in shown]
    if rest := counts[len(shown) :]:
        rows.append(f"| {sum(count for _, count in rest)} | {len(rest)} other reasons |")
    return ["| tests | reason |", "|---|---|", *rows]


def wrapped(line: str) -> str:
    """Returns a line of Markdown in lines of at most 100 columns; a row of a table stays one."""
    if line.startswith("|"):
        return line
    after = "  " if line.startswith("- ") else ""
    return textwrap.fill(
        line, 100, subsequent_indent=after, break_long_words=False, break_on_hyphens=False
    )
