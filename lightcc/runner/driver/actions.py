"""What the driver of an elastic job wants done."""

from __future__ import annotations

from dataclasses import dataclass

from lightcc._discovery.plan import Notice, Plan, RollCall


@dataclass(frozen=True)
class Start:
    """Start a worker. Were it to join now, it would be `rank` of the ranks on `hosts`."""

    worker: int
    host: str
    rank: int
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class Stop:
    """End a worker, and what is left of its processes."""

    worker: int


@dataclass(frozen=True)
class CallOff:
    """Make the joins of an epoch fail, with a reason."""

    epoch: int
    reason: str


@dataclass(frozen=True)
class End:
    """The job is over: all workers are to be ended. `error` is empty if it has finished."""

    error: str


@dataclass(frozen=True)
class LeftOut:
    """Nothing is to be done: the others go on without a worker that is silent."""

    worker: int


@dataclass(frozen=True)
class Awaits:
    """Nothing is to be done: others wait for workers that do not leave a broken epoch, or start."""

    workers: tuple[int, ...]


@dataclass(frozen=True)
class RunsShort:
    """Nothing is to be done: workers that are ready wait for others.

    Attributes:
        count: How many are ready.
        failure: The last one; it may be empty.
        have_state: Whether one of them has the state, so that they are too few.
    """

    count: int
    failure: str
    have_state: bool = True


@dataclass(frozen=True)
class Begin:
    """Nothing is to be done: the next plan begins from a commit that the agent of a host keeps."""

    version: int
    host: str


@dataclass(frozen=True)
class FoundSlow:
    """Nothing is to be done: the others wait for a worker in every step.

    Attributes:
        worker: Its number.
        factor: How many times as long as the median rank it takes for a step.
        is_replaced: Whether it is to go as soon as enough others are there.
    """

    worker: int
    factor: float
    is_replaced: bool


Action = (
    Start
    | Stop
    | CallOff
    | End
    | LeftOut
    | Awaits
    | RunsShort
    | Begin
    | FoundSlow
    | Plan
    | Notice
    | RollCall
)
