"""Checks that documentation fits together: links, the lists of pages, environment variables.

Exits 1 and names each page and line that is wrong.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from tracked_files import ROOT, tracked_files

FENCE = re.compile(r"^ *```")
HEADING = re.compile(r"^#+ +(.*)$")
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`[^`]*`")
OTHER_SITE = re.compile(r"^[a-z]+:")

# Each list names all pages of its folder and of the folders below that have no list.
LISTS = ("docs/README.md", "docs/harp/README.md", "docs/lab/README.md")

VARIABLE_PAGE = "docs/reference/environment.md"
# A variable is read where its whole name is a string.
VARIABLE = re.compile(r"""["']((?:HARP|LIGHT|LIGHTCC)_[A-Z0-9_]+)["']""")
VARIABLE_ROW = re.compile(r"^\| `((?:HARP|LIGHT|LIGHTCC)_[A-Z0-9_]+)`(?: \||<br>)", re.MULTILINE)
CODE_FOLDERS = ("csrc/", "harp_plugin/src/", "lightcc/", "setup.py")
CODE_SUFFIXES = {".cpp", ".hpp", ".py", ".pth"}


def text_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields the number and the text of each line that is not within a fenced block."""
    fenced = False
    for number, line in enumerate(text.split("\n"), start=1):
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield number, line


def anchors(text: str) -> set[str]:
    """Returns what links may name after `#` in a page, as GitHub makes it of the headings."""
    found: set[str] = set()
    for _, line in text_lines(text):
        if heading := HEADING.match(line):
            kept = re.sub(r"[^\w\- ]", "", heading[1].strip().lower())
            anchor = base = kept.replace(" ", "-")
            repeated = 0
            while anchor in found:
                repeated += 1
                anchor = f"{base}-{repeated}"
            found.add(anchor)
    return found


def resolve(page: str, target: str) -> str:
    """Returns the path, relative to the root, to which `target` leads from `page`."""
    parts: list[str] = []
    for part in (PurePosixPath(page).parent / target).parts:
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def broken_links(pages: Mapping[str, str], files: set[str]) -> list[str]:
    """Returns one line for each link in `pages` to no file of `files`, or to no heading."""
    folders = {str(parent) for name in files for parent in PurePosixPath(name).parents}
    problems = []
    for page, text in pages.items():
        for number, line in text_lines(text):
            for target in LINK.findall(CODE.sub("", line)):
                if OTHER_SITE.match(target):
                    continue
                name, _, anchor = target.partition("#")
                path = resolve(page, name) if name else page
                if path not in files and path not in folders:
                    problems.append(f"{page}:{number}: no such file: {target}")
                elif anchor and anchor not in anchors(pages.get(path, "")):
                    problems.append(f"{page}:{number}: no such heading: {target}")
    return problems


def unlisted_pages(pages: Mapping[str, str]) -> list[str]:
    """Returns one line for each page of docs/ to which the list of its folder has no link."""
    problems = []
    for page in pages:
        lists = [name for name in LISTS if page.startswith(name.removesuffix("README.md"))]
        if not lists or page in LISTS:
            continue
        nearest = max(lists, key=len)
        linked = {
            resolve(nearest, target.partition("#")[0])
            for target in LINK.findall(pages.get(nearest, ""))
        }
        if page not in linked:
            problems.append(f"{page}: {nearest} does not say who reads it")
    return problems


def wrong_variables(page: str, sources: Mapping[str, str]) -> list[str]:
    """Returns one line for each variable that only `page`, or only `sources`, know."""
    read: dict[str, str] = {}
    for name, text in sources.items():
        for variable in VARIABLE.findall(text):
            read.setdefault(variable, name)
    rows = VARIABLE_ROW.findall(page)
    problems = [
        f"{VARIABLE_PAGE}: {variable} of {name} has no row"
        for variable, name in sorted(read.items())
        if variable not in rows
    ]
    problems += [
        f"{VARIABLE_PAGE}: no code reads {variable}" for variable in rows if variable not in read
    ]
    problems += [
        f"{VARIABLE_PAGE}: {variable} has {rows.count(variable)} rows"
        for variable in sorted(set(rows))
        if rows.count(variable) > 1
    ]
    return problems


def read_all(paths: Iterable[Path]) -> dict[str, str]:
    """Returns the texts of `paths`, which are relative to the root."""
    return {str(path): (ROOT / path).read_text() for path in paths}


def main() -> int:
    """Checks the whole tree."""
    files = tracked_files()
    pages = read_all(path for path in files if path.suffix == ".md")
    # The page's own table in Python shows names; it does not read them.
    sources = read_all(
        path
        for path in files
        if path.suffix in CODE_SUFFIXES and str(path).startswith(CODE_FOLDERS)
    )
    problems = broken_links(pages, set(map(str, files)))
    problems += unlisted_pages(pages)
    problems += wrong_variables(pages[VARIABLE_PAGE], sources)
    for line in problems:
        sys.stderr.write(line + "\n")
    sys.stdout.write(f"docs: {len(pages)} pages, {len(problems)} problems\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
