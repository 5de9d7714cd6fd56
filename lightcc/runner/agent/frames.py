"""The messages between the launcher and its agents: kind, rank, length, payload.

Both ends use this file; the agent is started by path, without lightcc installed around it, so the
standard library is all that may be imported here. An agent first writes `MAGIC`, because a remote
login shell may print to the same stream before the agent starts.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

MAGIC = b"\nlightcc-agent-3\n"
MAX_PAYLOAD_BYTES = 64 << 20
_HEADER = struct.Struct("!cII")

# Launcher to agent.
INPUT = b"I"  # Bytes for every rank's standard input; they precede the job.
JOB = b"J"  # JSON: cwd, command, environment, ranks. An elastic job starts more ranks by another.
STOP = b"D"  # End the rank: SIGTERM now, SIGKILL after a grace period; forget it once it is gone.
SIGNAL = b"S"  # The rank field holds the signal, which every rank's process group gets.
# End everything: SIGTERM now, SIGKILL after a grace period, which with rank 1 is the job's.
TERMINATE = b"T"
KILL = b"K"  # End everything: SIGKILL now.
PING = b"P"  # Asks for a PONG: whether the agent still goes on.
BYE = b"B"  # To a worker that has dialled in: the job is over, and nothing is lost.

# Agent to launcher.
HELLO = b"H"  # JSON: hostname, python, cores.
STDOUT = b"O"
STDERR = b"E"
RESULT = b"R"  # Bytes that the rank wrote to RESULT_FD; all of them come before its EXIT.
EXIT = b"X"  # Decimal: the exit code, or minus the signal.
FATAL = b"F"  # Text: why this host cannot run its ranks.
PONG = b"A"
DRAIN = b"L"  # This host will leave: its ranks should go elsewhere, or end in good order.

_KINDS = frozenset((INPUT, JOB, STOP, SIGNAL, TERMINATE, KILL, PING, BYE))
_KINDS |= {HELLO, STDOUT, STDERR, RESULT, EXIT, FATAL, PONG, DRAIN}

# The variable that names a rank's descriptor for its result, where it has an input.
RESULT_FD = "LIGHTCC_RESULT_FD"


class FrameError(ValueError):
    """The other end sent something that is not a frame."""


class Frame(NamedTuple):
    """One message."""

    kind: bytes
    rank: int
    payload: bytes


def encode(kind: bytes, rank: int = 0, payload: bytes = b"") -> bytes:
    """Returns the bytes of one frame."""
    return _HEADER.pack(kind, rank, len(payload)) + payload


class FrameReader:
    """Cuts a byte stream into frames; holds at most one incomplete frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Takes what arrived and returns the frames that are now complete.

        Raises:
            FrameError: Unknown kind or a length over `MAX_PAYLOAD_BYTES`.
        """
        self._buffer += data
        frames = []
        start = 0
        while len(self._buffer) - start >= _HEADER.size:
            kind, rank, length = _HEADER.unpack_from(self._buffer, start)
            if kind not in _KINDS or length > MAX_PAYLOAD_BYTES:
                msg = f"not a frame: kind {kind!r}, length {length}"
                raise FrameError(msg)
            end = start + _HEADER.size + length
            if len(self._buffer) < end:
                break
            frames.append(Frame(kind, rank, bytes(self._buffer[start + _HEADER.size : end])))
            start = end
        del self._buffer[:start]
        return frames
