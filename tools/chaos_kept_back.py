"""What compression keeps back in a job of tools/chaos_elastic.py, counted at each step.

One tensor travels as short top-k lists, so that most of it is kept back. Inputs are whole numbers:
sums are exact. Each rank asks its engine what it keeps back, and all ranks tell each other. So at
each step what was put in, which is known, must be what was sent, what all keep back, and what was
lost. At the end a list with room for everything must send all that is kept back, unless all ranks
share a host, where nothing is compressed.

Where a world begins, nothing may be missing of what ranks had at the step from which all go on,
unless rank 0 has said so. What is missing then is exactly what as many of the ranks had that are
gone, or, where it said that of all, everything.

Where an earlier world has begun, and ended before its first commit, nobody can tell what was kept
back there. What is missing then counts as lost, and `unclear` is noted.
"""

from __future__ import annotations

import itertools
import logging
import re
from typing import TYPE_CHECKING, Any

import numpy as np

import lightcc as hvd
from lightcc import _core, _world

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

NAME = "kept"
ELEMENTS = 400
RATIO = 0.02
_HEADER_BYTES = 50  # Of a saved top-k state, docs/wire-format.md.
_OF_RANKS = re.compile(r"kept back on (\d+) of (\d+) ranks is lost")
_OF_ALL = re.compile(
    r"there is none of the step from which|is lost: no agent that is left keeps it of commit \d+$"
)


def base(step: int) -> np.ndarray:
    """Returns what all ranks together put in at a step."""
    numbers = np.random.default_rng([step, ELEMENTS])
    return numbers.integers(-50, 50, ELEMENTS).astype(np.float32)


def part(step: int, rank: int, size: int) -> np.ndarray:
    """Returns what a rank puts in."""

    def of(other: int) -> np.ndarray:
        numbers = np.random.default_rng([step, other])
        return numbers.integers(-30, 30, ELEMENTS).astype(np.float32)

    return of(rank) if rank else base(step) - total(map(of, range(1, size)))


def total(arrays: Any) -> np.ndarray:
    """Returns the sum of any number of arrays."""
    return sum(arrays, np.zeros(ELEMENTS, np.float32))


def kept_here() -> np.ndarray:
    """Returns what this rank's engine keeps back; zero where another one has the element."""
    saved = _world.current().save_compression().get((0, f"allreduce.{NAME}"))
    if saved is None:
        return np.zeros(ELEMENTS, np.float32)
    whole = _core.regroup_compression(saved, [saved], 1, 0, 1, 0)
    return np.frombuffer(whole, np.float32, ELEMENTS, whole.index(b"lcctopk") + _HEADER_BYTES)


def find_lost(
    before: Mapping[int, np.ndarray], now: Mapping[int, np.ndarray], texts: Sequence[str]
) -> int | None:
    """Returns on how many ranks it is lost; `None`: what is missing is not what was said.

    Args:
        before: What each worker kept back at the step from which all go on.
        now: The same in the world that begins there.
        texts: What was said between the two.
    """
    missing = total(before.values()) - total(now.values())
    if any(map(_OF_ALL.search, texts)):
        return None if total(map(abs, now.values())).any() else len(before)
    said = next(filter(None, map(_OF_RANKS.search, texts)), None)
    if said is None:
        return None if missing.any() else 0
    number, size = map(int, said.groups())
    gone = [rest for worker, rest in before.items() if worker not in now]
    could_be = itertools.combinations(gone, number)
    fits = size == len(before) and any(np.array_equal(total(it), missing) for it in could_be)
    return number if fits else None


def is_unclear(begun: Sequence[int], epoch: int, kept_epoch: int) -> bool:
    """Tells whether a world has begun, and ended before its first commit, since the state is of.

    Args:
        begun: The last world that each worker has begun; 0: none, it is new.
        epoch: Of the world that begins now.
        kept_epoch: Of the world of the commit from which all go on.
    """
    last = max(begun) or epoch - 1  # Where all are new, others may have begun that one.
    return last > kept_epoch


class Ledger:
    """Keeps count on one rank. The state has `given`, `sent`, `lost`, `kept` and `kept_epoch`."""

    def __init__(self, worker: int, say: Callable[..., None]) -> None:
        """Begins; `say` notes what is found."""
        self._worker = worker
        self._say = say
        self._begun = 0
        self._is_wrong = False
        self._texts: list[tuple[int, str]] = []  # With the number of the world.
        handler = logging.Handler(logging.WARNING)
        handler.emit = self._hear  # type: ignore[method-assign]
        logging.getLogger("lightcc.elastic").addHandler(handler)
        # Without it, nobody else would show them.
        logging.getLogger("lightcc.elastic").addHandler(logging.StreamHandler())

    @staticmethod
    def first() -> dict[str, Any]:
        """Returns the attributes with which a state begins."""
        zeros = np.zeros(ELEMENTS, np.float32)
        return {"given": zeros, "sent": zeros, "lost": zeros, "kept": {}, "kept_epoch": 0}

    def begin(self, state: Any) -> None:
        """Checks what there is where a world begins. Collective."""
        epoch = hvd.basics.current_epoch().number
        begun, self._begun = self._begun, epoch
        texts = [text for said_in, text in self._texts if said_in == epoch]
        own = (self._worker, kept_here(), texts, begun)
        everybody = hvd.allgather_object(own, name="kept.begin")
        now = {worker: rest for worker, rest, _, _ in everybody}
        if is_unclear([it for _, _, _, it in everybody], epoch, state.kept_epoch):
            self._say("kept", epoch, "unclear")
        else:
            said = [text for _, _, texts, _ in everybody for text in texts]
            lost = find_lost(state.kept, now, said)
            if state.kept:
                self._say("kept", epoch, lost)
            if lost is None:
                self._complain("part-of-what-was-kept-back", state.step)
        state.lost = state.lost + total(state.kept.values()) - total(now.values())

    def step(self, state: Any) -> None:
        """Makes a step, and checks it. Collective."""
        sums = self._reduce(part(state.step, hvd.rank(), hvd.size()), RATIO)
        kept = dict(hvd.allgather_object((self._worker, kept_here()), name="kept.rests"))
        given, sent = state.given + base(state.step), state.sent + sums
        if not np.array_equal(given, sent + state.lost + total(kept.values())):
            self._complain("sum-of-sent-and-kept-back", state.step)
        state.given, state.sent, state.kept = given, sent, kept
        state.kept_epoch = hvd.basics.current_epoch().number

    def end(self, state: Any) -> None:
        """Sends all that is kept back, and checks that it is what was missing. Collective."""
        rest = self._reduce(np.zeros(ELEMENTS, np.float32), 1.0)
        left = total(hvd.allgather_object(kept_here(), name="kept.left"))
        is_grid = _world.current().compression_position(0) is not None
        is_right = np.array_equal(state.given, state.sent + state.lost + rest + left)
        if not is_right or (is_grid and left.any()):
            self._complain("sum-after-all-was-sent", state.step)

    def _hear(self, record: logging.LogRecord) -> None:
        self._texts.append((hvd.basics.current_epoch().number, record.getMessage()))

    def _complain(self, what: str, step: int) -> None:
        if not self._is_wrong:  # What follows is wrong as well.
            self._say("wrong", what, step)
        self._is_wrong = True

    @staticmethod
    def _reduce(mine: np.ndarray, ratio: float) -> np.ndarray:
        topk = hvd.Compression.topk(ratio)
        return np.array(hvd.allreduce(mine, op=hvd.Sum, name=NAME, compression=topk))
