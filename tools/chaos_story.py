"""What happens to an elastic job in one run of tools/chaos_elastic.py: drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

#: What may happen, and how often beside the others. Cut and slow need network namespaces.
KINDS = {
    "kill rank": 5,
    "kill host": 3,
    "stop rank": 4,
    "stop worker": 2,
    "stop host": 2,
    "drain": 3,
    "join": 4,
    "cut": 4,
    "part": 2,
    "slow": 2,
}
OF_LINKS = ("cut", "part", "slow")
#: Where agents keep commits, in half of the jobs.
ALL = "kill all"
#: A rank takes long for each step. Where the launcher replaces slow ranks, in a third of the jobs.
LAG = "lag rank"
#: Gaps between events.
MAX_STEPS = 8
MAX_SECONDS = 1.5
#: Which part of the jobs has a model of torch, and counts samples: its import takes longer than all
#: the rest.
TORCH = 0.1
#: Which part of what may last does so for ever; of ranks that become slow.
FOR_EVER = 0.2
LAG_FOR_EVER = 0.7


@dataclass(frozen=True)
class Event:
    """One thing that happens.

    Attributes:
        kind: Of `KINDS`, or `ALL`, or `LAG`.
        steps: How many steps are finished before it, after the last event.
        gap_s: How much time passes before it.
        pick: From 0 to 1: which rank or host.
        seconds: How long it lasts; 0: for ever. Of what may last.
    """

    kind: str
    steps: int
    gap_s: float
    pick: float
    seconds: float

    def __str__(self) -> str:
        """Returns it for people."""
        lasts = self.kind.startswith("stop") or self.kind in (*OF_LINKS, LAG)
        long = "" if not lasts else f" for {self.seconds:.1f} s" if self.seconds else " for ever"
        return f"after {self.steps} steps and {self.gap_s:.2f} s: {self.kind}{long}"


@dataclass(frozen=True)
class Story:
    """One job and what happens to it.

    Attributes:
        seed: Of all that follows.
        slots: Of the hosts at the beginning.
        spares: How many other hosts may join.
        min_np: Fewest ranks.
        max_np: Most ranks, or `None`.
        recovery: Of `elastic.run`.
        commit_steps: How many steps belong to a commit.
        topk: Whether the lists are compressed.
        torch: Whether ranks train a model, with an optimizer that sums gradients; else arrays.
        namespaces: Whether hosts are network namespaces.
        host_ids: Whether hosts that are none share no memory.
        keep: Whether agents keep commits.
        replace_slow: Whether the launcher replaces slow ranks.
        events: In this order.
    """

    seed: int
    slots: tuple[int, ...]
    spares: int
    min_np: int
    max_np: int | None
    recovery: str
    commit_steps: int
    topk: bool
    torch: bool
    namespaces: bool
    host_ids: bool
    keep: bool
    replace_slow: bool
    events: tuple[Event, ...]

    def __str__(self) -> str:
        """Returns it for people."""
        hosts = "namespaces" if self.namespaces else "with ids" if self.host_ids else "as one"
        more = f"{', kept' if self.keep else ''}{', slow replaced' if self.replace_slow else ''}"
        head = (
            f"seed {self.seed}: hosts of {list(self.slots)} slots, {hosts}, {self.spares} spare; "
            f"min_np {self.min_np}, max_np {self.max_np}, {self.recovery}, "
            f"commits every {self.commit_steps}, {'top-k' if self.topk else 'dense'}"
            f"{', torch' if self.torch else ''}{more}"
        )
        return "\n  ".join([head, *map(str, self.events)])


def draw(seed: int, *, namespaces: bool) -> Story:
    """Returns the story of a seed; without `namespaces` none of its hosts has a link."""
    pick = random.Random(seed)  # noqa: S311  nothing secret
    torch = pick.random() < TORCH
    slots = tuple(pick.choice((1, 1, 2)) for _ in range(pick.randint(2, 3 if torch else 6)))
    min_np = pick.choice((1, 1, 1, 2))
    recovery = pick.choice(("rollback", "forward"))
    in_namespaces = pick.random() < 0.5 and namespaces
    weights = {k: w for k, w in KINDS.items() if in_namespaces or k not in OF_LINKS}
    kinds = pick.choices(list(weights), list(weights.values()), k=pick.randint(2, 7))
    spares = pick.randint(1, 2)
    more = random.Random(f"commits of {seed}")  # noqa: S311  likewise
    keep = more.random() < 0.5
    if keep and more.random() < 0.5:
        kinds.insert(more.randint(0, len(kinds)), ALL)
    lags = random.Random(f"lags of {seed}")  # noqa: S311  likewise
    replace_slow = lags.random() < 1 / 3
    story = Story(
        seed=seed,
        slots=slots,
        spares=spares,
        min_np=min_np,
        max_np=pick.choice((None, None, sum(slots), max(min_np, sum(slots) - 1))),
        recovery=recovery,
        commit_steps=1 if recovery == "forward" else pick.choice((1, 2, 5)),
        topk=pick.random() < 0.5,
        torch=torch,
        namespaces=in_namespaces,
        host_ids=pick.random() < 0.7,
        keep=keep,
        replace_slow=replace_slow,
        events=tuple(_draw_event(pick, kind) for kind in kinds),
    )
    events = list(story.events)
    for _ in range(lags.randint(1, 2) if replace_slow else 0):
        events.insert(lags.randint(0, len(events)), _draw_event(lags, LAG, LAG_FOR_EVER))
    return replace(story, events=tuple(events))


def _draw_event(pick: random.Random, kind: str, for_ever: float = FOR_EVER) -> Event:
    at_once = pick.random() < 0.35  # Upon what was before, while that is dealt with.
    return Event(
        kind=kind,
        steps=0 if at_once else pick.randint(1, MAX_STEPS),
        gap_s=pick.choice((0.0, pick.uniform(0.0, MAX_SECONDS))),
        pick=pick.random(),
        seconds=0.0 if pick.random() < for_ever else pick.choice((1.0, 5.0)) * pick.random() + 0.1,
    )
