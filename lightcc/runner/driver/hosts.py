"""Hosts and slots of an elastic job: which may be used, and which are left alone for a while."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

#: A slot whose worker lived so long begins anew to count its failures.
LONG_LIFE_S = 60.0
_DEFAULT_COOLDOWN_S = (1.0, 60.0)
_MAX_SLOT_FAILURES = 8


@dataclass
class _Host:
    slots: int
    failures: int = 0
    blocked_until: float = 0.0
    slot_failures: dict[int, int] = field(default_factory=dict)
    slot_blocked_until: dict[int, float] = field(default_factory=dict)


class Hosts:
    """All that were ever seen, in that order."""

    def __init__(self, cooldown_s: tuple[float, float] | None, random: Callable[[], float]) -> None:
        """Begins without hosts.

        Args:
            cooldown_s: How long, at first and at most, what has failed is not used. `None`: hosts
                for ever, slots 1 and 60.
            random: Returns a number from 0 to 1.
        """
        self._cooldown_s = cooldown_s
        self._random = random
        self._hosts: dict[str, _Host] = {}

    def see(self, slots: dict[str, int]) -> None:
        """Takes in which hosts there are; those that were known keep their order."""
        for name, host in self._hosts.items():
            host.slots = slots.get(name, 0)
        for name, count in slots.items():
            self._hosts.setdefault(name, _Host(count))

    def forget(self, name: str) -> None:
        """Forgets a host, which may come again."""
        self._hosts.pop(name, None)

    def block_slot(
        self, now: float, name: str, slot: int, lived_s: float, *, longest: bool = False
    ) -> None:
        """Has a slot not used for a while, and then for twice as long each time.

        Args:
            now: The time.
            name: The host.
            slot: The slot.
            lived_s: How long the worker has lived that has ended there.
            longest: Whether it is not used for as long as any may be left alone.
        """
        host = self._hosts[name]
        if lived_s >= LONG_LIFE_S:
            host.slot_failures[slot] = 0
        count = host.slot_failures[slot] = host.slot_failures.get(slot, 0) + 1
        low, high = self._cooldown_s or _DEFAULT_COOLDOWN_S
        wait = high if longest else min(high, low * 2.0 ** (count - 1))
        wait = math.inf if count > _MAX_SLOT_FAILURES else wait
        host.slot_blocked_until[slot] = now + wait

    def block(self, now: float, name: str) -> None:
        """Has a host not used for a while, or for ever."""
        host = self._hosts.get(name)
        if host is None or host.blocked_until > now:
            return
        host.failures += 1
        if self._cooldown_s is None:
            host.blocked_until = math.inf
            return
        low, high = self._cooldown_s
        wait = low * 2.0**host.failures + self._random() * low
        host.blocked_until = now + max(low, min(high, wait))

    def has_slot(self, now: float, name: str, slot: int) -> bool:
        """Returns whether who is on this slot may stay."""
        host = self._hosts[name]
        return slot < host.slots and host.blocked_until <= now

    def usable(self, now: float) -> list[tuple[str, int]]:
        """Returns the slots on which a worker may be started."""
        return [
            (name, slot)
            for name, host in self._hosts.items()
            for slot in range(host.slots)
            if host.blocked_until <= now and host.slot_blocked_until.get(slot, 0.0) <= now
        ]

    def are_lost(self) -> bool:
        """Returns whether none will ever be used again, unless others come."""
        return all(h.blocked_until == math.inf or h.slots == 0 for h in self._hosts.values())

    def changes(self) -> list[float]:
        """Returns when something may be used again."""
        times = [host.blocked_until for host in self._hosts.values()]
        times += [t for host in self._hosts.values() for t in host.slot_blocked_until.values()]
        return times

    def returning(self, now: float, known: Collection[str]) -> list[float]:
        """Returns when hosts that are not used at the moment may be used again, but for `known`."""
        times = []
        for name, host in self._hosts.items():
            blocked = [
                t for t in (host.blocked_until, *host.slot_blocked_until.values()) if t > now
            ]
            if host.slots > 0 and blocked and name not in known:
                times.append(min(blocked))
        return times
