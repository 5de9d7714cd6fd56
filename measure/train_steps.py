"""Training steps whose computing is emulated, in one rank of `lightcc.bench`, by this file's path.

A step sleeps through the forward pass and then, layer by layer from the last, to the moment at
which a GPU would have that layer's gradients; these, real memory, are handed to the library at
once. Deadlines are absolute, so that a library that is slow to take gradients does not put off the
ones to come: a GPU would not wait either. The step ends when every gradient is reduced.

How gradients are handed over is a schedule:
none      not at all: what a step takes without communication.
layers    lightcc: in DistributedOptimizer's stream (`train_stream`), in the buckets of a plan where
          LIGHT_FUSION_STRATEGY asks for one.
horovod   gloo as Horovod drives it: a thread that agrees once per cycle with the other ranks on
          what is ready everywhere, and reduces it through a fusion buffer, one after another.
ddp       gloo as DistributedDataParallel drives it: flat buckets of 25 MiB (the first of 1 MiB)
          that gradients lie in, each started when it is complete.
In favour of the last two, nobody divides by the number of ranks, and Horovod's thread rests until
there is a first gradient.
"""

from __future__ import annotations

import gc
import importlib
import sys
import threading
import time
import zlib
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Gradient = NDArray[np.float32]

_FIRST_BUCKET_BYTES = 1 << 20
_BUCKET_BYTES = 25 << 20
_ITEM_BYTES = 4
_SLICE = 5 << 18  # Elements that are filled or checked at once; a multiple of the pattern's period.
_PERIOD = 5
_SCALE = 1e-6  # Random gradients are small, as undivided sums may grow for many steps.


class Schedule(Protocol):
    """How gradients come to the other ranks. Gradient i is the i-th to be ready."""

    def ready(self, index: int) -> None:
        """Takes a gradient; the call does not wait for other ranks."""

    def finish(self) -> None:
        """Returns when all gradients are reduced."""


class NoCommunication:
    """Nothing is exchanged."""

    def ready(self, index: int) -> None:
        """Does nothing."""

    def finish(self) -> None:
        """Returns at once."""


class HorovodOnGloo:
    """Horovod's background thread over gloo: cycles, agreement, a fusion buffer."""

    def __init__(self, library: Any, gradients: list[Gradient], plan: dict[str, Any]) -> None:
        self._torch, self._dist = library.torch, library.dist
        self._gradients = gradients
        self._cycle_s = float(plan["cycle_s"])
        self._fusion_elements = int(plan["fusion_bytes"]) // _ITEM_BYTES
        # Horovod has one, too, and keeps it; smaller models do not fill it.
        size = min(self._fusion_elements, sum(gradient.size for gradient in gradients))
        self._buffer = np.empty(size, np.float32)
        self._ready = np.zeros(len(gradients), np.uint8)
        self._started, self._done = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def ready(self, index: int) -> None:
        """Leaves a gradient to the thread."""
        self._ready[index] = 1
        self._started.set()

    def finish(self) -> None:
        """Waits for the thread."""
        self._done.wait()
        self._done.clear()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Ends the thread."""
        self._closing = True
        self._started.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._started.wait()
            if self._closing:
                return
            try:
                self._reduce_all()
            except BaseException as error:  # noqa: BLE001 - raised again by finish().
                self._error = error
            self._started.clear()
            self._ready[:] = 0
            self._done.set()

    def _reduce_all(self) -> None:
        reduced = np.zeros(len(self._gradients), np.uint8)
        next_cycle = time.perf_counter()
        while not reduced.all():
            sleep_until(next_cycle)
            next_cycle = max(next_cycle, time.perf_counter()) + self._cycle_s
            common = self._ready.copy()
            self._dist.all_reduce(self._torch.from_numpy(common), op=self._dist.ReduceOp.MIN)
            agreed = np.flatnonzero(common & ~reduced & 1)
            for group in fuse([self._gradients[i].size for i in agreed], self._fusion_elements):
                self._reduce([self._gradients[agreed[i]] for i in group])
            reduced[agreed] = 1

    def _reduce(self, gradients: list[Gradient]) -> None:
        if len(gradients) == 1:
            self._dist.all_reduce(self._torch.from_numpy(gradients[0]))
            return
        edges = np.cumsum([0, *(gradient.size for gradient in gradients)])
        parts = [self._buffer[first:last] for first, last in pairwise(edges)]
        for part, gradient in zip(parts, gradients, strict=True):
            np.copyto(part, gradient)
        self._dist.all_reduce(self._torch.from_numpy(self._buffer[: edges[-1]]))
        for part, gradient in zip(parts, gradients, strict=True):
            np.copyto(gradient, part)


class DdpOnGloo:
    """Flat buckets, started in order as they fill."""

    def __init__(self, library: Any, buckets: list[Gradient], sizes: list[int]) -> None:
        """`sizes` are the numbers of gradients of each bucket."""
        self._torch, self._dist = library.torch, library.dist
        self._buckets = buckets
        self._last = np.cumsum(sizes) - 1  # The gradient that completes each.
        self._works: list[Any] = []

    def ready(self, index: int) -> None:
        """Starts the bucket that this gradient completes, if it does."""
        if index == self._last[len(self._works)]:
            bucket = self._torch.from_numpy(self._buckets[len(self._works)])
            self._works.append(self._dist.all_reduce(bucket, async_op=True))

    def finish(self) -> None:
        """Waits for all buckets."""
        for work in self._works:
            work.wait()
        self._works.clear()


def fuse(counts: list[int], maximum: int) -> list[list[int]]:
    """Returns neighbours of at most `most` elements together; a larger one stays alone."""
    groups: list[list[int]] = []
    total = 0
    for index, count in enumerate(counts):
        if not groups or total + count > maximum:
            groups.append([])
            total = 0
        groups[-1].append(index)
        total += count
    return groups


def ddp_buckets(counts: list[int]) -> list[int]:
    """Returns how many gradients each bucket has: one closes when it has reached its size."""
    sizes = [0]
    total, limit = 0, _FIRST_BUCKET_BYTES
    for count in counts:
        if total >= limit:
            sizes.append(0)
            total, limit = 0, _BUCKET_BYTES
        sizes[-1] += 1
        total += count * _ITEM_BYTES
    return sizes


def sleep_until(deadline: float) -> None:
    """Leaves the processor to others until `deadline` (of time.perf_counter)."""
    left = deadline - time.perf_counter()
    if left > 0:
        time.sleep(left)


class Training:
    """One rank's gradients, and the steps over them."""

    def __init__(self, library: Any, plan: dict[str, Any]) -> None:
        """`plan` is as `train.make_plan` writes it; layers are in the order of back-propagation."""
        self._library = library
        self._plan = plan
        counts = [count for layer in plan["layers"] for count in layer["gradients"]]
        sizes = ddp_buckets(counts) if plan["schedule"] == "ddp" else [1] * len(counts)
        edges = np.cumsum([0, *sizes])
        self._sizes = sizes
        self._buckets = [
            np.empty(sum(counts[first:last]), np.float32) for first, last in pairwise(edges)
        ]
        self._gradients: list[Gradient] = []
        for bucket, (first, last) in zip(self._buckets, pairwise(edges), strict=True):
            ends = np.cumsum(counts[first:last])
            self._gradients += np.split(bucket, ends[:-1])
        self._streamed: Any = None  # What is learnt goes on from one run to the next.

    def run(self, steps: int) -> list[float]:
        """Runs steps one right after the other; returns the time of each, in seconds."""
        schedule = self._schedule(exact=False)
        ends = [time.perf_counter()]
        try:
            for _ in range(steps):
                self._step(schedule, ends[-1])
                ends.append(time.perf_counter())
        finally:
            _close(schedule)
        return [last - first for first, last in pairwise(ends)]

    def fill_random(self) -> None:
        """Gives the gradients values as back-propagation might."""
        rng = np.random.default_rng(self._library.rank)
        values = rng.standard_normal(_SLICE, dtype=np.float32) * np.float32(_SCALE)
        self._each_slice(lambda part: np.copyto(part, values[: part.size]))

    def count_errors(self) -> tuple[int, int]:
        """Runs a step on known data, without computing; returns wrong elements, and a checksum.

        Where gradients are compressed no element is wrong, but all ranks must have the same sum.
        """
        if self._plan["schedule"] == "none":
            return 0, 0
        rank, size = self._library.rank, self._library.size
        pattern = np.resize(np.arange(_PERIOD, dtype=np.float32), _SLICE)
        mine = pattern + np.float32(rank + 1)
        expected = pattern * np.float32(size) + np.float32(size * (size + 1) / 2)
        self._each_slice(lambda part: np.copyto(part, mine[: part.size]))
        exact = self._plan["ratio"] is None
        schedule = self._schedule(exact=exact)
        try:
            for index in range(len(self._gradients)):
                schedule.ready(index)
            schedule.finish()
        finally:
            _close(schedule)
        errors = checksum = 0

        def compare(part: Gradient) -> None:
            nonlocal errors, checksum
            if exact:
                errors += int((part != expected[: part.size]).sum())
            checksum = zlib.crc32(part.view(np.uint8).data, checksum)

        self._each_slice(compare)
        return errors, checksum

    def _each_slice(self, function: Callable[[Gradient], None]) -> None:
        for gradient in self._gradients:
            for first in range(0, gradient.size, _SLICE):
                function(gradient[first : first + _SLICE])

    def _schedule(self, *, exact: bool) -> Schedule:
        kind = self._plan["schedule"]
        if kind == "layers":
            return self._layers(exact=exact)
        if kind == "horovod":
            return HorovodOnGloo(self._library, self._gradients, self._plan)
        if kind == "ddp":
            return DdpOnGloo(self._library, self._buckets, self._sizes)
        return NoCommunication()

    def _layers(self, *, exact: bool) -> Schedule:
        if self._streamed is None:
            # lightcc's ranks have lightcc; others may not.
            sys.path.append(str(Path(__file__).parent))
            streamed: Any = importlib.import_module("train_stream")
            layers = [layer["gradients"] for layer in self._plan["layers"]]
            names = streamed.names_of(self._plan["model"], layers)
            ratio = self._plan["ratio"]
            self._streamed = streamed.StreamedLayers(names, self._gradients, ratio)
        hvd = self._library.hvd
        # Sums of small integers are exact; averages are what training wants.
        self._streamed.combine_by(hvd.Sum if exact else hvd.Average)
        schedule: Schedule = self._streamed
        return schedule

    def _step(self, schedule: Schedule, start: float) -> None:
        deadline = start + self._plan["forward_s"]
        index = 0
        for layer in self._plan["layers"]:
            deadline += layer["backward_s"]
            sleep_until(deadline)
            for _ in layer["gradients"]:
                schedule.ready(index)
                index += 1
        schedule.finish()


def _close(schedule: Schedule) -> None:
    if isinstance(schedule, HorovodOnGloo):
        schedule.close()


def measure(library: Any, plan: dict[str, Any], barrier: Any) -> dict[str, Any]:
    """Runs the steps of `plan` and returns their times, processor time and wrong elements.

    Memory is given back afterwards: other libraries' ranks need it in their turn.
    """
    training = Training(library, plan)
    errors, checksum = training.count_errors() if plan["check"] else (0, 0)
    training.fill_random()
    barrier.wait()
    training.run(plan["warmup"])
    barrier.wait()
    before = time.process_time()
    times = training.run(plan["steps"])
    cpu_s = (time.process_time() - before) / plan["steps"]
    del training
    gc.collect()
    return {"times": times, "cpu_s": cpu_s, "errors": errors, "digest": checksum}
