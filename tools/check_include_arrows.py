"""Checks that the rooms of csrc/lightcc include one another in one direction only.

A room may include itself and every room of a lower floor; rooms of one floor are siblings and may
not include one another. pybind11 and Python.h belong to csrc/bindings. Exits 1 and names each line
that breaks a rule.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tracked_files import ROOT, tracked_files

FLOORS = [
    {"base"},
    {"wire"},
    {"net"},
    {"transport", "rendezvous"},
    {"collectives", "fusion"},
    {"compression"},
    {"engine"},
    {"bindings"},
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]')
PYTHON_HEADERS = re.compile(r"^(pybind11/|Python\.h$)")


def room_of(path: Path) -> str | None:
    """Returns the room of a file under csrc, or None where it is not in a room."""
    parts = path.parts
    if len(parts) > 2 and parts[:2] == ("csrc", "bindings"):
        return "bindings"
    if len(parts) > 3 and parts[:2] == ("csrc", "lightcc"):
        return parts[2]
    return None


def room_included(header: str) -> str | None:
    """Returns the room of an included header, or None where it is not ours."""
    parts = header.split("/")
    return parts[1] if len(parts) > 2 and parts[0] == "lightcc" else None


def problem_with(room: str, header: str) -> str | None:
    """Says what is wrong when a file of `room` includes `header`."""
    if PYTHON_HEADERS.match(header) and room != "bindings":
        return f"only csrc/bindings may include {header}"
    included = room_included(header)
    if included is None or included == room:
        return None
    if included not in FLOOR_OF:
        return f"{header}: {included} is not a known room"
    if FLOOR_OF[included] == FLOOR_OF[room]:
        return f"{room} and {included} are siblings and may not include one another"
    if FLOOR_OF[included] > FLOOR_OF[room]:
        return f"{room} lies below {included} and may not include it"
    return None


def check(path: Path, text: str) -> list[str]:
    """Returns one line for each include in `text`, the content of `path`, that breaks a rule."""
    room = room_of(path)
    if room is None:
        return []
    if room not in FLOOR_OF:
        return [f"{path}: {room} is not a known room; add it to FLOORS"]
    problems = []
    for number, line in enumerate(text.splitlines(), start=1):
        match = INCLUDE.match(line)
        problem = problem_with(room, match[1]) if match else None
        if problem:
            problems.append(f"{path}:{number}: {problem}")
    return problems


def main() -> int:
    """Checks the whole tree."""
    files = tracked_files("csrc/*.hpp", "csrc/*.cpp", "csrc/*.h", "csrc/*.cu")
    problems = [line for path in files for line in check(path, (ROOT / path).read_text())]
    for line in problems:
        sys.stderr.write(line + "\n")
    sys.stdout.write(f"include arrows: {len(files)} files, {len(problems)} problems\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
