"""Checks that identifiers use the words of docs/reference/glossary.md, and how comments begin.

The glossary's last table lists words that an identifier does not have. A comment that begins with
"Of" has no subject. Exits 1 and names each identifier and comment that breaks a rule.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tracked_files import ROOT, tracked_files

GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
TABLE = "## Words that identifiers do not use"

# Names of tests are claims, so sentences; they may use any word.
FOLDERS = ("csrc", "harp_plugin/src", "harp_plugin/sim", "harp_plugin/tools", "lightcc")
COMMENTED = ("harp_plugin", "measure", "tests", "tools")
PYTHON = {".py", ".pyi"}
SUFFIXES = {".cpp", ".cu", ".hpp", ".h", ".inl"} | PYTHON

PYTHON_TEXT = re.compile(r'"""[\s\S]*?"""|#.*|"(?:\\.|[^"\\\n])*"|' + r"'(?:\\.|[^'\\\n])*'")
CPP_TEXT = re.compile(r'//.*|/\*[\s\S]*?\*/|^\s*#\s*include.*|"(?:\\.|[^"\\\n])*"', re.MULTILINE)
GENITIVE = re.compile(r"(//[/!]?<?|#) ?Of ")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

# `at_least`, `in_place` and the like are one word each.
PHRASES = re.compile(r"(?i)(at_?(least|most)|in_?place|out_of_place)")


class Ban(NamedTuple):
    """A refused word, what to say instead, and below which folder ("": everywhere)."""

    word: str
    instead: str
    folder: str


class Found(NamedTuple):
    """An identifier in a line of a file."""

    path: str
    line: int
    name: str


def read_bans(glossary: str) -> list[Ban]:
    """Returns the rows of the glossary's table of refused words."""
    _, _, table = glossary.partition(TABLE)
    bans = []
    for line in table.split("\n"):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 3 and cells[0] not in ("not", "---"):
            folder = "" if cells[2] == "everywhere" else cells[2].strip("`")
            bans.append(Ban(cells[0], cells[1], folder))
    return bans


def words_of(name: str) -> set[str]:
    """Returns the words of an identifier, in small letters."""
    return {word.lower() for word in WORD.findall(PHRASES.sub("_", name))}


def identifiers(path: Path, text: str) -> Iterator[Found]:
    """Yields each identifier in the code of `text`, not in its comments and strings."""
    pattern = PYTHON_TEXT if path.suffix in PYTHON else CPP_TEXT
    code = pattern.sub(lambda match: "\n" * match[0].count("\n"), text)
    for number, line in enumerate(code.split("\n"), start=1):
        for match in IDENTIFIER.finditer(line):
            yield Found(str(path), number, match[0])


def refused(found: Found, bans: Iterable[Ban]) -> Iterator[Ban]:
    """Yields the bans that an identifier breaks."""
    words = words_of(found.name)
    for ban in bans:
        if ban.word in words and found.path.startswith(ban.folder):
            yield ban


def genitives_of(files: dict[Path, str]) -> list[str]:
    """Returns one line for each comment, or line of one, that begins with "Of"."""
    return [
        f"{path}:{number}: say what it is, not only of what: {line.strip()}"
        for path, text in files.items()
        for number, line in enumerate(text.split("\n"), start=1)
        if GENITIVE.search(line)
    ]


def problems_of(files: dict[Path, str], bans: list[Ban]) -> list[str]:
    """Returns one line for each identifier that breaks a ban."""
    return [
        f"{found.path}:{found.line}: {found.name}: say {ban.instead} for {ban.word} "
        "(docs/reference/glossary.md)"
        for path, text in files.items()
        for found in identifiers(path, text)
        for ban in refused(found, bans)
    ]


def main() -> int:
    """Checks the whole tree."""
    bans = read_bans(GLOSSARY.read_text())
    files = {
        path: (ROOT / path).read_text()
        for path in tracked_files(*FOLDERS, *COMMENTED)
        if path.suffix in SUFFIXES
    }
    named = {path: text for path, text in files.items() if str(path).startswith(FOLDERS)}
    problems = problems_of(named, bans) + genitives_of(files)
    for line in problems:
        sys.stderr.write(line + "\n")
    sys.stdout.write(f"words: {len(bans)} refused, {len(problems)} problems\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
