"""`Compression.auto`: which way of compressing each gradient takes, found while it trains.

Ways are ordered from mild to strong: uncompressed, 8 bits, 4 bits, top-k. Steps pass through four
phases, in which all ranks do the same at the same step:

1. Warm-up: everything travels in the mildest compressed way.
2. Trial: each way within the budget has a few steps, if there are several. What counts is the time
   from step to step, so whatever hides behind the computation is free. Of a way the median counts,
   on the slowest rank.
3. Choice: the mildest way that is about as fast as the fastest one, for all gradients. Top-k does
   most harm in the beginning, so 2100 steps of int4 go before it, and then its share falls. At 1%
   an element waits for about 100 steps, and shorter trainings than 20 times that have lost accuracy
   by it.
4. Looks: where `kept_ratio` of a gradient's statistics is above the limit, it takes the next milder
   way, within the budget or not, and is given time to recover. The ratio is the error that
   compression makes at the moment.

A way's residual is added to what the next one sends, as the engine keeps it by name. Before a
gradient travels uncompressed it travels once as top-k of all elements, which keeps nothing back.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np

from lightcc import _world
from lightcc._adapter.compressed_gradients import PREFIX
from lightcc._adapter.compression_guard import LIMIT, LIMIT_OF_SQUARES
from lightcc._adapter.gradient_stream import Slot, Unit
from lightcc._low_communication import INT4_SHARE, local_step_hint
from lightcc._ops.basics import stats
from lightcc._ops.reductions import Max, allreduce
from lightcc.compression import AutoCompressor

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightcc._core import CompressionSpec
    from lightcc.process_sets import ProcessSet

_log = logging.getLogger(__name__)

S = TypeVar("S", bound=Slot)

#: The steps of a trial before the timed ones, and the timed ones.
_SETTLING_STEPS = 2
_TIMED_STEPS = 5
#: The mildest way wins that takes at most so much longer than the fastest.
_SLACK = 0.05
#: Top-k begins after so many steps.
INT4_STEPS = 2100
#: In which its share falls then.
TOPK_WARMUP_STEPS = 1000
_WARMUP_START = 0.25
#: Steps between two looks; the statistics are means over about as many.
_LOOK_STEPS = 100
#: Looks that a gradient has to recover in its new way.
_PATIENCE = 2


@dataclass(frozen=True)
class Way:
    """One way for a gradient to travel.

    Attributes:
        label: As people call it.
        spec: What the engine is asked for; `None`: nothing.
        share: What it sends, as a share of the bytes of float32.
    """

    label: str
    spec: CompressionSpec | None
    share: float


class Int4First(AutoCompressor):
    """Top-k as `Compression.auto` comes to it, without a trial and without a way back.

    Args:
        ratio: Share of the elements that each host sends in the end.
        fp16: Whether values of top-k travel as float16.
    """

    def __init__(self, ratio: float, fp16: bool) -> None:
        """Takes the arguments of the class."""
        super().__init__(warmup_steps=0)
        self.ratio = ratio
        self.fp16 = fp16
        self.error = math.inf

    def describe(self) -> str:
        """Returns what it does, as messages say it."""
        return (
            f"int4 for {INT4_STEPS} steps, and then by top-k whose share falls to {self.ratio:.3g}"
            f" in {TOPK_WARMUP_STEPS}"
        )


def ways_for(*, squares: bool, bare: bool) -> list[Way]:
    """Returns the ways that there are, from mild to strong.

    Args:
        squares: Whether the optimizer divides by squares of what arrives, which top-k does not
            suit.
        bare: Whether what asks for nothing travels uncompressed.
    """
    # Not at the top: this module is imported where the engine is not.
    from lightcc._core import CompressionSpec

    ways = [Way("uncompressed", None, 1.0)] if bare else []
    ways += [
        Way("int8", CompressionSpec.quantized(8), 0.254),
        Way("int4", CompressionSpec.quantized(4), INT4_SHARE),
    ]
    if not squares:  # Each element that is sent has an index of 2 bytes.
        ways += [
            Way("top-k at 0.05", CompressionSpec(0.05), 0.075),
            Way("top-k at 0.01", CompressionSpec(0.01), 0.015),
        ]
    return ways


def ways_within(compressor: AutoCompressor, *, squares: bool) -> tuple[list[Way], list[int]]:
    """Returns the ways that there are in this world, and the positions of those to try.

    Args:
        compressor: What the caller asked for.
        squares: As of `ways_for()`.

    Raises:
        ValueError: No way is within the budget.
    """
    if isinstance(compressor, Int4First):
        return _int4_and_topk(compressor), [1]
    knobs = _world.current().compression_knobs()
    bare = not (knobs["topk"] or knobs["quantize"])
    ways = ways_for(squares=squares, bare=bare)
    tried = [level for level, way in enumerate(ways) if way.share <= compressor.budget]
    if not tried:
        strongest = ways[-1]
        msg = (
            f"budget is {compressor.budget:g}: the least that suits this optimizer is"
            f" {strongest.label}, which sends {strongest.share:g} of the bytes"
        )
        raise ValueError(msg)
    return ways, tried


def _int4_and_topk(compressor: Int4First) -> list[Way]:
    from lightcc._core import CompressionSpec

    topk = CompressionSpec(compressor.ratio, compressor.fp16)
    return [
        Way("int4", CompressionSpec.quantized(4), INT4_SHARE),
        Way(f"top-k at {compressor.ratio:.3g}", topk, compressor.ratio),
    ]


class Tuned(Protocol[S]):
    """Gradients that travel as their slots say: a GradientStream, or what a frontend has instead.

    Attributes:
        slots: One for each gradient.
        units: What shares a way, all slots in one of them.
        on_begin: To be called when a step begins.
    """

    slots: list[S]
    units: list[Unit[S]]
    on_begin: Callable[[], None]


class CompressionTuner(Generic[S]):
    """Chooses how the gradients of one optimizer travel."""

    def __init__(
        self,
        compressor: AutoCompressor,
        tuned: Tuned[S],
        compresses: Callable[[int], bool],
        process_set: ProcessSet,
        *,
        squares: bool,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begins with the warm-up.

        Args:
            compressor: What the caller asked for.
            tuned: The gradients.
            compresses: Returns whether a gradient of so many bytes is compressed.
            process_set: The ranks whose gradients are combined.
            squares: Whether the optimizer divides by squares of what arrives.
            clock: Returns seconds.

        Raises:
            ValueError: No way is within the budget.
        """
        self._ways, self._within = ways_within(compressor, squares=squares)
        self._tried = self._within if len(self._within) > 1 else []
        self._warmup_steps = compressor.warmup_steps
        self._limit = compressor.error or (LIMIT_OF_SQUARES if squares else LIMIT)
        self._tuned = tuned
        self._compresses = compresses
        self._process_set = process_set
        self._clock = clock
        self._keeping: set[S] = set()  # These may have a residual.
        tuned.on_begin = self._begin
        self.start()

    def start(self) -> None:
        """Begins with the warm-up; no gradient is on its way."""
        self._epoch = _world.counting_epoch()
        self._levels = {slot: 0 for slot in self._tuned.slots if self._compresses(slot.num_bytes)}
        self._keeping.clear()
        self._seconds: list[list[float]] = [[] for _ in self._tried]
        self._strongest = dict(self._levels)  # To which they go; known with the choice.
        self._topk_warmup = 0  # None in trials.
        self._recovering: dict[S, int] = {}  # Looks that a slot is left alone.
        self._applied: tuple[int, dict[S, int]] | None = None  # Units and levels, if they stay.
        self._steps = 0
        self._next_step()

    def choices(self) -> dict[str, str]:
        """Returns how each gradient travels now that may be compressed, by its name."""
        return {slot.name: self._ways[level].label for slot, level in self._levels.items()}

    def count_step(self) -> None:
        """Notes that a step is over. Every rank of the process set must call it.

        Raises:
            HorovodInternalError: A rank failed. On all ranks.
        """
        if not self._levels:
            return
        now = self._clock()
        trial, within = self._phase()
        if 0 <= trial < len(self._tried) and within >= _SETTLING_STEPS:
            self._seconds[trial].append(now - self._before)
        self._steps += 1
        self._next_step()

    def begin_step(self) -> None:
        """Notes that a step begins, and the one before is over, where nobody calls `count_step()`.

        Raises:
            HorovodInternalError: A rank failed. On all ranks.
        """
        if self._epoch == _world.counting_epoch():
            self.count_step()
        else:
            self.start()

    def _next_step(self) -> None:
        trial, within = self._phase()
        if trial < 0:
            mildest = next(i for i, way in enumerate(self._ways) if way.spec is not None)
            self._levels = dict.fromkeys(self._levels, mildest)
        elif trial < len(self._tried):
            self._levels = dict.fromkeys(self._levels, self._tried[trial])
        elif trial == len(self._tried) and within == 0:
            self._choose()
        else:
            if self._steps % _LOOK_STEPS == 0 and self._limit < math.inf:
                self._look()
            if self._steps >= INT4_STEPS:
                self._descend()
        if self._steps <= self._topk_warmup:
            self._applied = None  # The share of top-k falls in each step.
        if self._applied != (len(self._tuned.units), self._levels):
            self._apply()
        self._before = self._clock()

    def _phase(self) -> tuple[int, int]:
        """Returns the number of the trial, and of the step within it. Negative: warm-up."""
        return divmod(self._steps - self._warmup_steps, _SETTLING_STEPS + _TIMED_STEPS)

    def _begin(self) -> None:
        """Begins anew where ranks have done different numbers of steps, or are others."""
        if self._epoch != _world.counting_epoch():
            self.start()

    def _choose(self) -> None:
        """Gives all gradients their way, or int4 before it is time for that."""
        level = self._find_mildest() if self._tried else self._within[0]
        quantized = max(i for i, way in enumerate(self._ways) if way.spec and way.spec.bits)
        self._strongest = dict.fromkeys(self._levels, level)
        self._levels = dict.fromkeys(self._levels, min(level, quantized))

    def _find_mildest(self) -> int:
        """Returns the mildest way that is about as fast as the fastest."""
        seconds = self._max([statistics.median(times) for times in self._seconds])
        level = self._tried[int(np.argmax(seconds <= (1.0 + _SLACK) * seconds.min()))]
        if self._process_set.rank() == 0:
            _log.info(
                "Compression.auto: gradients travel as %s; a step takes %s",
                self._ways[level].label,
                ", ".join(
                    f"{1e3 * time_s:.4g} ms {self._ways[tried].label}"
                    for tried, time_s in zip(self._tried, seconds, strict=True)
                ),
            )
            shares = [self._ways[tried].share for tried in self._tried]
            if hint := local_step_hint(shares, seconds.tolist()):
                _log.info("Compression.auto: %s", hint)
        return level

    def _descend(self) -> None:
        """Gives gradients top-k for which it was chosen."""
        if self._levels != self._strongest:
            self._levels = dict(self._strongest)
            self._topk_warmup = self._steps + TOPK_WARMUP_STEPS

    def _look(self) -> None:
        """Gives gradients a milder way whose residual is too large."""
        for slot, ratio in zip(self._levels, self._kept_ratios(), strict=True):
            left = self._recovering.pop(slot, 0)
            if left > 1:
                self._recovering[slot] = left - 1
            elif ratio > self._limit and self._levels[slot] > 0:
                self._levels[slot] -= 1
                self._strongest[slot] = self._levels[slot]
                self._recovering[slot] = _PATIENCE
                if self._process_set.rank() == 0:
                    _log.info(
                        "Compression.auto: '%s' travels as %s from now on: the residual is %.3g"
                        " times what a step brings, and %.3g times is the limit",
                        slot.name,
                        self._ways[self._levels[slot]].label,
                        ratio,
                        self._limit,
                    )

    def _spec_of(self, level: int) -> CompressionSpec | None:
        """Returns what the engine is asked for in this step."""
        from lightcc._core import CompressionSpec

        spec = self._ways[level].spec
        if spec is None or spec.bits:
            return spec
        return CompressionSpec(self._share_of(spec.ratio), spec.fp16)

    def _share_of(self, ratio: float) -> float:
        """Returns the share of elements that top-k sends in this step.

        Steps before it count as well, so it begins lower the later that is.
        """
        if self._steps >= self._topk_warmup:
            return ratio
        share = _WARMUP_START * (ratio / _WARMUP_START) ** (self._steps / self._topk_warmup)
        return float(np.float32(share))  # The last bit may be another on another host.

    def _kept_ratios(self) -> np.ndarray:
        """Returns the largest `kept_ratio` among the ranks, of each gradient that is compressed."""
        process_set = self._process_set.process_set_id
        ratios = {t.name: t.kept_ratio for t in stats().compression if t.process_set == process_set}
        return self._max([ratios.get(PREFIX + slot.name, 0.0) for slot in self._levels])

    def _max(self, values: list[float]) -> np.ndarray:
        """Returns the largest of each value among the ranks."""
        found: np.ndarray = allreduce(
            np.array(values),
            name=f"tuning.{self._tuned.slots[0].name}",
            op=Max,
            process_set=self._process_set,
        )
        return found

    def _apply(self) -> None:
        """Has gradients travel in their ways. Those of a unit take the mildest."""
        is_flushing = False
        mildest = min(self._levels.values(), default=0)
        specs = [self._spec_of(level) for level in range(len(self._ways))]
        for unit in self._tuned.units:
            level = min((self._levels.get(slot, mildest) for slot in unit.slots), default=mildest)
            spec = specs[level]
            if spec is not None:
                self._keeping.update(unit.slots)
            elif not self._keeping.isdisjoint(unit.slots):
                self._keeping.difference_update(unit.slots)
                spec = _everything()
                is_flushing = True  # In one step alone.
            for slot in unit.slots:
                slot.spec = spec
        self._applied = None if is_flushing else (len(self._tuned.units), dict(self._levels))


def _everything() -> CompressionSpec:
    """Returns the spec that sends all there is, residuals included."""
    from lightcc._core import CompressionSpec

    return CompressionSpec(1.0)
