"""The launcher's last words: which rank failed first, how, and what it said.

When one rank dies, the engine fails the others' collectives, so several ranks fail within
milliseconds and the culprit need not be the first to be gone. A rank whose last words are that it
lost a peer most likely fell over another one; such ranks are blamed only when there is no better
candidate. Where a rank has left in good order, while others still waited for it, that one is named.
"""

from __future__ import annotations

import re
import shutil
import signal
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CONSEQUENCES = (b"HorovodInternalError", b"PeerFailedError", b"ShutDownError")
_LEFT = re.compile(rb"by rank (\d+) finishing before the others")  # The engine's ShutDownError.
_LAST_WORDS = 5  # Lines; an error's text may have several.


@dataclass
class RankEnd:
    """How one rank ended."""

    rank: int
    host: str
    code: int  # The exit code, or minus the signal.
    tail: list[bytes] = field(default_factory=list)  # Last lines of its standard error.
    lost: bool = False  # Its host went away; `code` says nothing.
    said: bool = False  # Its last words are a traceback, which stands right above the summary.

    @property
    def exit_code(self) -> int:
        """What a shell would report: 128 + signal for signals."""
        if self.lost:
            return 1
        return 128 - self.code if self.code < 0 else self.code

    def describe(self) -> str:
        """Returns for example "rank 1 on node-a: killed by SIGKILL (exit code 137)"."""
        return f"rank {self.rank} on {self.host}: {self.how()}"

    def how(self) -> str:
        """Returns the part of it that says how."""
        if self.lost:
            return "lost with its host"
        if self.code < 0:
            return f"killed by {signal_name(-self.code)} (exit code {self.exit_code})"
        return f"exit code {self.code}"


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


def early_leaver(failures: list[RankEnd], hosts: Mapping[int, str]) -> str:
    """Returns which rank left in good order and thereby failed the others; "" if none did.

    Args:
        failures: Ranks that failed on their own; at least one.
        hosts: Of all ranks.
    """
    found = _LEFT.search(b"\n".join(first_failure(failures).tail[-_LAST_WORDS:]))
    rank = int(found[1]) if found else -1
    if rank not in hosts or rank in [end.rank for end in failures]:
        return ""
    return f"rank {rank} on {hosts[rank]} finished while others still waited for it: fewer steps?"


def hint(end: RankEnd, command: Sequence[str]) -> str:
    """Returns what is behind the last words of a rank, where they do not say it; else ""."""
    last = end.tail[-1] if end.tail else b""
    if last.startswith(b"ModuleNotFoundError: No module named 'lightcc'"):
        program = shutil.which(command[0]) or command[0]
        return f"the ranks ran {program}, which has no lightcc; lightccrun is of {sys.executable}"
    if last.startswith(b"ModuleNotFoundError: No module named 'horovod'"):
        return (
            "lightcc is horovod only with --horovod, and not where it was installed by "
            "pip install -e, which leaves out the file that does it"
        )
    if last.startswith(b"bdb.BdbQuit"):
        return (
            f"breakpoint() found no input on rank {end.rank}: rank 0 alone has that of lightccrun;"
            " docs/guides/debugging.md has other ways"
        )
    return ""


def failure_lines(failures: list[RankEnd], ended: int, left: str = "") -> list[bytes]:
    """Returns the summary, the first failing rank last.

    Args:
        failures: Ranks that failed on their own, in order of time; at least one.
        ended: How many ranks the launcher ended after that.
        left: What `early_leaver()` returned.
    """
    first = first_failure(failures)
    if left:
        lines = [f"failed: {end.describe()}".encode() for end in failures]
        return [b"lightccrun: " + line for line in [*lines, left.encode()]]
    lines = [f"also failed: {end.describe()}".encode() for end in failures if end is not first]
    if ended:
        lines.append(f"{ended} other rank{'s were' if ended > 1 else ' was'} ended".encode())
    lines.append(f"failed first: {first.describe()}".encode())
    if first.tail and not first.said:
        lines[-1] += b"; its last lines on standard error:"
        lines += [b"    " + line for line in first.tail]
    return [b"lightccrun: " + line for line in lines]
