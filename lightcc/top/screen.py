"""What lightcc-top shows, as lines and cells. A `Screen` is made of two readings."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from lightcc.top.reading import Link, Rank, Reading

TITLES = (
    *("RANK", "PID", "STEPS/s", "OPS/s", "PAYLOAD/s", "SENT/s", "RECEIVED/s", "RESENT/s"),
    *("PENDING", "LATE", "STATE"),
)
# On a narrow screen these go, the first one first.
_DISPENSABLE = ("PID", "RESENT/s", "RECEIVED/s", "PENDING", "SENT/s", "PAYLOAD/s")
_GAP = 2  # Columns between cells.
TEXT_COLUMNS = 100
_THOUSAND = 1000
_LONG_WAIT_S = 1.0
_NAMED_RANKS = 8
_MANY = 0.5  # A rank that is last in so many of the operations is named.
_BAD, _PLAIN = "\x1b[1;31m", "\x1b[0m"  # Bold and red on a terminal, and as before.


@dataclass(frozen=True)
class Row:
    """A rank."""

    cells: tuple[str, ...]
    is_bad: bool  # Others wait for it.


@dataclass(frozen=True)
class JobScreen:
    """A job's part of the screen."""

    title: str
    sums: str
    advice: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Screen:
    """Everything that is shown at one time."""

    head: str
    jobs: tuple[JobScreen, ...]
    notes: tuple[str, ...] = field(default=())


def scaled(value: float, unit: str = "") -> str:
    """Returns for example "1.23 MB": three digits, in steps of 1000."""
    prefixes = ["", "k", "M", "G", "T"]
    while abs(value) >= _THOUSAND - 0.5 and len(prefixes) > 1:
        value /= _THOUSAND
        del prefixes[0]
    digits = 0 if value == int(value) else max(0, 3 - len(str(int(abs(value)))))
    return f"{value:.{digits}f} {prefixes[0]}{unit}".rstrip()


def make_screen(before: Reading | None, now: Reading) -> Screen:
    """Returns what two readings say; without an earlier one, there are no rates."""
    earlier = {(one.job, one.rank, one.pid): one for one in before.ranks} if before else {}
    jobs: dict[str, list[Rank]] = {}
    for one in now.ranks:
        jobs.setdefault(one.job, []).append(one)
    notes = [_link_line(name, now, before, link) for name, link in now.links.items()]
    notes += [f"process {pid} does not answer: it is stopped, or busy" for pid in now.silent]
    count = len(now.ranks)
    head = f"lightcc-top {time.strftime('%H:%M:%S')}  {count} rank{'' if count == 1 else 's'} here"
    parts = tuple(_job(ranks, earlier) for ranks in jobs.values())
    return Screen(head, parts, tuple(note for note in notes if note))


Earlier = dict[tuple[str, int, int], "Rank"]


def rates_of(one: Rank, earlier: Earlier) -> dict[str, float]:
    """Returns what each counter gained in a second; none where that is not known."""
    was = earlier.get((one.job, one.rank, one.pid))
    passed_s = one.taken_s - was.taken_s if was else 0.0
    if was is None or passed_s <= 0:
        return {}
    return {
        name: (value - was.counters[name]) / passed_s
        for name, value in one.counters.items()
        if isinstance(value, int | float) and isinstance(was.counters.get(name), int | float)
    }


def _job(ranks: list[Rank], earlier: Earlier) -> JobScreen:
    first = ranks[0]
    rates = {one.rank: rates_of(one, earlier) for one in ranks}
    late = _late_shares(ranks, earlier)
    awaited = set(first.counters["awaited_ranks"]) if first.rank == 0 else set()
    awaited_s = first.counters["awaited_seconds"]
    slow = {it["rank"]: it["factor"] for it in first.counters["slow_ranks"]}
    marked = awaited if awaited_s > _LONG_WAIT_S else set()
    rows = tuple(_row(one, rates[one.rank], late.get(one.rank), marked, slow) for one in ranks)
    age_s = max(0, int(time.time() - first.started_unix_s))
    title = (
        f"job {first.job}: {len(ranks)} of {first.size} ranks here, for {_age(age_s)}: "
        f"{' '.join(first.command)}"
    )
    return JobScreen(title, _sums(rates), _advice(awaited, awaited_s, late, slow), rows)


def _age(seconds: int) -> str:
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _sums(rates: Mapping[int, Mapping[str, float]]) -> str:
    known = [rate for rate in rates.values() if rate]
    if not known:
        return "rates come with the next reading"

    def total(name: str) -> float:
        return sum(rate[name] for rate in known)

    steps = total("steps") / len(known)
    return (
        f"{scaled(steps)} steps/s, tensors {scaled(total('payload_bytes'), 'B')}/s, "
        f"network {scaled(8 * total('network_bytes_sent'), 'b')}/s out, "
        f"{scaled(8 * total('network_bytes_received'), 'b')}/s in, "
        f"{scaled(total('network_retransmits'))} resent/s"
    )


def _late_shares(ranks: list[Rank], earlier: Earlier) -> dict[int, float]:
    """Returns of how many operations since the last reading each rank was the last to ask."""
    first = ranks[0]
    counts: list[int] = list(first.counters["last_asked"])
    was = earlier.get((first.job, first.rank, first.pid))
    if was is not None and len(was.counters["last_asked"]) == len(counts):
        counts = [now - then for now, then in zip(counts, was.counters["last_asked"], strict=True)]
    total = sum(counts)
    return {rank: count / total for rank, count in enumerate(counts)} if total > 0 else {}


def _advice(
    awaited: set[int], awaited_s: float, late: Mapping[int, float], slow: Mapping[int, float]
) -> str:
    if awaited and awaited_s > _LONG_WAIT_S:
        who = ", ".join(map(str, sorted(awaited)[:_NAMED_RANKS]))
        who += " ..." if len(awaited) > _NAMED_RANKS else ""
        return f"all wait for rank {who}, for {awaited_s:.0f} s now"
    if slow:
        rank = max(slow, key=lambda one: slow[one])
        return f"rank {rank} is slow: a step takes it {slow[rank]:.1f} times as long as the others"
    rank = max(late, key=lambda one: late[one], default=-1)
    if len(late) > 1 and late[rank] > max(_MANY, 1.5 / len(late)):
        return f"the others wait for rank {rank} in {late[rank]:.0%} of the operations"
    return ""


def _row(
    one: Rank,
    rate: Mapping[str, float],
    late: float | None,
    awaited: Container[int],
    slow: Container[int],
) -> Row:
    def shown(name: str, unit: str = "") -> str:
        return scaled(rate[name], unit) if name in rate else "-"

    in_flight = one.counters["in_flight"]
    if one.rank in awaited:
        state = "blocks others"
    elif one.rank in slow:
        state = "is slow"
    elif in_flight and rate and rate["operations"] == 0:
        state = "waits"
    elif rate and rate["operations"] > 0:
        state = "runs"
    else:
        state = "idle" if rate else ""
    cells = (
        str(one.rank),
        str(one.pid),
        shown("steps"),
        shown("operations"),
        shown("payload_bytes", "B"),
        shown("network_bytes_sent", "B"),
        shown("network_bytes_received", "B"),
        shown("network_retransmits"),
        str(in_flight),
        "-" if late is None else f"{late:.0%}",
        state,
    )
    return Row(cells, one.rank in awaited or one.rank in slow)


def _link_line(name: str, now: Reading, before: Reading | None, link: Link) -> str:
    was = before.links.get(name) if before else None
    passed_s = now.taken_s - before.taken_s if before else 0.0
    if was is None or passed_s <= 0:
        return ""
    sent = 8 * (link.sent_bytes - was.sent_bytes) / passed_s
    received = 8 * (link.received_bytes - was.received_bytes) / passed_s
    text = f"{name}: {scaled(sent, 'b')}/s out, {scaled(received, 'b')}/s in"
    if link.bits_per_s is None:
        return text
    used = max(sent, received) / link.bits_per_s
    return f"{text}, {used:.0%} of {scaled(link.bits_per_s, 'b')}/s"


# -- Drawing --------------------------------------------------------------------------------------


def fitting_columns(rows: Sequence[Row], columns: int) -> dict[int, int]:
    """Returns which cells of rows are shown on a screen of that width, each with its own width."""
    table = [TITLES, *(row.cells for row in rows)]
    widths = {i: max(len(cells[i]) for cells in table) for i in range(len(TITLES))}
    for title in _DISPENSABLE:
        if sum(widths.values()) + _GAP * len(widths) <= columns:
            break
        del widths[TITLES.index(title)]
    return widths


def as_text(screen: Screen, columns: int = TEXT_COLUMNS, *, colours: bool = False) -> str:
    """Returns text for that many columns; `colours`: for a terminal."""
    lines = [screen.head]
    if not screen.jobs:
        lines += ["", "no rank of yours runs on this machine"]
    for job in screen.jobs:
        lines += ["", job.title[:columns], f"  {job.sums}"]
        lines += [f"  {job.advice}"] if job.advice else []
        widths = fitting_columns(job.rows, columns)
        for row in (Row(TITLES, is_bad=False), *job.rows):
            *numbers, state = (row.cells[i].rjust(width) for i, width in widths.items())
            line = "  ".join(["", *numbers, state.strip()]).rstrip()
            lines.append(f"{_BAD}{line}{_PLAIN}" if colours and row.is_bad else line)
    lines += ["", *screen.notes] if screen.notes else []
    return "\n".join(lines) + "\n"
