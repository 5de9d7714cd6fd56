"""Everything by which harp-setup touches the machine: files below a root, and system calls.

The root is another folder than / in a container that sees the host's files below one, and in tests,
which put another `System` in the place of this one for the rest.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shlex
import socket
import struct
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from lightcc import _addresses

# What sudo searches has no program of a virtual environment.
ROOT_LINE = f"sudo {shlex.quote(sys.executable)} -m lightcc.harp.setup"

_NEEDS_ROOT = (errno.EACCES, errno.EPERM, errno.EROFS)
_SIOCGIFNETMASK, _SIOCETHTOOL = 0x891B, 0x8946
_GET_CHANNELS, _SET_CHANNELS = 0x3C, 0x3D


class SetupError(Exception):
    """The machine cannot be set up; the text says what is in the way."""


class Channels(NamedTuple):
    """Queues of a NIC, as ethtool has them: combined ones, or some for each direction."""

    max_rx: int
    max_tx: int
    max_other: int
    max_combined: int
    rx: int
    tx: int
    other: int
    combined: int

    @property
    def receiving(self) -> int:
        """How many queues receive."""
        return self.combined + self.rx

    @property
    def maximum(self) -> int:
        """How many could."""
        return max(self.max_combined, min(self.max_rx, self.max_tx))

    def with_count(self, count: int) -> Channels:
        """Returns the same with `count` queues, combined where the driver combines."""
        if self.max_combined:
            return self._replace(combined=count, rx=0, tx=0)
        return self._replace(rx=count, tx=count)


class System:
    """The machine that this process runs on."""

    def __init__(self, root: str = "/") -> None:
        """Makes all paths be below `root`."""
        self.root = Path(root)

    def path(self, path: str) -> Path:
        """Returns where an absolute path is."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str:
        """Returns what a small file holds, "" where there is none or it has nothing to say."""
        try:
            return self.path(path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def text(self, path: str) -> str | None:
        """Returns a file as `replace` takes it, to the byte; None where there is none."""
        location = self.path(path)
        return (
            location.read_bytes().decode("utf-8", "surrogateescape") if location.exists() else None
        )

    def number(self, path: str, otherwise: int) -> int:
        """Returns the number that a file holds."""
        text = self.read(path)
        return int(text) if text.lstrip("-").isdecimal() else otherwise

    def write(self, path: str, text: str) -> None:
        """Tells the kernel something by a file of sysfs or procfs, which has to be there."""
        descriptor = os.open(self.path(path), os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)

    def replace(self, path: str, text: str) -> None:
        """Writes a file, mode 0644; readers and crashes see the old one or the new one, whole."""
        location = self.path(path)
        location.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{location.name}.", dir=location.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text.encode("utf-8", "surrogateescape"))
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.fsync(file.fileno())
            Path(name).replace(location)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    # -- Network --------------------------------------------------------------------------------

    def addresses(self) -> dict[str, str]:
        """Returns an address of each interface that is up and has one, IPv4 where it can."""
        return {interface.name: interface.address for interface in _addresses.interfaces()}

    def netmask(self, interface: str) -> str:
        """Returns the mask of the interface's IPv4 address."""
        reply = self._ioctl(_SIOCGIFNETMASK, _request(interface))
        return socket.inet_ntoa(reply[20:24])

    def channels(self, interface: str) -> Channels | None:
        """Returns the interface's queues, or None where its driver does not tell."""
        try:
            return Channels(*self._ethtool(interface, _GET_CHANNELS, [0] * 8))
        except OSError:
            return None

    def set_channels(self, interface: str, channels: Channels) -> None:
        """Changes the interface's queues. Some drivers take the link down for a moment."""
        self._ethtool(interface, _SET_CHANNELS, list(channels))

    @staticmethod
    def _ioctl(request: int, argument: bytes) -> bytes:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            return fcntl.ioctl(control.fileno(), request, argument)

    def _ethtool(self, interface: str, command: int, numbers: list[int]) -> list[int]:
        words = (ctypes.c_uint32 * 9)(command, *numbers)
        pointer = struct.pack("P", ctypes.addressof(words))
        self._ioctl(_SIOCETHTOOL, _request(interface, pointer))
        return list(words)[1:]


def described(error: OSError) -> str:
    """Returns an error of the system for people."""
    where = f"{error.filename}: " if error.filename else ""
    hint = f" (this needs root: {ROOT_LINE})" if error.errno in _NEEDS_ROOT else ""
    return f"{where}{error.strerror or error}{hint}"


def _request(interface: str, value: bytes = b"") -> bytes:
    return struct.pack("16s24s", interface.encode()[:15], value)
