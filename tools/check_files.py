"""Checks what no other tool checks: size, encoding, white space, stray paths, banned calls.

A page of documentation has lines of at most 100 columns, but for rows of tables, and for blocks of
```text, which show what a program prints. Exits 1 and names each file and line that breaks a rule.

pre-commit-hooks has three of these rules (ends of lines, of files, carriage returns) and none of
the others, so it would save five lines and cost a pass over the tree.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tracked_files import ROOT, tracked_files

CLASS = re.compile(
    r"^(?:class|struct|union|enum(?: class)?) (?:alignas\(\w+\) |LIGHTCC_EXPORT )?"
    r"([\w:]+)\b(?!<)(?!.*;$)"  # "<": a specialisation.
)
NAMESPACE = re.compile(r"^(namespace [\w:]+ \{|\}  // namespace)")

MOST_LINES = 600
MOST_LINES_OF_A_TEST = 800
MAX_COLUMNS_OF_A_PAGE = 100
SIZED = {".cpp", ".cu", ".hpp", ".h", ".py", ".pyi"}

# Inputs of tests are bytes, not text.
BINARY = re.compile(r"^(harp_plugin/)?tests/fuzz/corpus/|\.(png|svg|ico|gz|bin)$")
MAY_HOLD_TABS = re.compile(r"(^|/)Makefile$|\.mk$")

EVERYWHERE = {
    "a path of one machine": re.compile(r"(?<![\w.])/(work|root|home/\w)[/\w]"),
    "unfinished business": re.compile(r"\b(T" r"ODO|F" r"IXME|T" r"BD|X" r"XX)\b"),
    "trailing white space": re.compile(r"[ \t]+$"),
}

# What the engine may not call, and the one file that may.
BANNED_IN_ENGINE = {
    "getenv": (re.compile(r"\b(secure_)?getenv\s*\("), "csrc/lightcc/base/knobs.cpp"),
    "abort, exit": (re.compile(r"\b(abort|_?exit|quick_exit|terminate)\s*\("), None),
    "output": (re.compile(r"\b(printf|puts|putchar|perror)\s*\(|std::(cout|cerr|clog)\b"), None),
    "detach": (re.compile(r"\.detach\s*\("), None),
    "sleep": (re.compile(r"\b(sleep_for|sleep_until|usleep|nanosleep|sleep)\s*\("), None),
    "system, popen": (re.compile(r"\bstd::system\s*\(|\bpopen\s*\("), None),
    "throw": (re.compile(r"^\s*throw\b"), None),
}
# HARP's rooms without any I/O keep the same rules.
HARP_CORE = {("harp_plugin", "src", "base"), ("harp_plugin", "src", "protocol")}
COMMENT = re.compile(r"//.*$")


def line_limit(path: Path) -> int | None:
    """Returns the most lines that `path` may have, or None where it may have any number."""
    if path.suffix not in SIZED:
        return None
    return MOST_LINES_OF_A_TEST if path.parts[0] == "tests" else MOST_LINES


def problems_of_line(path: Path, line: str) -> Iterator[str]:
    """Yields what is wrong with one line."""
    if not line.isascii():
        yield "not ASCII"
    if "\t" in line and not MAY_HOLD_TABS.search(str(path)):
        yield "a tab"
    if "\r" in line:
        yield "a carriage return"
    for name, pattern in EVERYWHERE.items():
        if pattern.search(line):
            yield name
    if path.parts[:2] == ("csrc", "lightcc") or path.parts[:3] in HARP_CORE:
        code = COMMENT.sub("", line)
        for name, (pattern, exempt) in BANNED_IN_ENGINE.items():
            if str(path) != exempt and pattern.search(code):
                yield f"the engine may not call: {name}"


def wide_lines(lines: list[str]) -> Iterator[int]:
    """Yields the numbers of the lines of a page that are too long."""
    shows_output = False
    for number, line in enumerate(lines, start=1):
        if line.lstrip().startswith("```"):
            shows_output = line.strip() == "```text"
        is_row = line.lstrip().startswith("|")
        if len(line) > MAX_COLUMNS_OF_A_PAGE and not is_row and not shows_output:
            yield number


def check(path: Path, content: bytes) -> list[str]:
    """Returns one line for each rule that `content`, the bytes of `path`, breaks."""
    if BINARY.search(str(path)):
        return []
    text = content.decode("utf-8", errors="replace")
    problems = []
    lines = text.split("\n")
    limit = line_limit(path)
    if limit is not None and len(lines) - 1 > limit:
        problems.append(f"{path}: {len(lines) - 1} lines, {limit} allowed: split it by idea")
    if text and not text.endswith("\n"):
        problems.append(f"{path}: no newline at the end")
    for number, line in enumerate(lines, start=1):
        problems.extend(f"{path}:{number}: {problem}" for problem in problems_of_line(path, line))
    if path.suffix == ".md":
        problems.extend(
            f"{path}:{number}: over {MAX_COLUMNS_OF_A_PAGE} columns" for number in wide_lines(lines)
        )
    return problems


def classes_of(text: str) -> Iterator[tuple[str, int]]:
    """Yields each class that a header defines, with its namespaces, and the number of its line."""
    inside: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if NAMESPACE.match(line):
            if line.startswith("}"):
                inside = inside[:-1]
            else:
                inside.append(line.split()[1])
        elif found := CLASS.match(line):
            yield "::".join([*inside, found[1]]), number


def repeated_classes(headers: dict[Path, str]) -> list[str]:
    """Returns one line for each class that several of `headers` define.

    That breaks the rule of one definition as soon as one program includes both, and no compiler
    sees it.
    """
    positions: dict[str, list[str]] = {}
    for path, text in headers.items():
        for name, number in classes_of(text):
            positions.setdefault(name, []).append(f"{path}:{number}")
    return [
        f"{found[-1]}: {name} is defined in {found[0]}, too: rename it by its meaning"
        for name, found in positions.items()
        if len(found) > 1
    ]


def main() -> int:
    """Checks the whole tree."""
    files = tracked_files()
    roots = ("csrc", "harp_plugin")
    headers = [path for path in files if path.suffix == ".hpp" and path.parts[0] in roots]
    repeated = repeated_classes({path: (ROOT / path).read_text() for path in headers})
    problems = repeated + [
        line for path in files for line in check(path, (ROOT / path).read_bytes())
    ]
    for line in problems:
        sys.stderr.write(line + "\n")
    sys.stdout.write(f"files: {len(files)} files, {len(problems)} problems\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
