"""What the kernel's tables say of the TCP sockets of processes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_ESTABLISHED, _LISTENING = "01", "0A"


def _rows(pids: Iterable[int], state: str) -> Iterator[list[str]]:
    inodes = set()
    for pid in pids:
        # The process, or the descriptor, may be gone by now.
        with contextlib.suppress(FileNotFoundError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    inodes.add(str(entry.readlink()))
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == state and f"socket:[{columns[9]}]" in inodes:
                yield columns


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def listening_ports(pids: list[int]) -> list[int]:
    """Returns the ports on which one of the processes listens."""
    return sorted({_port(columns[1]) for columns in _rows(pids, _LISTENING)})


def is_connected(pid: int, port: int) -> bool:
    """Returns whether a process has a connection to a port, of whichever host."""
    return any(_port(columns[2]) == port for columns in _rows([pid], _ESTABLISHED))
