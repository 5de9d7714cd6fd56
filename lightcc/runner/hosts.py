"""Which rank runs where: host lists, host files, and the three numberings of a rank.

The idea: whatever the user wrote becomes one list, host of rank 0, host of rank 1, ...; from that
list alone follow local ranks (position among the ranks of the same host) and cross ranks (position
of the host among the hosts that have that local rank), as Horovod numbers them. Ranks are dealt
host by host. Names are compared as written: whether two names are one machine is the engine's to
find out, not the launcher's.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MAX_RANKS = 65536
_HOST = re.compile(
    r"^(?P<name>\[[0-9A-Fa-f:.%\w]+\]|[A-Za-z0-9_][A-Za-z0-9_.@-]*)(:(?P<slots>\d+))?$"
)
_SLOTS = re.compile(
    r"^(?P<host>\S+?)((\s+slots\s*=\s*|:)(?P<slots>\d+))?"
    r"(\s+(max_slots|max-slots)\s*=\s*(?P<limit>\d+))?$"
)


class HostError(ValueError):
    """A host list that cannot be used; the text says which entry and what is allowed."""


@dataclass(frozen=True)
class Host:
    """One machine and how many ranks it takes."""

    name: str
    slots: int


@dataclass(frozen=True)
class Slot:
    """Where one rank stands in the job."""

    host: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def parse_host(text: str, *, where: str) -> Host:
    """Parses `name`, `name:slots` or `[ipv6]:slots`.

    Args:
        text: The entry.
        where: What to call its origin in an error, e.g. "--hosts" or "hosts.txt:3".

    Raises:
        HostError: The entry is malformed or has no slots.
    """
    match = _HOST.match(text.strip())
    if match is None:
        msg = f"{where}: '{text}' is not a host; write name:slots, such as node-1:4 or [fd00::1]:4"
        raise HostError(msg)
    slots = int(match["slots"] or 1)
    if not 1 <= slots <= MAX_RANKS:
        msg = f"{where}: '{text}' has {slots} slots; 1 to {MAX_RANKS} are allowed"
        raise HostError(msg)
    return Host(match["name"].strip("[]"), slots)


def parse_hosts(text: str) -> list[Host]:
    """Parses the value of --hosts: entries separated by commas."""
    return _merged([parse_host(entry, where="--hosts") for entry in text.split(",")])


def read_hostfile(path: Path) -> list[Host]:
    """Reads a host file: one `name`, `name slots=N` or `name:N` a line, `#` starts a comment.

    A limit (`max_slots=N`) may follow, which has no effect beside slots.

    Raises:
        HostError: The file cannot be read, names no host, or a line is malformed (with its number).
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        msg = f"--hostfile: cannot read {path}: {error}"
        raise HostError(msg) from error
    hosts = []
    for number, raw in enumerate(lines, start=1):
        line = raw.split("#", 1)[0].strip()
        if not line:
            continue
        where = f"{path}:{number}"
        match = _SLOTS.match(line)
        if match is None:
            msg = f"{where}: '{line}' is not a host line; write 'name slots=N'"
            raise HostError(msg)
        slots = match["slots"] or match["limit"]  # Without the first, the limit counts.
        entry = match["host"] if slots is None else f"{match['host']}:{slots}"
        hosts.append(parse_host(entry, where=where))
    if not hosts:
        msg = f"--hostfile: {path} names no host"
        raise HostError(msg)
    return _merged(hosts)


def _merged(hosts: list[Host]) -> list[Host]:
    """Adds up the slots of a host that is named twice, at its first place."""
    slots: Counter[str] = Counter()
    for host in hosts:
        slots[host.name] += host.slots
    return [Host(name, count) for name, count in slots.items()]


def assign_slots(hosts: list[Host], num_proc: int | None) -> list[Slot]:
    """Deals `num_proc` ranks (`None`: as many as there are slots) over `hosts`, host by host.

    Raises:
        HostError: There are fewer slots than ranks.
    """
    available = sum(host.slots for host in hosts)
    wanted = available if num_proc is None else num_proc
    if wanted > available:
        msg = (
            f"-np {wanted} needs {wanted} slots, but the hosts have {available} "
            f"({', '.join(f'{host.name}:{host.slots}' for host in hosts)})"
        )
        raise HostError(msg)
    names = [host.name for host in hosts for _ in range(host.slots)]
    return number_ranks(names[:wanted])


def number_ranks(host_of_rank: list[str]) -> list[Slot]:
    """Numbers ranks from their hosts in rank order; a host's ranks need not be adjacent."""
    hosts = list(dict.fromkeys(host_of_rank))
    local_sizes = Counter(host_of_rank)
    next_local: Counter[str] = Counter()
    slots = []
    for rank, host in enumerate(host_of_rank):
        local_rank = next_local[host]
        next_local[host] += 1
        peers = [name for name in hosts if local_sizes[name] > local_rank]
        slots.append(
            Slot(
                host=host,
                rank=rank,
                size=len(host_of_rank),
                local_rank=local_rank,
                local_size=local_sizes[host],
                cross_rank=peers.index(host),
                cross_size=len(peers),
            )
        )
    return slots
