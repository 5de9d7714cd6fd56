"""What ranks tell each other about parts that are kept back, and what is said of those lost."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from lightcc.elastic._parts import Held

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightcc.elastic._parts import About, Position, Stamp

_log = logging.getLogger(__name__)


class Report(NamedTuple):
    """What a rank says where another world begins.

    Attributes:
        commit: The kept commit from which its state comes; 0: there is none.
        stamps: Of the parts that go with its state; any of them will do.
        parts: What it has itself.
        entrusted: What it has of others.
        agent: What tells the agent of its host from others; empty: none keeps parts.
        position: In the grid of compression, of `position_in`.
        is_grid: Whether there is one: else nothing is compressed.
        is_lost: Whether it had kept something back, and has no part of it.
        sets: How many tensors of process sets it had.
    """

    commit: int
    stamps: tuple[Stamp, ...]
    parts: tuple[About, ...]
    entrusted: tuple[About, ...]
    agent: str
    position: Position
    is_grid: bool
    is_lost: bool
    sets: int


def own_parts(reports: Sequence[Report], stamps: Sequence[Stamp]) -> dict[Stamp, dict[int, Held]]:
    """Returns what ranks have themselves, by stamp and by rank of the world before."""
    held: dict[Stamp, dict[int, Held]] = {}
    for is_own in (True, False):
        for rank, report in enumerate(reports):
            for about in report.parts if is_own else report.entrusted:
                if about.stamp in stamps:
                    same = held.setdefault(about.stamp, {})
                    same.setdefault(about.rank, Held(about, rank, is_own))
    return held


def is_whole(parts: Mapping[int, Held]) -> bool:
    """Tells whether there is a part of each rank of the world before."""
    return bool(parts) and len(parts) == next(iter(parts.values())).about.size


def tell(
    reports: Sequence[Report],
    found: Mapping[int, Held],
    commit: int,
    num_lost: int,
    *,
    is_kept: bool,
) -> None:
    """Says what is lost of what compression had kept back.

    Args:
        reports: By rank.
        found: Parts of the state from which all go on, by rank of the world before.
        commit: The kept commit from which it comes; 0: there is none.
        num_lost: Tensors of which not all ranks have it.
        is_kept: Whether agents keep parts, of whatever commit.
    """
    if any(it.sets for it in reports):
        _log.warning(
            "what compression kept back in process sets is lost: they have ended with their world"
        )
    lost = sum(it.is_lost for it in reports)
    if not found:
        if commit and is_kept:
            _log.warning(
                "what compression kept back is lost: no agent that is left keeps it of commit %d",
                commit,
            )
        elif lost:
            _log.warning(
                "what compression kept back on %d ranks is lost: there is none of the step from "
                "which all go on",
                lost,
            )
        return
    if not any(it.about.length for it in found.values()):
        return
    size = next(iter(found.values())).about.size
    if not is_whole(found):
        _log.warning(
            "what compression kept back on %d of %d ranks is lost: they have failed, and no agent "
            "that is left keeps it of %s",
            size - len(found),
            size,
            f"commit {commit}" if commit else "the last commit",
        )
    if num_lost:
        _log.warning(
            "what compression kept back of %d tensors is lost: not all ranks have it of the step "
            "from which all go on",
            num_lost,
        )
    if not reports[0].is_grid:
        _log.info(
            "what compression kept back stays so until ranks are on several hosts again: all share "
            "a host now, between which nothing is compressed"
        )
