"""What the launcher and the workers of an elastic job tell each other through the job's store.

A worker is a process with a number that is never used again. The launcher publishes plans: an
epoch, and which workers are its ranks. A worker publishes one status, about itself. Every value is
a JSON object, and one key has one writer.
"""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

#: Below it: what workers watch.
JOB_PREFIX = "elastic/job/"
PLAN_KEY = JOB_PREFIX + "plan"
NOTICE_KEY = JOB_PREFIX + "notice"
ROLL_KEY = JOB_PREFIX + "roll"
#: Below it: what the launcher watches.
WORKER_PREFIX = "elastic/worker/"
#: The group that the worlds of an elastic job have (`Epoch.group`).
GROUP = "elastic"


class HostUpdateResult(enum.IntFlag):
    """What happened to the hosts of a job; Horovod's names and numbers."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


@dataclass(frozen=True)
class Plan:
    """One epoch of an elastic job.

    Attributes:
        epoch: Its number, from 1; each plan has a higher one than the plan before.
        members: The workers by rank. Those of the epoch before come first, in their order.
        removed: Workers of the epoch before that are alive, but must leave the job.
        sync: Whether the state has to be synchronised from rank 0: a member is new, or has restored
            what it had committed.
        notice: The last notice that the plan takes into account.
        ending: Why there will be no epoch any more; empty: there may be.
        commit: The version of the commit from which rank 0 begins, as its agent keeps it; 0: rank 0
            has the state itself, or training begins.
        newcomers: Members that have no state, where all others have the same one; else nobody.
    """

    epoch: int
    members: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    sync: bool = True
    notice: int = 0
    ending: str = ""
    commit: int = 0
    newcomers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Notice:
    """Hosts were added or removed: members should come to the next epoch when it suits them.

    Attributes:
        serial: From 1; each notice has a higher one.
        result: A `HostUpdateResult`.
    """

    serial: int
    result: int


@dataclass(frozen=True)
class RollCall:
    """Asks all workers to say once more what they are, so that stopped ones are known.

    Attributes:
        serial: From 1; each has a higher one. Workers answer with it (`Status.heard`).
    """

    serial: int


WAITING = "waiting"
JOINED = "joined"
FINISHED = "finished"


@dataclass(frozen=True)
class Status:
    """What a worker says of itself.

    Attributes:
        state: WAITING for the epoch after `epoch`; JOINED `epoch`; or FINISHED with training.
        epoch: The last one whose plan it has taken up; 0: none yet.
        restored: Of WAITING: whether its state is that of a commit, not that of its last step.
        in_run: Whether it is within `elastic.run`, so that it will say when it has finished.
        reason: Of WAITING: why `epoch` is over for it; empty where it leaves in good order.
        blames: Of WAITING with a reason: the worker that is at fault, or -1: none is known.
        fault: Of WAITING: why `epoch` failed while the worker trained; for people.
        has_state: Whether it has, or has had, the state of training: it has synchronised it once.
        heard: The last roll call that it has heard.
        keeps: Whether the agents keep commits of its training (`elastic.run(keep_commits=...)`).
        version: Of WAITING, where commits are kept: how many commits its state has behind it.
        level: Of WAITING: whether all that have left `epoch` like it, at a commit, have its state.
        kept: Of WAITING: the version of the newest commit that its agent keeps; 0: there is none.
        slow: Of JOINED rank 0: a worker that the others wait for in every step, or -1.
        slow_factor: How many times as long as the median rank that one takes for a step.
    """

    state: str
    epoch: int = 0
    restored: bool = False
    in_run: bool = False
    reason: str = ""
    blames: int = -1
    fault: str = ""
    has_state: bool = False
    heard: int = 0
    keeps: bool = False
    version: int = 0
    level: bool = False
    kept: int = 0
    slow: int = -1
    slow_factor: float = 0.0


def worker_key(number: int) -> str:
    """Returns the key of a worker's status."""
    return f"{WORKER_PREFIX}{number}"


Message = TypeVar("Message", Plan, Notice, RollCall, Status)


def encode(message: Plan | Notice | RollCall | Status) -> bytes:
    """Returns the value for the store."""
    return json.dumps(asdict(message)).encode()


def decode(kind: type[Message], value: bytes) -> Message:
    """Returns the message.

    Raises:
        ValueError: The value is none of that kind.
    """
    try:
        parsed: dict[str, Any] = json.loads(value)
        for field in fields(kind):
            expected = {"int": int, "bool": bool, "str": str, "float": float}.get(
                str(field.type), list
            )
            if type(parsed[field.name]) is not expected:
                msg = f"{field.name} is {parsed[field.name]!r}"
                raise TypeError(msg)  # noqa: TRY301  one text for all
            if expected is list:
                parsed[field.name] = tuple(map(int, parsed[field.name]))
        return kind(**parsed)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        msg = f"not a {kind.__name__} of an elastic job: {value[:200]!r}: {error}"
        raise ValueError(msg) from error
