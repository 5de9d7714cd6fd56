"""Which gradients travel together, as pure functions: both schedulers of gradients call them.

Results are lists of positions, in a list of gradients that is the caller's.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

T = TypeVar("T")

#: Gradients for themselves share a call up to so many bytes: a call costs as much as sending them.
BATCH_BYTES = 256 << 10


class Gradient(NamedTuple):
    """What a planner knows of a gradient.

    Attributes:
        name: Unique, and the same on all ranks.
        num_bytes: That travel.
        kind: Gradients of different kinds (dtypes) never share a bucket.
    """

    name: str
    num_bytes: int
    kind: str


def digest_of(names: Iterable[str]) -> str:
    """Returns what tells these names from others, the same on all ranks and in any order."""
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:12]


def parse_positions(schedule: object, source: str) -> list[int]:
    """Returns the positions where buckets begin, 0 first.

    Args:
        schedule: Ascending numbers separated by semicolons; a 0 at the start may be left out.
        source: Where it was written, for the error.

    Raises:
        ValueError: Something else.
    """
    parts = schedule.split(";") if isinstance(schedule, str) else []
    positions = [int(part) for part in parts if part.isascii() and part.isdigit()]
    ascending = all(a < b for a, b in itertools.pairwise(positions))
    if not parts or len(positions) < len(parts) or not ascending:
        msg = (
            f"{source} is {schedule!r}: expected ascending positions separated by semicolons, as "
            "in '2;6' for the buckets 0-1, 2-5 and 6 to the end"
        )
        raise ValueError(msg)
    return positions if positions[0] == 0 else [0, *positions]


def parse_scopes(schedule: object, source: str) -> list[str]:
    """Returns the scopes, which are prefixes of names.

    Args:
        schedule: Different names separated by semicolons, or nothing, for one bucket.
        source: Where it was written, for the error.

    Raises:
        ValueError: Something else.
    """
    scopes = schedule.split(";") if isinstance(schedule, str) else [""]
    if schedule == "":
        return []
    if not all(s and s.strip() == s for s in scopes) or len(set(scopes)) < len(scopes):
        msg = (
            f"{source} is {schedule!r}: expected different prefixes of names separated by "
            "semicolons, as in 'encoder;decoder'"
        )
        raise ValueError(msg)
    return scopes


def piecewise(count: int, begins: Sequence[int]) -> list[list[int]]:
    """Returns the runs of `count` positions that begin at `begins`; those past the end vanish."""
    within = [begin for begin in begins if begin < count]
    return [[*range(*run)] for run in itertools.pairwise([*within, count])]


def scopewise(names: Sequence[str], scopes: Sequence[str]) -> list[list[int]]:
    """Returns the positions of the names in each scope that has any, and those of the rest.

    A name is in the first scope that it equals or that it continues with a dot or a slash: "layer1"
    has "layer1.weight", but not "layer10.weight".
    """
    buckets: dict[str | None, list[int]] = {scope: [] for scope in (*scopes, None)}
    for i, name in enumerate(names):
        buckets[next((scope for scope in scopes if is_within(name, scope)), None)].append(i)
    return [bucket for bucket in buckets.values() if bucket]


def evenly(items: Sequence[T], count: int) -> list[Sequence[T]]:
    """Returns at most `count` runs of as many items as can be, none of them empty."""
    count = min(count, len(items))
    ends = [len(items) * i // count for i in range(count + 1)] if count else []
    return [items[begin:end] for begin, end in itertools.pairwise(ends)]


def batches(sizes: Sequence[int | None]) -> list[list[int]]:
    """Returns runs of gradients of at most BATCH_BYTES; a larger or unknown one fills a run."""
    runs: list[list[int]] = []
    room = 0
    for i, size in enumerate(sizes):
        num_bytes = BATCH_BYTES if size is None else size
        if num_bytes > room or not runs:
            runs.append([])
            room = BATCH_BYTES
        runs[-1].append(i)
        room -= num_bytes
    return runs


def is_within(name: str, scope: str) -> bool:
    """Returns whether a name is `scope` or continues it."""
    return name.startswith(scope) and (
        len(name) == len(scope) or scope[-1] in "./" or name[len(scope)] in "./:"
    )
