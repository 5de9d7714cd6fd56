"""Finds the ranks of this machine and asks each what it counts.

Ranks listen on abstract Unix sockets (`lightcc._stats.stat_server`), which the kernel lists. What
comes back is checked before it is used: any process may listen under such a name, so an answer
counts only where the kernel says that its sender is this user, or root, and has the number that it
names.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightcc._stats.stat_server import ASKS_STACKS, PREFIX, VERSION
from lightcc._stats.statistics import METRICS

_ANSWER_S = 2.0  # For a rank to answer; the engine may be busy for a while.
_MAX_BYTES = 16 << 20
_MAX_RANKS = 4096
_CREDENTIALS = struct.Struct("iII")
_FACTS = {"pid": int, "rank": int, "size": int, "job": str, "hostname": str, "command": list}


@dataclass(frozen=True)
class Rank:
    """One rank and its answer."""

    pid: int
    rank: int
    size: int
    job: str
    hostname: str
    command: tuple[str, ...]
    started_unix_s: float
    taken_s: float  # On this machine's monotonic clock.
    counters: dict[str, Any]


@dataclass(frozen=True)
class Reading:
    """All ranks that answered, by job and rank; and the processes that did not."""

    ranks: tuple[Rank, ...]
    silent: tuple[int, ...]
    taken_s: float
    links: dict[str, Link]


@dataclass(frozen=True)
class Link:
    """A network interface of this machine, with everybody's traffic."""

    sent_bytes: int
    received_bytes: int
    bits_per_s: float | None  # What the driver says; virtual ones may say nothing.


def read_ranks() -> Reading:
    """Asks every rank that this user may ask, side by side."""
    answers, silent = _ask_all("")
    found = [rank for answer in answers if (rank := _parse(answer)) is not None]
    found.sort(key=lambda one: (one.job, one.rank))
    return Reading(tuple(found), silent, time.monotonic(), read_links())


def read_stacks() -> tuple[list[dict[str, Any]], tuple[int, ...]]:
    """Returns facts and `stacks` of every rank that this user may ask, and who did not answer."""
    answers, silent = _ask_all(f"\0{ASKS_STACKS}{secrets.token_hex(8)}")
    found = [it for it in answers if "stacks" in it and _has_facts(it)]
    return sorted(found, key=lambda it: (it["job"], it["rank"])), silent


def _ask_all(own_name: str) -> tuple[list[dict[str, Any]], tuple[int, ...]]:
    """Returns what ranks answer to somebody of that name, and the processes that do not."""
    names = _socket_names()
    found: list[dict[str, Any]] = []
    silent: list[int] = []
    if names:
        own = [own_name and f"{own_name}-{i}" for i in range(len(names))]
        with ThreadPoolExecutor(min(32, len(names))) as pool:
            for name, answer in zip(names, pool.map(_ask, names, own), strict=True):
                if isinstance(answer, dict):
                    found.append(answer)
                elif answer is not None:
                    silent.append(_pid_of(name))
    return found, tuple(sorted(silent))


def _socket_names() -> list[str]:
    """Returns the names of listening sockets of ranks, as /proc/net/unix has them."""
    names = set()
    for line in Path("/proc/net/unix").read_text(errors="replace").splitlines():
        name = line.rpartition(" ")[2]
        if name.startswith(f"@{PREFIX}") and _pid_of(name[1:]) > 0:
            names.add(name[1:])
    return sorted(names)[:_MAX_RANKS]


def _pid_of(name: str) -> int:
    pid = name.removeprefix(PREFIX).partition("-")[0]
    return int(pid) if pid.isascii() and pid.isdigit() else -1


def _ask(name: str, own_name: str) -> dict[str, Any] | str | None:
    """Returns an answer, why there is none, or None where the rank is gone or somebody else's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asker:
        asker.settimeout(_ANSWER_S)
        try:
            if own_name:
                asker.bind(own_name)
            asker.connect(f"\0{name}")
            raw = asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            pid, user, _ = _CREDENTIALS.unpack(raw)
            if user not in (0, os.geteuid()) and os.geteuid() != 0:
                return None
            text = _read_all(asker)
        except TimeoutError:
            return "it does not answer"
        except OSError:
            return None  # It has just ended.
    answer = _decode(text)
    return answer if answer.get("pid") == pid else None


def _decode(text: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _read_all(asker: socket.socket) -> bytes:
    parts = []
    length = 0
    deadline = time.monotonic() + _ANSWER_S
    while part := asker.recv(1 << 16):
        parts.append(part)
        length += len(part)
        if length > _MAX_BYTES or time.monotonic() > deadline:
            return b""
    return b"".join(parts)


def _has_facts(answer: dict[str, Any]) -> bool:
    is_sound = all(isinstance(answer.get(name), kind) for name, kind in _FACTS.items())
    return is_sound and answer.get("version") == VERSION


def _parse(answer: dict[str, Any]) -> Rank | None:
    """Returns a rank from its answer; None where it is not one that we understand."""
    try:
        if not _has_facts(answer) or "statistics" not in answer:
            return None
        facts = {name: answer[name] for name in _FACTS}
        counters = dict(answer["statistics"])
        if not all(isinstance(counters[metric.name], int | float) for metric in METRICS):
            return None
        return Rank(
            **facts | {"command": tuple(map(str, facts["command"]))},
            started_unix_s=float(answer["started_unix_s"]),
            taken_s=float(answer["monotonic_s"]),
            counters=counters,
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def read_links() -> dict[str, Link]:
    """Returns the network interfaces that are up, without loopback."""
    links = {}
    for folder in sorted(Path("/sys/class/net").glob("*")):
        try:
            if folder.name == "lo" or (folder / "operstate").read_text().strip() == "down":
                continue
            links[folder.name] = Link(
                int((folder / "statistics/tx_bytes").read_text()),
                int((folder / "statistics/rx_bytes").read_text()),
                _speed(folder),
            )
        except (OSError, ValueError):
            continue
    return links


def _speed(folder: Path) -> float | None:
    try:
        megabits = int((folder / "speed").read_text())
    except (OSError, ValueError):
        return None
    return megabits * 1e6 if megabits > 0 else None
