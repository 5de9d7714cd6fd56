"""The gradients of a training step, from ready to combined, while the step still computes.

Each gradient has a slot, and each slot belongs to a unit: a gradient alone, an all-or-nothing
group of the caller's, or a bucket of the fusion plan. `ready()` counts a slot's passes down;
with the last pass of its last slot a unit is complete. Complete gradients are submitted together,
a few hundred KiB in one call, because a call costs as much as sending that; which ones a call has
is this rank's own affair. Groups and planned buckets have a call of their own, and must be the
same on all ranks. The engine knows each gradient by its name, whatever unit it is in.
`synchronize()` submits what is missing, because another rank may wait for it, and waits.

A step costs each gradient one call of a Python function, and little else: names, sizes and order
are known beforehand.

Invariant: while a unit is in flight, nobody touches its gradients. A second gradient for such a
slot is therefore an error, although by then it is too late to save the first.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from lightcc import _world
from lightcc._binding import _core
from lightcc._ops.basics import count_step
from lightcc.exceptions import HorovodInternalError, ShutDownError
from lightcc.fusion import BATCH_BYTES, Gradient, Planner, Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from lightcc._core import CompressionSpec
    from lightcc.fusion import FusionChoice
    from lightcc.process_sets import ProcessSet

_log = logging.getLogger(__name__)

# Kinds of units: a gradient alone; a group of the caller's; a bucket of the plan, which a gradient
# may leave to travel in a way of its own.
_ALONE, _GROUP, _BUCKET = range(3)


class Slot:
    """One gradient of each step. A frontend adds what it knows of it in a class of its own.

    Attributes:
        name: Matches the gradient across ranks.
        num_bytes: Its size.
        dtype: Its data type, as a text that is the same on all ranks.
        expected: Whether other ranks may wait for it.
        copied: Whether the result has to be put back: what was taken is not the gradient itself.
        passes_left: How often it will still become ready in this step.
        spec: How it is compressed; the same for all of a unit, and on all ranks.
        unit: What it is submitted with.
    """

    __slots__ = ("copied", "dtype", "expected", "name", "num_bytes", "passes_left", "spec", "unit")

    spec: CompressionSpec | None
    unit: Unit[Any]

    def __init__(self, name: str, num_bytes: int, dtype: str, *, expected: bool) -> None:
        """The stream gives it a unit and a spec."""
        self.name = name
        self.num_bytes = num_bytes
        self.dtype = dtype
        self.expected = expected
        self.copied = False
        self.passes_left = 0


S = TypeVar("S", bound=Slot)
S_contra = TypeVar("S_contra", bound=Slot, contravariant=True)


class GradientSource(Protocol[S_contra]):
    """What a framework says of its gradients."""

    def take(self, slot: S_contra, *, grouped: bool) -> Any | None:
        """Returns what is combined in place for a gradient, and sets `slot.copied`.

        It is the gradient itself where that can be; zeros where there is none on this rank.

        Args:
            slot: Whose gradient it is.
            grouped: Whether it is in a group, which it cannot leave.

        Returns:
            A tensor; `None`: the gradient travels in a way of its own, by `start_alone()`. Not
            where it is grouped.

        Raises:
            ValueError: It cannot travel in its group.
            AssertionError: It must not be written.
        """

    def start_alone(self, slot: S_contra) -> Callable[[], None]:
        """Starts what combines a gradient in a way of its own; returns what waits for it."""

    def put(self, slot: S_contra, output: Any) -> None:
        """Takes the result for a slot that is `copied`; `output` is what `take()` returned."""

    def is_expected(self, slot: S_contra) -> bool:
        """Returns whether other ranks may wait for the gradient now, as far as this rank knows."""

    def too_many_passes(self, slot: S_contra) -> Exception:
        """Returns the error for a gradient that becomes ready while its last one is in flight."""


class Unit(Generic[S]):
    """What is submitted when all of it is ready."""

    __slots__ = ("kind", "missing", "num_bytes", "slots", "submitted")

    def __init__(self, kind: int, slots: list[S]) -> None:
        """Takes slots, in an order that is the same on all ranks."""
        self.kind = kind
        self.slots = slots
        self.num_bytes = sum(slot.num_bytes for slot in slots)
        self.missing = len(slots)  # Slots whose last pass is still to come.
        self.submitted = False  # Or about to be.
        for slot in slots:
            slot.unit = self

    @classmethod
    def bucket(cls, slots: list[S]) -> Unit[S]:
        """Returns one that a frontend submits itself."""
        return cls(_BUCKET, slots)


class _Flight(Generic[S]):
    """What was submitted in one call."""

    __slots__ = ("handle", "sent", "slots")

    def __init__(self, handle: Any, slots: list[S], sent: list[Any]) -> None:
        self.handle = handle  # Callable for what travels in a way of its own; None: over.
        self.slots = slots
        self.sent = sent  # What receives the results; empty: the gradients themselves.


def _nothing() -> None:
    """Is called when a step begins, where nobody asks for that."""


class GradientStream(Generic[S]):
    """Combines the gradients of some slots over all ranks of a process set, step by step.

    Attributes:
        active: Whether a gradient became ready since the last `synchronize()`.
        slots: All of them, in the order in which they were given.
        op: How gradients are combined, a number of `lightcc._ops.reductions`.
        passes: How often each gradient becomes ready in a step; see `set_passes()`.
        units: What is submitted together.
        on_begin: Called when a step begins, before anything is submitted.
    """

    def __init__(
        self,
        source: GradientSource[S],
        slots: Iterable[S],
        groups: Sequence[list[S]],
        *,
        op: int,
        process_set: ProcessSet,
        fusion: FusionChoice,
        passes: int = 1,
        factors: tuple[float, float] = (1.0, 1.0),
        spec: CompressionSpec | None = None,
        region: Callable[[str, str], AbstractContextManager[Any]] = lambda *_: nullcontext(),
    ) -> None:
        """Makes the units.

        Collective, where `fusion` is a plan: every rank of the process set must call it.

        Args:
            source: The framework.
            slots: All gradients, in an order that need not be the same on all ranks.
            groups: The slots of each all-or-nothing group; the same on all ranks.
            op: How gradients are combined.
            process_set: The ranks whose gradients are combined; this rank is a member.
            fusion: Which gradients travel in one bucket.
            passes: How often each gradient becomes ready in a step.
            factors: What gradients are multiplied by before they are combined, and after.
            spec: How they are compressed; `None`: LIGHT_TOPK_ALLREDUCE decides.
            region: Returns a region for a profiler, given what is done and a name.

        Raises:
            ValueError: Ranks differ in the strategy or in the gradients. On all of them.
        """
        self.active = False
        self.slots = list(slots)
        self.op = op
        self.passes = passes
        self._source = source
        self._take = source.take
        self._spec = spec
        self._factors = factors
        self._process_set = process_set
        self._region = region
        self.units: list[Unit[S]] = [Unit(_GROUP, group) for group in groups]
        self.on_begin: Callable[[], None] = _nothing
        self._unready = 0  # Units of which another gradient is to come.
        self._flights: list[_Flight[S]] = []
        self._ready: list[S] = []  # To be submitted in the next call, which has one spec ...
        self._sent: list[Any] = []  # ... with these tensors.
        self._ready_bytes = 0
        self._world = _world.epoch()  # In which the step began.
        self._waiting = False  # Whether synchronize() was interrupted while it waited.
        grouped = {slot for unit in self.units for slot in unit.slots}
        self._planner = Planner(
            fusion,
            [
                Gradient(slot.name, slot.num_bytes, slot.dtype)
                for slot in self.slots
                if slot.expected and slot not in grouped
            ],
            process_set,
        )
        self._make_units()
        for slot in self.slots:
            slot.spec = spec

    def add(self, slots: Iterable[S]) -> None:
        """Takes in more slots, each a unit of its own."""
        for slot in slots:
            slot.spec = self._spec
            self.slots.append(slot)
            self.units.append(Unit(_ALONE, [slot]))
            self._rearm(self.units[-1])
            self._unready += 1

    def set_passes(self, passes: int) -> None:
        """Changes the number of passes per step, from the next one that starts."""
        self.passes = passes
        for unit in self.units:
            if not unit.submitted:
                self._rearm(unit)

    def ready(self, slot: S, _: object = None) -> None:  # hot
        """Notes that a pass has made a gradient; submits its unit if that was the last of it.

        Args:
            slot: The gradient's.
            _: What a framework calls its hooks with.

        Raises:
            Exception: `GradientSource.too_many_passes()`.
        """
        if not self.active:
            self._begin()
        slot.passes_left -= 1
        if slot.passes_left > 0:
            return
        if slot.passes_left < 0:
            slot.passes_left = 0
            raise self._source.too_many_passes(slot)
        unit = slot.unit
        unit.missing -= 1
        if unit.missing == 0:
            self._submit(unit)

    def send(self, slot: S) -> None:
        """Takes a gradient as the last one of this step, whatever passes are missing."""
        if slot.passes_left > 0:
            if not self.active:
                self._begin()
            slot.passes_left = 0
            slot.unit.missing -= 1
            if slot.unit.missing == 0:
                self._submit(slot.unit)
        self._submit_batch()

    def handles(self) -> dict[S, Any]:
        """Returns the slots that became ready in this step, each with its handle.

        That is `None` until the gradient is on its way: passes are missing, or others of its call.
        """
        found: dict[S, Any] = {slot: None for slot in self.slots if slot.passes_left < self.passes}
        for flight in self._flights:
            for slot in flight.slots:
                found[slot] = flight.handle
        return found

    def settle(self) -> bool | None:
        """Ends the step under way, so that nobody writes into gradients any more.

        Collective in a step under way: every rank of the process set must call it, or
        `synchronize()`.

        Returns:
            Whether the step's gradients are combined now; `None`: no step is under way.
        """
        begun = self._waiting or any(unit.missing < len(unit.slots) for unit in self.units)
        failure: Exception | None = None
        if begun and self._world == _world.epoch():
            try:
                self.synchronize()
            except (AssertionError, ValueError, HorovodInternalError) as error:
                # One gradient cannot travel or be combined; the others may still be on their way.
                failure = error
                self._wait()
        elif begun:
            # Nothing is missing any more: the ranks that would wait for it are gone.
            failure = self._wait() or ShutDownError("lightcc was shut down meanwhile")
        self._ready, self._sent, self._ready_bytes = [], [], 0
        self._start_anew()
        if failure is not None:
            _log.warning("gradients that were on their way are not combined: %s", failure)
        return failure is None if begun else None

    def synchronize(self) -> None:
        """Submits what is missing and waits until all gradients are combined.

        Raises:
            HorovodInternalError: The first error, after all operations ended. On all ranks.
        """
        if not self._waiting:
            if not self.active:
                self._begin()
            self._submit_missing()
            self._submit_batch()
            self._waiting = True
        failure = self._wait()
        self._start_anew()
        if failure is not None:
            raise failure
        count_step()

    # -- Units ------------------------------------------------------------------------------------

    def _make_units(self) -> None:
        """Makes the units that the plan asks for."""
        named = {slot.name: slot for slot in self.slots}
        self.units += [
            Unit(_BUCKET, [named[name] for name in bucket]) for bucket in self._planner.buckets
        ]
        taken = {slot for unit in self.units for slot in unit.slots}
        self.units += [Unit(_ALONE, [slot]) for slot in self.slots if slot not in taken]
        self._rule, self._limit = self._planner.choice.rule, self._planner.choice.limit_bytes
        for unit in self.units:
            self._rearm(unit)
        self._unready = len(self.units)

    def _begin(self) -> None:
        """Begins a step, with its first gradient."""
        self.active = True
        self._world = _world.epoch()
        self.on_begin()

    def _rearm(self, unit: Unit[S]) -> None:
        unit.submitted = False
        unit.missing = len(unit.slots)
        for slot in unit.slots:
            slot.passes_left = self.passes

    def _start_anew(self) -> None:
        """Makes ready for the next step."""
        self._flights.clear()
        self._waiting = False
        self.active = False
        for unit in self.units:
            self._rearm(unit)
        self._unready = len(self.units)

    # -- Submitting -------------------------------------------------------------------------------

    def _submit(self, unit: Unit[S]) -> None:  # hot
        """Submits a unit, soon."""
        unit.submitted = True
        self._unready -= 1
        if unit.kind != _ALONE:
            self._submit_together(unit)
            return
        slot = unit.slots[0]
        gradient = self._take(slot, grouped=False)
        if gradient is None:
            self._start_alone(slot)
            return
        if self._ready and slot.spec is not self._ready[0].spec:
            self._submit_batch()
        self._ready.append(slot)
        self._sent.append(gradient)
        self._ready_bytes += unit.num_bytes
        if self._ready_bytes >= BATCH_BYTES or self._unready == 0:
            self._submit_batch()

    def _submit_batch(self) -> None:
        """Submits what is ready, each gradient for itself but in one call."""
        if not self._ready:
            return
        self._start(self._ready, self._sent, self._rule, self._limit, together=False)
        self._ready, self._sent, self._ready_bytes = [], [], 0

    def _submit_together(self, unit: Unit[S]) -> None:
        """Submits a group, or a bucket of the plan."""
        slots: list[S] = []
        sent: list[Any] = []
        for slot in unit.slots:
            gradient = self._take(slot, grouped=unit.kind == _GROUP)
            if gradient is None:
                self._start_alone(slot)
            else:
                slots.append(slot)
                sent.append(gradient)
        if slots:
            planned = unit.kind == _BUCKET
            rule, limit = (Rule.PLANNED, 0) if planned else (self._rule, self._limit)
            self._start(slots, sent, rule, limit, together=True)

    def _start(
        self, slots: list[S], sent: list[Any], rule: int, limit: int, *, together: bool
    ) -> None:
        with self._region("submit", slots[0].name):
            handle = _world.current().allreduce_each(
                sent,
                [slot.name for slot in slots],
                self.op,
                *self._factors,
                self._process_set.process_set_id,
                together,
                rule,
                limit,
                slots[0].spec,
            )
        copied = any(slot.copied for slot in slots)
        self._flights.append(_Flight(handle, slots, sent if copied else []))

    def _start_alone(self, slot: S) -> None:
        self._flights.append(_Flight(self._source.start_alone(slot), [slot], []))

    def _submit_missing(self) -> None:
        """Submits every unit that is not in flight and that another rank may wait for."""
        if self._unready == 0:
            return
        for unit in self.units:
            if unit.submitted:
                continue
            for slot in unit.slots:
                slot.expected = slot.expected or self._source.is_expected(slot)
            if any(slot.expected for slot in unit.slots):
                self._submit(unit)

    # -- Waiting ----------------------------------------------------------------------------------

    def _wait(self) -> HorovodInternalError | None:
        """Waits for all flights; returns the first error."""
        failure: HorovodInternalError | None = None
        for flight in self._flights:
            if flight.handle is None:
                continue  # Finished before an interrupted wait was repeated.
            try:
                self._finish(flight)
            except HorovodInternalError as error:
                failure = failure or error
                flight.handle = None
        return failure

    def _finish(self, flight: _Flight[S]) -> None:
        """Waits for a flight and puts the results where the step looks for them."""
        if callable(flight.handle):
            flight.handle()
            flight.handle = None
            return
        with self._region("wait", flight.slots[0].name):
            _core.wait(flight.handle)  # Who asked for the handle may have synchronized it.
        flight.handle = None
        for slot, output in zip(flight.slots, flight.sent, strict=False):
            if slot.copied:
                self._source.put(slot, output)
