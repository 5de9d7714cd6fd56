"""Checks that identifiers use the words of docs/glossary.md.

The glossary's last table lists words that an identifier does not have. Identifiers from before the
rule are in tools/old_names.txt; none is added there. Exits 1 and names each new identifier.

    python tools/check_words.py             # checks
    python tools/check_words.py --counts    # how often each refused word still stands in the tree
    python tools/check_words.py --prune     # takes names that are gone out of tools/old_names.txt
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tracked_files import ROOT, tracked_files

GLOSSARY = ROOT / "docs" / "glossary.md"
OLD_NAMES = ROOT / "tools" / "old_names.txt"
TABLE = "## Words that identifiers do not use"

# Names of tests are claims, so sentences; they may use any word.
FOLDERS = ("csrc", "harp_plugin/src", "harp_plugin/sim", "harp_plugin/tools", "lightcc")
PYTHON = {".py", ".pyi"}
SUFFIXES = {".cpp", ".cu", ".hpp", ".h"} | PYTHON

PYTHON_TEXT = re.compile(
    r'"""[\s\S]*?"""|#.*|"(?:\\.|[^"\\\n])*"|' + r"'(?:\\.|[^'\\\n])*'",
)
CPP_TEXT = re.compile(r'//.*|/\*[\s\S]*?\*/|^\s*#\s*include.*|"(?:\\.|[^"\\\n])*"', re.MULTILINE)
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


def broken(files: dict[Path, str], bans: list[Ban]) -> Iterator[tuple[Found, Ban]]:
    """Yields each identifier of `files` with each ban that it breaks."""
    for path, text in files.items():
        for found in identifiers(path, text):
            for ban in refused(found, bans):
                yield found, ban


def problems_of(files: dict[Path, str], bans: list[Ban], old: set[str]) -> list[str]:
    """Returns one line for each identifier that breaks a ban and is not an old name."""
    return [
        f"{found.path}:{found.line}: {found.name}: say {ban.instead} for {ban.word} "
        "(docs/glossary.md)"
        for found, ban in broken(files, bans)
        if found.name not in old
    ]


def counts(files: dict[Path, str], bans: list[Ban]) -> list[str]:
    """Returns a line for each refused word that is still there, most frequent first."""
    names: dict[str, set[str]] = {}
    uses: dict[str, int] = {}
    for found, ban in broken(files, bans):
        names.setdefault(ban.word, set()).add(found.name)
        uses[ban.word] = uses.get(ban.word, 0) + 1
    ordered = sorted(uses, key=lambda word: -uses[word])
    return [f"{word}: {len(names[word])} identifiers, {uses[word]} uses" for word in ordered]


def main() -> int:
    """Checks the whole tree, or does what the flag asks for."""
    parser = argparse.ArgumentParser(description="Checks the words of identifiers.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--counts", action="store_true", help="count refused words in the tree")
    what.add_argument("--prune", action="store_true", help="take gone names out of the list")
    args = parser.parse_args()
    bans = read_bans(GLOSSARY.read_text())
    files = {
        path: (ROOT / path).read_text()
        for path in tracked_files(*FOLDERS)
        if path.suffix in SUFFIXES
    }
    if args.counts:
        sys.stdout.write("\n".join(counts(files, bans)) + "\n")
        return 0
    old = set(OLD_NAMES.read_text().split())
    gone = old - {found.name for found, _ in broken(files, bans)}
    if args.prune:
        OLD_NAMES.write_text("".join(f"{name}\n" for name in sorted(old - gone)))
        return 0
    problems = problems_of(files, bans, old)
    for line in problems:
        sys.stderr.write(line + "\n")
    sys.stdout.write(
        f"words: {len(bans)} refused, {len(problems)} problems, {len(old) - len(gone)} old names"
        f"{f', {len(gone)} of them gone: --prune' if gone else ''}\n"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
