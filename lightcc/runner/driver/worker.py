"""A worker as the driver of an elastic job knows it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightcc._discovery.plan import Status


@dataclass
class Worker:
    """One process, from its start to its end.

    Attributes:
        number: Nobody else ever has it.
        host: Where it is.
        slot: Of that host.
        started: When.
        status: What it said last; `None`: it is starting.
        ready: When it first said something.
        stopping: Whether it has been told to end.
        left_out_since: When the others began to go on without it, as it is silent.
        is_slow: Whether it is to be replaced.
    """

    number: int
    host: str
    slot: int
    started: float
    status: Status | None = None
    ready: float = math.inf
    stopping: bool = False
    left_out_since: float | None = None
    is_slow: bool = False

    @property
    def has_state(self) -> bool:
        """Whether it has the state of training."""
        return self.status is not None and self.status.has_state

    @property
    def was_joined(self) -> bool:
        """Whether nothing went wrong when it joined last."""
        return self.status is not None and not self.status.reason
