"""The launcher's last words: which rank failed first, how, and what it said.

When one rank dies, the engine fails the others' collectives, so several ranks fail within
milliseconds and the culprit need not be the first to be gone. A rank whose last words are that it
lost a peer most likely fell over another one; such ranks are blamed only when there is no better
candidate.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

_CONSEQUENCES = (b"HorovodInternalError", b"PeerFailedError", b"ShutDownError")
_LAST_WORDS = 5  # Lines; an error's text may have several.


@dataclass
class RankEnd:
    """How one rank ended."""

    rank: int
    host: str
    code: int  # The exit code, or minus the signal.
    tail: list[bytes] = field(default_factory=list)  # Last lines of its standard error.
    lost: bool = False  # Its host went away; `code` says nothing.

    @property
    def exit_code(self) -> int:
        """What a shell would report: 128 + signal for signals."""
        if self.lost:
            return 1
        return 128 - self.code if self.code < 0 else self.code

    def describe(self) -> str:
        """Returns for example "rank 1 on node-a: killed by SIGKILL (exit code 137)"."""
        where = f"rank {self.rank} on {self.host}"
        if self.lost:
            return f"{where}: lost with its host"
        if self.code < 0:
            return f"{where}: killed by {signal_name(-self.code)} (exit code {self.exit_code})"
        return f"{where}: exit code {self.code}"


def signal_name(signum: int) -> str:
    """Returns "SIGKILL" for 9; "signal 200" for what has no name."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def first_failure(failures: list[RankEnd]) -> RankEnd:
    """Returns the one to blame of the ranks that failed on their own, given in order of time."""
    for end in failures:
        words = b"\n".join(end.tail[-_LAST_WORDS:])
        if not any(name in words for name in _CONSEQUENCES):
            return end
    return failures[0]


def failure_lines(failures: list[RankEnd], ended: int) -> list[bytes]:
    """Returns the summary, the first failing rank last.

    Args:
        failures: Ranks that failed on their own, in order of time; at least one.
        ended: How many ranks the launcher ended after that.
    """
    first = first_failure(failures)
    lines = [f"also failed: {end.describe()}".encode() for end in failures if end is not first]
    if ended:
        lines.append(f"{ended} other rank{'s were' if ended > 1 else ' was'} ended".encode())
    lines.append(f"failed first: {first.describe()}".encode())
    if first.tail:
        lines[-1] += b"; its last lines on standard error:"
        lines += [b"    " + line for line in first.tail]
    return [b"lightccrun: " + line for line in lines]
