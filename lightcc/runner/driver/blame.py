"""Who should leave an elastic job whose ranks do not reach each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lightcc.runner.driver.worker import Worker


def at_fault(members: Sequence[Worker], stood: Collection[int]) -> list[Worker]:
    """Returns who may be what broke a join, the likeliest first.

    Of two that do not reach each other, one is new more often than one has lost its way. Of two new
    ones, it is the one that is blamed.

    Args:
        members: Of the plan that broke, each with what it says of itself.
        stood: Numbers of those that were in the last world.
    """
    blamers = [it for it in members if it.status is not None and it.status.blames >= 0]
    numbers = {it.status.blames for it in blamers if it.status is not None}
    blamed = [it for it in members if it.number in numbers]
    new = [it for it in blamers + blamed if it.number not in stood]
    return [*reversed(new), *reversed(blamed)]
