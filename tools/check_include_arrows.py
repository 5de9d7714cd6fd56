"""Checks that rooms of csrc/lightcc and harp_plugin include one another in one direction only.

A room may include itself and every room of a lower floor; rooms of one floor are siblings and may
not include one another. pybind11 and Python.h belong to csrc/bindings. The engine knows HARP as an
NCCL net plugin only: the transport over plugins includes the statement of their ABI, and nothing
else of HARP is included anywhere. The control plane and transport/channel include no header that
does I/O, waits, or tells the time. HARP includes nothing of lightcc, and its protocol no header
that does I/O, waits, or tells the time. Exits 1 and names each line that breaks a rule.
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
    {"compression", "control"},
    {"engine"},
    {"lightcc_cuda"},
    {"bindings", "lightcc_tf"},
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
# Libraries of their own, beside the engine's: folders of csrc.
LIBRARIES = FLOORS[-1] | FLOORS[-2]
# Where the engine meets NCCL's net plugins, and what it may know of HARP there: "abi/name.hpp".
PLUGIN_FOLDER = ("csrc", "lightcc", "transport", "plugin")
HARP_HEADERS = re.compile(r"^(abi|src|sim|tools|harp_plugin)/")

# The control plane and a channel are machines: their drivers do I/O and tell them the time.
SANS_IO = (("csrc", "lightcc", "control"), ("csrc", "lightcc", "transport", "channel"))

# HARP's rooms, by the floor they stand on. Its headers are named "room/name.hpp".
HARP_FLOORS = [
    {"base", "abi"},
    {"sync"},
    {"protocol", "datapath"},
    {"telemetry"},
    {"runtime", "sim", "dpdk"},
    {"endpoint"},
    {"plugin"},
]
HARP_FLOOR_OF = {room: floor for floor, rooms in enumerate(HARP_FLOORS) for room in rooms}
# What the protocol may include of the system: nothing that does I/O, waits, or tells the time. The
# types of <chrono> are welcome, its clocks are not.
HARP_SANS_IO = {"base", "protocol"}
# Rooms of lower floors that are closed to a room all the same: a session has one thread.
HARP_CLOSED = {"protocol": {"sync"}}
SYSTEM_HEADERS = re.compile(
    r"^(sys/|net/|netinet/|arpa/|linux/|unistd\.h|time\.h|ctime|poll\.h|pthread\.h|sched\.h|fcntl\.h"
    r"|signal\.h|csignal|thread|mutex|condition_variable|atomic|future|semaphore|random|iostream"
    r"|fstream|cstdio|stdio\.h|filesystem)"
)
CLOCKS = re.compile(r"\b(steady_clock|system_clock|high_resolution_clock|random_device)\b")

# Kernels run on GPUs: of lightcc they know how half precision is defined, and nothing else.
KERNEL_FOLDER = ("csrc", "lightcc_cuda", "kernels")
KERNEL_HEADERS = re.compile(r"^lightcc(_cuda/kernels/.*|/base/half\.hpp)$")
# Included by portable.hpp in tests alone.
SIMULATOR_HEADER = "lightcc_cuda/simulator/device.hpp"

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]')
PYTHON_HEADERS = re.compile(r"^(pybind11/|Python\.h$)")


def room_of(path: Path) -> str | None:
    """Returns the room of a file under csrc, or None where it is not in a room."""
    parts = path.parts
    if len(parts) > 2 and parts[0] == "csrc" and parts[1] in LIBRARIES:
        return parts[1]
    if len(parts) > 3 and parts[:2] == ("csrc", "lightcc"):
        return parts[2]
    return None


def room_included(header: str) -> str | None:
    """Returns the room of an included header, or None where it is not ours."""
    parts = header.split("/")
    if len(parts) > 2 and parts[0] in LIBRARIES:
        return parts[0]
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


def harp_room_of(path: Path) -> str | None:
    """Returns the room of a file of HARP, or None where it is in none (tests, tools)."""
    parts = path.parts
    if len(parts) > 2 and parts[0] == "harp_plugin" and parts[1] in {"abi", "sim"}:
        return parts[1]
    if len(parts) > 3 and parts[:2] == ("harp_plugin", "src"):
        return parts[2]
    return None


def harp_problem_with(room: str, header: str) -> str | None:
    """Says what is wrong when a file of HARP's `room` includes `header`."""
    if header.startswith("lightcc/"):
        return f"{header}: HARP does not depend on lightcc"
    if room in HARP_SANS_IO and SYSTEM_HEADERS.match(header):
        return f"{header}: {room} does no I/O and asks for no time"
    included = header.split("/", maxsplit=1)[0]
    if "/" not in header or included == room or included not in HARP_FLOOR_OF:
        return None
    if included in HARP_CLOSED.get(room, set()):
        return f"{room} has one thread and may not include {included}"
    if HARP_FLOOR_OF[included] >= HARP_FLOOR_OF[room]:
        return f"{room} does not lie above {included} and may not include it"
    return None


def check_harp(path: Path, text: str) -> list[str]:
    """Returns one line for each line in `text`, a file of HARP, that breaks a rule."""
    room = harp_room_of(path)
    if room is None:
        return []
    if room not in HARP_FLOOR_OF:
        return [f"{path}: {room} is not a known room; add it to HARP_FLOORS"]
    problems = []
    for number, line in enumerate(text.splitlines(), start=1):
        match = INCLUDE.match(line)
        problem = harp_problem_with(room, match[1]) if match else None
        if room in HARP_SANS_IO and CLOCKS.search(line):
            problem = f"{room} is told the time and has no randomness of its own"
        if problem:
            problems.append(f"{path}:{number}: {problem}")
    return problems


def check_kernels(path: Path, text: str) -> list[str]:
    """Returns one line for each include of a kernel that is not for kernels."""
    problems = []
    for number, line in enumerate(text.splitlines(), start=1):
        match = INCLUDE.match(line)
        if match and not KERNEL_HEADERS.match(match[1]) and match[1] != SIMULATOR_HEADER:
            problems.append(f"{path}:{number}: {match[1]}: not for kernels")
    return problems


def check(path: Path, text: str) -> list[str]:
    """Returns one line for each include in `text`, the content of `path`, that breaks a rule."""
    if path.parts[0] == "harp_plugin":
        return check_harp(path, text)
    if path.parts[:3] == KERNEL_FOLDER:
        return check_kernels(path, text)
    room = room_of(path)
    if room is None:
        return []
    may_know_abi = path.parts[:4] == PLUGIN_FOLDER
    machine = next((f[-1] for f in SANS_IO if path.parts[: len(f)] == f), None)
    if room not in FLOOR_OF:
        return [f"{path}: {room} is not a known room; add it to FLOORS"]
    problems = []
    for number, line in enumerate(text.splitlines(), start=1):
        match = INCLUDE.match(line)
        problem = problem_with(room, match[1]) if match else None
        if machine and match and SYSTEM_HEADERS.match(match[1]):
            problem = f"{match[1]}: {machine} does no I/O and asks for no time"
        if machine and CLOCKS.search(line):
            problem = f"{machine} is told the time and has no randomness of its own"
        if (
            match
            and HARP_HEADERS.match(match[1])
            and not (may_know_abi and match[1].startswith("abi/"))
        ):
            problem = f"{match[1]}: of HARP, only {'/'.join(PLUGIN_FOLDER)} knows abi/"
        if problem:
            problems.append(f"{path}:{number}: {problem}")
    return problems


def main() -> int:
    """Checks the whole tree."""
    patterns = [
        f"{tree}/*.{kind}" for tree in ("csrc", "harp_plugin") for kind in ("hpp", "cpp", "h")
    ]
    files = tracked_files(*patterns, "csrc/*.cu")
    problems = [line for path in files for line in check(path, (ROOT / path).read_text())]
    for line in problems:
        sys.stderr.write(line + "\n")
    sys.stdout.write(f"include arrows: {len(files)} files, {len(problems)} problems\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
