"""The part of DistributedOptimizer that averages gradients while the backward pass still runs.

Each parameter has a slot, and each slot belongs to a unit: a parameter alone, an all-or-nothing
group of the caller's, or a bucket of the fusion plan. A hook counts a slot's backward passes down;
with the last pass of its last slot a unit is ready. Ready parameters are submitted together, a few
hundred KiB in one call, because a call costs as much as sending that; which ones a call has is this
rank's own affair. Groups and planned buckets have a call of their own, and must be the same on all
ranks. The engine combines the gradients where they lie, and knows each by its parameter's name,
whatever unit it is in. `synchronize()` submits what is missing, with zeros
for parameters that had no gradient on this rank (another rank may wait for them), and waits.

A step costs each parameter one call of a Python hook, and little else: names, sizes and order are
known beforehand. Gradients that cannot be combined where they lie (they are compressed, sparse, not
contiguous, or negative views) go through a copy.

Invariant: while a unit is in flight, nobody touches its gradients. A second gradient for such a
parameter is therefore an error, although by then it is too late to save the first.

What it does not handle: a parameter whose gradient is sparse on one rank while another rank never
had a gradient for it (it cannot know, and contributes dense zeros, which the others do not wait
for). `sparse_as_dense` does.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from lightcc import _world
from lightcc.compression import find_topk
from lightcc.exceptions import HorovodInternalError, ShutDownError
from lightcc.fusion import Gradient, Planner, Rule
from lightcc.reductions import Average
from lightcc.torch import mpi_ops
from lightcc.torch._profile import region
from lightcc.torch.compression import Compression

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.utils.hooks import RemovableHandle

    from lightcc._core import TopkSpec
    from lightcc.fusion import FusionChoice
    from lightcc.process_sets import ProcessSet

_log = logging.getLogger(__name__)

#: Ready gradients are submitted when they have as many bytes.
_BATCH_BYTES = 256 << 10


class _Unit:
    """What is submitted when all of it is ready."""

    __slots__ = ("kind", "missing", "num_bytes", "slots", "submitted")

    def __init__(self, kind: int, slots: list[_Slot]) -> None:
        self.kind = kind
        self.slots = slots  # In an order that is the same on all ranks.
        self.num_bytes = sum(_num_bytes(slot) for slot in slots)
        self.missing = len(slots)  # Slots whose last pass is still to come.
        self.submitted = False  # Or about to be.
        for slot in slots:
            slot.unit = self


# Kinds of units: a parameter alone; a group of the caller's; a bucket of the plan, from which
# sparse gradients are left out.
_ALONE, _GROUP, _BUCKET = range(3)


class _Flight:
    """What was submitted in one call."""

    __slots__ = ("handle", "sent", "slots")

    def __init__(self, handle: Any, slots: list[_Slot], sent: list[torch.Tensor]) -> None:
        self.handle = handle  # Callable for sparse gradients; None: over.
        self.slots = slots
        self.sent = sent  # What receives the results; empty: the gradients themselves.


class _Slot:
    """One parameter."""

    __slots__ = (
        "context",
        "copied",
        "expected",
        "name",
        "parameter",
        "passes_left",
        "sparse_dim",
        "unit",
    )

    unit: _Unit

    def __init__(self, name: str, parameter: torch.Tensor) -> None:
        self.name = name
        self.parameter = parameter
        self.passes_left = 0
        self.expected = parameter.requires_grad  # Whether other ranks may wait for it.
        self.copied = False  # Whether something else than the gradient is sent.
        self.context: Any = None  # Of the compression.
        self.sparse_dim = 0  # Of its sparse gradients, once there was one.


class GradientExchange:
    """Combines the gradients of some parameters over all ranks of a process set.

    Attributes:
        active: Whether a parameter got a gradient since the last `synchronize()`.
    """

    def __init__(
        self,
        names: Mapping[torch.Tensor, str],
        groups: Sequence[Sequence[torch.Tensor]],
        *,
        compression: Any,
        topk: TopkSpec | None,
        passes: int,
        op: int,
        predivide_factor: float,
        sparse_as_dense: bool,
        process_set: ProcessSet,
        fusion: FusionChoice,
    ) -> None:
        """Registers the hooks. Arguments as of DistributedOptimizer, `passes` per step.

        Collective, where `fusion` is a plan. `topk` is what `compression` asks of the engine, if
        anything.
        """
        self.active = False
        self._topk = topk
        by_engine = compression is Compression.none or find_topk(compression) is not None
        self._compression = None if by_engine else compression
        self._passes = passes
        self._op = op
        # The engine divides by the number of ranks when the op is Average.
        self._prescale, self._postscale = 1.0, 1.0
        if op == Average:
            self._prescale, self._postscale = 1.0 / predivide_factor, predivide_factor
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set
        self._slots: list[_Slot] = []
        self._units: list[_Unit] = []
        self._unready = 0  # Units of which another gradient is to come.
        self._flights: list[_Flight] = []
        self._ready: list[_Slot] = []  # To be submitted in the next call ...
        self._sent: list[torch.Tensor] = []  # ... with these tensors.
        self._ready_bytes = 0
        self._world = _world.number()  # In which the step began.
        self._waiting = False  # Whether synchronize() was interrupted while it waited.
        self._hooks: list[RemovableHandle] = []
        self._add_slots(names)
        slot_of = {slot.parameter: slot for slot in self._slots}
        self._units = [_Unit(_GROUP, [slot_of[p] for p in group]) for group in groups]
        self._num_groups = len(self._units)
        grouped = {slot for unit in self._units for slot in unit.slots}
        self._planner = Planner(
            fusion,
            [
                Gradient(slot.name, _num_bytes(slot), str(slot.parameter.dtype))
                for slot in self._slots
                if slot.expected and slot not in grouped
            ],
            process_set,
        )
        self._arrived: Callable[[str], None] | None = None
        self._regroup()

    def add(self, names: Mapping[torch.Tensor, str]) -> None:
        """Takes in more parameters, each a unit of its own."""
        before = len(self._slots)
        self._add_slots(names)
        for slot in self._slots[before:]:
            self._units.append(_Unit(_ALONE, [slot]))
            self._rearm(self._units[-1])
            self._unready += 1

    def remove_hooks(self) -> None:
        """Leaves the parameters alone from now on."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def handles(self) -> dict[torch.Tensor, tuple[Any, Any]]:
        """Returns the parameters that got a gradient in this step, with handle and context."""
        found: dict[torch.Tensor, tuple[Any, Any]] = {
            slot.parameter: (None, None) for slot in self._slots if slot.passes_left < self._passes
        }
        for flight in self._flights:
            for slot in flight.slots:
                found[slot.parameter] = (flight.handle, slot.context)
        return found

    def expected(self) -> set[torch.Tensor]:
        """Returns the parameters whose gradients other ranks may wait for."""
        return {s.parameter for s in self._slots if s.expected or s.parameter.requires_grad}

    def send(self, parameter: torch.Tensor) -> tuple[Any, Any]:
        """Takes the gradient of a parameter as its last one of this step; returns its handle.

        Raises:
            ValueError: There is no such parameter.
        """
        slot = next((slot for slot in self._slots if slot.parameter is parameter), None)
        if slot is None:
            msg = f"the optimizer has no such parameter: {tuple(parameter.shape)}"
            raise ValueError(msg)
        if slot.passes_left > 0:
            if not self.active:
                self._begin()
            slot.passes_left = 0
            slot.unit.missing -= 1
            if slot.unit.missing == 0:
                self._submit(slot.unit)
        self._submit_batch()
        return self.handles()[parameter]

    def set_passes(self, passes: int) -> None:
        """Changes the number of backward passes per step, from the next one that starts."""
        self._passes = passes
        for unit in self._units:
            if not unit.submitted:
                self._rearm(unit)

    def settle(self) -> bool | None:
        """Ends the step under way, so that nobody writes into gradients any more.

        Collective in a step under way: every rank of the process set must call it, or
        `synchronize()`.

        Returns:
            Whether the step's gradients are combined now; `None`: no step is under way.
        """
        begun = self._waiting or any(unit.missing < len(unit.slots) for unit in self._units)
        failure: Exception | None = None
        if begun and self._world == _world.number():
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
                self._begin_plan()  # Only other ranks have gradients.
            self._submit_missing()
            self._submit_batch()
            self._waiting = True
        failure = self._wait()
        self._start_anew()
        if failure is not None:
            raise failure
        self._planner.end_step()

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

    def _start_anew(self) -> None:
        """Makes ready for the next step."""
        self._flights.clear()
        self._waiting = False
        self.active = False
        for unit in self._units:
            self._rearm(unit)
        self._unready = len(self._units)

    # -- Before the first step --------------------------------------------------------------------

    def _add_slots(self, names: Mapping[torch.Tensor, str]) -> None:
        for parameter, name in names.items():
            if parameter.is_floating_point() or parameter.is_complex():
                # Integers have no gradient, and torch lets nobody hook them.
                slot = _Slot(name, parameter)
                self._slots.append(slot)
                self._hooks.append(_register(parameter, self._make_hook(slot)))

    def _regroup(self) -> None:
        """Makes the units that the plan asks for; nothing is in flight."""
        del self._units[self._num_groups :]
        named = {slot.name: slot for slot in self._slots}
        self._units += [
            _Unit(_BUCKET, [named[name] for name in bucket]) for bucket in self._planner.buckets
        ]
        taken = {slot for unit in self._units for slot in unit.slots}
        self._units += [_Unit(_ALONE, [slot]) for slot in self._slots if slot not in taken]
        self._rule, self._limit = self._planner.rule
        self._arrived = self._planner.arrived if self._planner.watching else None
        for unit in self._units:
            self._rearm(unit)
        self._unready = len(self._units)

    def _make_hook(self, slot: _Slot) -> Callable[[torch.Tensor], None]:
        submit = self._submit

        def on_gradient(_: torch.Tensor) -> None:  # hot
            if not self.active:
                self._begin()
            slot.passes_left -= 1
            if slot.passes_left > 0:
                return
            if slot.passes_left < 0:
                slot.passes_left = 0
                raise _too_many_passes(slot)
            if self._arrived is not None:
                self._arrived(slot.name)
            unit = slot.unit
            unit.missing -= 1
            if unit.missing == 0:
                submit(unit)

        return on_gradient

    def _begin(self) -> None:
        """Begins a step, with its first gradient."""
        self._begin_plan()
        self.active = True
        self._world = _world.number()

    def _begin_plan(self) -> None:
        if self._planner.begin_step():
            self._regroup()

    def _rearm(self, unit: _Unit) -> None:
        unit.submitted = False
        unit.missing = len(unit.slots)
        for slot in unit.slots:
            slot.passes_left = self._passes

    # -- Each step --------------------------------------------------------------------------------

    def _submit(self, unit: _Unit) -> None:  # hot
        """Submits a unit, soon."""
        unit.submitted = True
        self._unready -= 1
        if unit.kind != _ALONE:
            self._submit_together(unit)
            return
        slot = unit.slots[0]
        gradient = slot.parameter.grad
        if (
            self._compression is None
            and gradient is not None
            and gradient.layout is torch.strided
            and gradient.is_contiguous()
            and not gradient.requires_grad
            and not gradient.is_neg()
        ):
            slot.copied = False
        elif self._is_sparse(slot):
            self._submit_sparse(slot)
            return
        else:
            gradient = self._pack(slot)
        self._ready.append(slot)
        self._sent.append(gradient)
        self._ready_bytes += unit.num_bytes
        if self._ready_bytes >= _BATCH_BYTES or self._unready == 0:
            self._submit_batch()

    def _submit_batch(self) -> None:
        """Submits what is ready, each gradient for itself but in one call."""
        if not self._ready:
            return
        self._start(self._ready, self._sent, self._rule, self._limit, together=False)
        self._ready, self._sent, self._ready_bytes = [], [], 0

    def _submit_together(self, unit: _Unit) -> None:
        """Submits a group, or a bucket of the plan."""
        slots = unit.slots
        if unit.kind == _BUCKET:
            for slot in slots:
                if self._is_sparse(slot):
                    self._submit_sparse(slot)
            slots = [slot for slot in slots if not self._is_sparse(slot)]
        if slots:
            sent = [self._pack(slot) for slot in slots]
            if unit.kind == _BUCKET:
                self._start(slots, sent, Rule.PLANNED, 0, together=True)
            else:
                self._start(slots, sent, self._rule, self._limit, together=True)

    def _start(
        self,
        slots: list[_Slot],
        sent: list[torch.Tensor],
        rule: int,
        limit: int,
        *,
        together: bool,
    ) -> None:
        with region("submit", slots[0].name):
            handle = _world.current().allreduce_each(
                sent,
                [slot.name for slot in slots],
                self._op,
                self._prescale,
                self._postscale,
                self._process_set.process_set_id,
                together,
                rule,
                limit,
                topk=self._topk,
            )
        copied = any(slot.copied for slot in slots)
        self._flights.append(_Flight(handle, slots, sent if copied else []))

    def _submit_sparse(self, slot: _Slot) -> None:
        handle = mpi_ops.sparse_allreduce_async(
            _gradient(slot), slot.name, self._op, self._process_set
        )
        self._flights.append(_Flight(handle, [slot], []))

    def _is_sparse(self, slot: _Slot) -> bool:
        if self._sparse_as_dense:
            return False
        gradient = slot.parameter.grad
        return slot.sparse_dim > 0 if gradient is None else gradient.is_sparse

    def _pack(self, slot: _Slot) -> torch.Tensor:
        """Returns what is sent for a gradient: itself if possible."""
        gradient = _gradient(slot, dense=True)
        if gradient.is_sparse:
            if not self._sparse_as_dense:
                msg = (
                    f"The gradient of parameter '{slot.name}' is sparse, so it cannot be averaged "
                    "in a group: use sparse_as_dense=True, or list groups without it."
                )
                raise ValueError(msg)
            gradient = gradient.to_dense()
        gradient = gradient.contiguous().resolve_neg()
        if self._compression is not None:
            gradient, slot.context = self._compression.compress(gradient)
        slot.copied = self._compression is not None or gradient is not slot.parameter.grad
        return gradient

    def _submit_missing(self) -> None:
        """Submits every unit that is not in flight and that another rank may wait for."""
        if self._unready == 0:
            return
        for unit in self._units:
            if unit.submitted:
                continue
            for slot in unit.slots:
                slot.expected = slot.expected or slot.parameter.requires_grad
            if any(slot.expected for slot in unit.slots):
                self._submit(unit)

    def _finish(self, flight: _Flight) -> None:
        """Waits for a flight and puts the results where the optimizer looks for them."""
        if callable(flight.handle):
            flight.slots[0].parameter.grad = flight.handle()
            flight.handle = None
            return
        with region("wait", flight.slots[0].name):
            mpi_ops.synchronize(flight.handle)
        flight.handle = None
        for slot, output in zip(flight.slots, flight.sent, strict=False):
            if slot.copied:
                self._unpack(slot, output)

    def _unpack(self, slot: _Slot, output: torch.Tensor) -> None:
        if self._compression is not None:
            output = self._compression.decompress(output, slot.context)
            slot.context = None
        gradient = slot.parameter.grad
        if gradient is None or gradient.is_sparse:
            # Optimizers for sparse gradients take no others.
            slot.parameter.grad = output.to_sparse(slot.sparse_dim) if slot.sparse_dim else output
        elif output is not gradient:
            gradient.copy_(output)


def _num_bytes(slot: _Slot) -> int:
    return slot.parameter.numel() * slot.parameter.element_size()


def _gradient(slot: _Slot, dense: bool = False) -> torch.Tensor:
    """Returns the gradient of a parameter, zeros where it has none on this rank."""
    parameter = slot.parameter
    gradient = parameter.grad
    if gradient is None:
        gradient = _zeros(parameter, 0 if dense else slot.sparse_dim)
        parameter.grad = gradient
    elif gradient.is_sparse:
        slot.sparse_dim = gradient.sparse_dim()
    if gradient.requires_grad:
        msg = (
            f"The gradient of parameter '{slot.name}' requires a gradient itself: call "
            "backward() without create_graph=True, or use torch.autograd.grad()."
        )
        raise AssertionError(msg)
    return gradient


def _zeros(parameter: torch.Tensor, sparse_dim: int) -> torch.Tensor:
    if sparse_dim == 0:
        # Not the parameter's strides: these zeros are to be sent as they lie.
        return torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)
    values = parameter.detach().new_empty((0, *parameter.shape[sparse_dim:]))
    indices = torch.empty((sparse_dim, 0), dtype=torch.int64, device=parameter.device)
    return torch.sparse_coo_tensor(indices, values, parameter.shape, check_invariants=False)


def _register(parameter: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> RemovableHandle:
    """Hooks a parameter also if it is frozen now, since it may be thawed later."""
    frozen = not parameter.requires_grad
    if frozen:
        parameter.requires_grad_(True)
    handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(hook)
    if frozen:
        parameter.requires_grad_(False)
    return handle


def _too_many_passes(slot: _Slot) -> AssertionError:
    return AssertionError(
        "Gradients were computed more than backward_passes_per_step times before call to step(). "
        "Increase backward_passes_per_step to accumulate gradients locally. "
        f"Parameter '{slot.name}' got another gradient while its last one was being averaged, and "
        "its value is lost. One backward pass can also visit a parameter several times: under "
        "torch.utils.checkpoint pass use_reentrant=False, or else count each visit as a pass."
    )
