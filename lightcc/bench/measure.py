"""Runs cases: rounds of all libraries in turns (A B A B ...), so that noise hits all alike.

Of a library that has several ways to do a case (a model's gradients one by one, in buckets, all at
once) every way is measured in every round; the report takes the best by median. A library that
fails or does not have a case is reported as such, and the others go on.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from lightcc.bench.cluster import Cluster
from lightcc.bench.peers import LIGHTCC, PEERS, PeerError

if TYPE_CHECKING:
    from lightcc.bench.cases import Case
    from lightcc.bench.cluster import NominalHosts
    from lightcc.bench.workers import WorkerGroup

MEMCPY = "memcpy"

# How a library can do the gradients of a model; see worker.py.
_MODEL_MODES = {"lightcc": ("async",), "gloo": ("bucket25", "async"), "mpi": ("iallreduce", "loop")}


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    rounds: int
    iterations: int | None  # Per round; None: by size.
    warmup: int = 2

    def iterations_for(self, case: Case) -> int:
        """Returns the timed iterations of one round."""
        if self.iterations is not None:
            return self.iterations
        if len(case.counts) > 1:
            return 3
        for limit, count in ((64 << 10, 400), (1 << 20, 100), (16 << 20, 20), (64 << 20, 8)):
            if case.size_bytes <= limit:
                return count
        return 3


@dataclass
class Samples:
    """What one library did in one case, one way."""

    library: str
    mode: str = ""
    times_s: list[float] = field(default_factory=list)  # Slowest rank of each iteration.
    errors: int = 0  # Wrong elements, over all ranks and checks.
    note: str = ""  # Why there are no times.
    calls: int = 0  # Also those that are not timed.
    wire_bytes: int = 0  # Sent in all these calls by the host that sent most, with all headers.


def modes_of(library: str, case: Case) -> tuple[str, ...]:
    """Returns the ways in which `library` can do `case`."""
    if not case.model:
        return ("",)
    return _MODEL_MODES[PEERS[library].backend if library in PEERS else LIGHTCC]


def run_case(
    case: Case,
    groups: list[WorkerGroup],
    effort: Effort,
    hosts: Cluster | NominalHosts | None = None,
) -> list[Samples]:
    """Measures one case on all libraries, and the memcpy floor on the first one's ranks."""
    plan = [
        (group, Samples(group.name, mode))
        for group in groups
        for mode in modes_of(group.name, case)
    ]
    if groups:
        plan.append((groups[0], Samples(MEMCPY)))
    for round_number in range(effort.rounds):
        check = round_number in (0, effort.rounds - 1)
        for group, samples in plan:
            if samples.note:
                continue
            with WireMeter(hosts) as meter:
                answers = _run_round(case, group, samples, effort, check=check)
                meter.note(answers)
            samples.wire_bytes += meter.bytes
    return [samples for _, samples in plan]


class WireMeter:
    """What the host that sent most sent in a `with` block: of its interface, or as ranks say.

    Interfaces count all headers; ranks count what their transport sent, also within the host.
    """

    def __init__(self, hosts: Cluster | NominalHosts | None) -> None:
        """Prepares to read the interfaces of `hosts`, if they have any."""
        self._hosts = hosts
        self._before: list[int] = []
        self._reported: list[int] = []
        self.bytes = 0

    def __enter__(self) -> WireMeter:  # noqa: PYI034 - Self needs Python 3.11.
        if isinstance(self._hosts, Cluster):
            self._before = self._hosts.sent_bytes()
        return self

    def note(self, answers: list[dict[str, Any]]) -> None:
        """Takes in what the ranks answered."""
        self._reported = [int(answer.get("sent", 0)) for answer in answers]

    def __exit__(self, *_: object) -> None:
        if isinstance(self._hosts, Cluster):
            after = self._hosts.sent_bytes()
            self.bytes = max(b - a for a, b in zip(self._before, after, strict=True))
        elif self._hosts is not None and self._reported:
            sent = [0] * len(self._hosts.names)
            for rank, count in enumerate(self._reported):
                sent[self._hosts.host_of(rank, len(self._reported))] += count
            self.bytes = max(sent)


def differing(answers: list[dict[str, Any]]) -> int:
    """Returns how many ranks have other bits than rank 0."""
    return sum(answer["digest"] != answers[0]["digest"] for answer in answers)


def _run_round(
    case: Case, group: WorkerGroup, samples: Samples, effort: Effort, *, check: bool
) -> list[dict[str, Any]]:
    described: dict[str, Any] = asdict(case) | {"mode": samples.mode, "ratio": group.ratio}
    if samples.library == MEMCPY:
        described |= {"collective": MEMCPY, "counts": [sum(case.counts)], "inplace": False}
    iterations = effort.iterations_for(case)
    request = {"case": described, "warmup": effort.warmup, "iterations": iterations, "check": check}
    try:
        answers = group.ask(request)
    except PeerError as error:
        samples.note = str(error)
        return []
    samples.calls += effort.warmup + iterations + check
    samples.errors += sum(answer["errors"] for answer in answers) + differing(answers)
    samples.times_s += [max(times) for times in zip(*(a["times"] for a in answers), strict=True)]
    return answers
