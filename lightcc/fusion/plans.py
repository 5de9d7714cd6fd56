"""Plans, as pure functions: a plan is a list of buckets, a bucket a list of gradients' names.

`best` is the plan of the strategy model. Gradients become ready one after another, the wire carries
one bucket at a time, in order, and a bucket of b bytes takes cost(b). With gradients 1..L in the
order in which they become ready, at r[1] <= ... <= r[L], the earliest end of the last bucket is

    f[0] = 0,    f[j] = min over i < j of  max(f[i], r[j]) + cost(S[j] - S[i]),

S[j] being the bytes of the first j. That is exact, for any cost, among the plans whose buckets are
runs of this order, and takes O(L^2) steps. Other orders are not looked at: a bucket leaves when the
last of its gradients is ready, so nothing is gained by taking a later one before an earlier one of
the same kind, as long as cost does not fall with more bytes.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

#: Of arrival, as of torch's DistributedDataParallel: the first bucket is small, so that the wire is
#: busy soon; the others are large enough to use it well and small enough to be under way early.
FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20

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


class CostLine(NamedTuple):
    """What a bucket of up to `most_bytes` costs: `seconds + seconds_per_byte * bytes`."""

    most_bytes: float
    seconds: float
    seconds_per_byte: float


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


def by_arrival(order: Iterable[Gradient], limit_bytes: int) -> Plan:
    """Returns buckets of gradients in this order.

    The first has at most `FIRST_BUCKET_BYTES`, the others `BUCKET_BYTES`, and none more than
    `limit_bytes`, but for a gradient that is larger by itself.
    """
    plan: Plan = []
    room = 0
    for gradient in order:
        if gradient.num_bytes > room or not plan:
            room = min(BUCKET_BYTES if plan else FIRST_BUCKET_BYTES, limit_bytes)
            plan.append([])
        plan[-1].append(gradient.name)
        room -= gradient.num_bytes
    return plan


def best(
    gradients: Sequence[Gradient],
    ready: Mapping[str, float],
    cost: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    limit_bytes: int,
) -> tuple[Plan, float]:
    """Returns the plan that ends first, and when it ends.

    Args:
        gradients: In any order.
        ready: When each becomes ready, seconds after the first.
        cost: Seconds that buckets of so many bytes take; both arrays have shape [n].
        limit_bytes: The most in one bucket, but for a gradient that is larger by itself.
    """
    import numpy as np

    order = sorted(gradients, key=lambda gradient: ready[gradient.name])
    total = np.cumsum([0, *(gradient.num_bytes for gradient in order)]).astype(np.float64)
    end = np.zeros(len(order) + 1)
    begin_of = [0] * (len(order) + 1)
    same_since = 0  # Where the run of this kind begins.
    for j in range(1, len(order) + 1):
        if order[j - 1].kind != order[max(j - 2, 0)].kind:
            same_since = j - 1
        # The first bucket that is small enough; one gradient always is.
        first = int(np.searchsorted(total[:j], total[j] - limit_bytes))
        first = min(max(first, same_since), j - 1)
        ends = np.maximum(end[first:j], ready[order[j - 1].name])
        ends = ends + cost(total[j] - total[first:j])
        choice = int(np.argmin(ends))  # The largest bucket among equals.
        begin_of[j], end[j] = first + choice, ends[choice]
    plan: Plan = []
    j = len(order)
    while j > 0:
        plan.append([gradient.name for gradient in order[begin_of[j] : j]])
        j = begin_of[j]
    return plan[::-1], float(end[-1])


def cost_of(
    lines: Sequence[CostLine],
) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Returns the cost function of lines, of which the first that allows so many bytes counts."""

    def cost(num_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
        import numpy as np

        seconds = np.zeros_like(num_bytes)
        for line in reversed(lines):
            seconds = np.where(
                num_bytes <= line.most_bytes,
                line.seconds + line.seconds_per_byte * num_bytes,
                seconds,
            )
        return seconds

    return cost
