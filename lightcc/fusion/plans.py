"""Plans, as pure functions: a plan is a list of buckets, a bucket a list of gradients' names."""

from __future__ import annotations

import hashlib
import itertools
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Plan = list[list[str]]


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


def piecewise(names: Sequence[str], positions: Sequence[int]) -> Plan:
    """Returns the runs of `names` that begin at `positions`; those past the end are left out."""
    begins = [position for position in positions if position < len(names)]
    ends = [*begins[1:], len(names)]
    return [list(names[begin:end]) for begin, end in zip(begins, ends, strict=False)]


def scopewise(names: Sequence[str], scopes: Sequence[str]) -> Plan:
    """Returns one bucket for each scope that has names, and one for the rest.

    A name is in the first scope that it equals or that it continues with a dot or a slash: "layer1"
    has "layer1.weight", but not "layer10.weight".
    """
    buckets: dict[str | None, list[str]] = {scope: [] for scope in (*scopes, None)}
    for name in names:
        home = next((scope for scope in scopes if is_within(name, scope)), None)
        buckets[home].append(name)
    return [bucket for bucket in buckets.values() if bucket]


def is_within(name: str, scope: str) -> bool:
    """Returns whether a name is `scope` or continues it."""
    return name.startswith(scope) and (
        len(name) == len(scope) or scope[-1] in "./" or name[len(scope)] in "./:"
    )
