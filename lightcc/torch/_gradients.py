"""The part of DistributedOptimizer that averages gradients while the backward pass still runs.

Each parameter has a slot, and each slot belongs to a unit: what ranks match by name, a parameter
alone or an all-or-nothing group. A hook counts a slot's backward passes down; with the last pass of
its last slot a unit is ready. Ready units are submitted together, a few hundred KiB in one call,
because a call costs as much as sending that; which ones a call has is this rank's own affair. The
engine combines the gradients where they lie. `synchronize()` submits what is missing, with zeros
for parameters that had no gradient on this rank (another rank may wait for them), and waits.

A step costs each parameter one call of a Python hook, and little else: names, sizes and order are
known beforehand. Gradients that cannot be combined where they lie (they are compressed, sparse, or
not contiguous) go through a copy.

Invariant: while a unit is in flight, nobody touches its gradients. A second gradient for such a
parameter is therefore an error, although by then it is too late to save the first.

What it does not handle: a parameter whose gradient is sparse on one rank while another rank never
had a gradient for it (it cannot know, and contributes dense zeros, which the others do not wait
for). `sparse_as_dense` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lightcc import _world
from lightcc.compression import find_topk
from lightcc.exceptions import HorovodInternalError
from lightcc.reductions import Average
from lightcc.torch import mpi_ops
from lightcc.torch.compression import Compression

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.utils.hooks import RemovableHandle

    from lightcc._core import TopkSpec
    from lightcc.process_sets import ProcessSet


#: Ready gradients are submitted when they have as many bytes.
_BATCH_BYTES = 256 << 10


class _Unit:
    """What ranks match by name: one parameter, or a group."""

    __slots__ = ("copied", "grouped", "missing", "name", "num_bytes", "slots", "submitted")

    def __init__(self, name: str, grouped: bool) -> None:
        self.name = name
        self.grouped = grouped
        self.slots: list[_Slot] = []
        self.num_bytes = 0
        self.missing = 0  # Slots whose last pass is still to come.
        self.submitted = False  # Or about to be.
        self.copied = False  # Whether something else than the gradients is sent.


class _Flight:
    """What was submitted in one call."""

    __slots__ = ("copied", "handle", "units")

    def __init__(self, handle: Any, units: list[_Unit], copied: bool) -> None:
        self.handle = handle  # Callable for sparse gradients; None: over.
        self.units = units
        self.copied = copied  # Whether one of the units is.


class _Slot:
    """One parameter."""

    __slots__ = ("context", "expected", "name", "parameter", "passes_left", "sparse_dim", "unit")

    def __init__(self, name: str, parameter: torch.Tensor, passes: int, unit: _Unit) -> None:
        self.name = name
        self.parameter = parameter
        self.passes_left = passes
        self.unit = unit
        self.expected = parameter.requires_grad  # Whether other ranks may wait for it.
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
    ) -> None:
        """Registers the hooks. Arguments as of DistributedOptimizer, `passes` per step.

        `topk` is what `compression` asks of the engine, if anything.
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
        self._units: list[_Unit] = []
        self._unready = 0  # Units of which another gradient is to come.
        self._flights: list[_Flight] = []
        self._ready: list[_Unit] = []  # To be submitted in the next call ...
        self._sent: list[torch.Tensor] = []  # ... with these tensors.
        self._ready_bytes = 0
        self._waiting = False  # Whether synchronize() was interrupted while it waited.
        self._hooks: list[RemovableHandle] = []
        self._add_units(names, groups)

    def add(self, names: Mapping[torch.Tensor, str]) -> None:
        """Takes in more parameters, each a unit of its own."""
        self._add_units(names, ())

    def remove_hooks(self) -> None:
        """Leaves the parameters alone from now on."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def set_passes(self, passes: int) -> None:
        """Changes the number of backward passes per step, from the next one that starts."""
        self._passes = passes
        for unit in self._units:
            if not unit.submitted:
                self._rearm(unit)

    def forget(self) -> None:
        """Forgets what is in flight, which must be over: its world is, or nobody wants it."""
        self._ready.clear()
        self._sent.clear()
        self._ready_bytes = 0
        self._start_anew()

    def synchronize(self) -> None:
        """Submits what is missing and waits until all gradients are combined.

        Raises:
            HorovodInternalError: The first error, after all operations ended. On all ranks.
        """
        if not self._waiting:
            self._submit_missing()
            self._submit_batch()
            self._waiting = True
        failure: HorovodInternalError | None = None
        for flight in self._flights:
            if flight.handle is None:
                continue  # Finished before an interrupted wait was repeated.
            try:
                self._finish(flight)
            except HorovodInternalError as error:
                failure = failure or error
                flight.handle = None
        self._start_anew()
        if failure is not None:
            raise failure

    def _start_anew(self) -> None:
        """Makes ready for the next step."""
        self._flights.clear()
        self._waiting = False
        self.active = False
        for unit in self._units:
            self._rearm(unit)
        self._unready = len(self._units)

    # -- Before the first step --------------------------------------------------------------------

    def _add_units(
        self, names: Mapping[torch.Tensor, str], groups: Sequence[Sequence[torch.Tensor]]
    ) -> None:
        units: dict[torch.Tensor, _Unit] = {}
        before = len(self._units)
        for group in groups:
            unit = _Unit(names[group[0]], grouped=True)
            self._units.append(unit)
            units |= dict.fromkeys(group, unit)
        for parameter, name in names.items():
            if not (parameter.is_floating_point() or parameter.is_complex()):
                continue  # Integers have no gradient, and torch lets nobody hook them.
            unit = units.get(parameter) or _Unit(name, grouped=False)
            if not unit.grouped:
                self._units.append(unit)
            slot = _Slot(name, parameter, self._passes, unit)
            unit.slots.append(slot)
            unit.missing += 1
            unit.num_bytes += parameter.numel() * parameter.element_size()
            self._hooks.append(_register(parameter, self._make_hook(slot)))
        # In the order of the group, which is the same on all ranks.
        for group in groups:
            place = {parameter: i for i, parameter in enumerate(group)}
            units[group[0]].slots.sort(key=lambda slot: place[slot.parameter])
        self._unready += len(self._units) - before

    def _make_hook(self, slot: _Slot) -> Callable[[torch.Tensor], None]:
        unit = slot.unit
        submit = self._submit

        def on_gradient(_: torch.Tensor) -> None:  # hot
            self.active = True
            slot.passes_left -= 1
            if slot.passes_left > 0:
                return
            if slot.passes_left < 0:
                slot.passes_left = 0
                raise _too_many_passes(slot)
            unit.missing -= 1
            if unit.missing == 0:
                submit(unit)

        return on_gradient

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
        gradient = unit.slots[0].parameter.grad
        if (
            self._compression is None
            and not unit.grouped
            and gradient is not None
            and gradient.layout is torch.strided
            and gradient.is_contiguous()
            and not gradient.requires_grad
        ):
            unit.copied = False
        elif unit.grouped or self._is_sparse(unit.slots[0]):
            self._submit_alone(unit)
            return
        else:
            unit.copied = True
            gradient = self._pack(unit.slots[0])
        self._ready.append(unit)
        self._sent.append(gradient)
        self._ready_bytes += unit.num_bytes
        if self._ready_bytes >= _BATCH_BYTES or self._unready == 0:
            self._submit_batch()

    def _submit_batch(self) -> None:
        """Submits what is ready, each unit for itself but in one call."""
        if not self._ready:
            return
        units = self._ready
        handle = _world.current().allreduce_each(
            self._sent,
            [unit.name for unit in units],
            self._op,
            self._prescale,
            self._postscale,
            self._process_set.process_set_id,
            topk=self._topk,
        )
        self._flights.append(_Flight(handle, units, any(unit.copied for unit in units)))
        self._ready, self._sent, self._ready_bytes = [], [], 0

    def _submit_alone(self, unit: _Unit) -> None:
        """Submits a group, or one sparse gradient."""
        unit.copied = True
        handle: Any
        if unit.grouped:
            # Under their own names: what compression keeps back is theirs, not the group's.
            handle = _world.current().allreduce_each(
                [self._pack(slot) for slot in unit.slots],
                [slot.name for slot in unit.slots],
                self._op,
                self._prescale,
                self._postscale,
                self._process_set.process_set_id,
                together=True,
                topk=self._topk,
            )
        else:
            handle = mpi_ops.sparse_allreduce_async(
                _gradient(unit.slots[0]), unit.name, self._op, self._process_set
            )
        self._flights.append(_Flight(handle, [unit], copied=True))

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
        gradient = gradient.contiguous()
        if self._compression is not None:
            gradient, slot.context = self._compression.compress(gradient)
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
            flight.units[0].slots[0].parameter.grad = flight.handle()
            flight.handle = None
            return
        outputs = mpi_ops.synchronize(flight.handle)
        flight.handle = None
        if not flight.copied:
            return
        slots = [slot for unit in flight.units for slot in unit.slots]
        for slot, output in zip(slots, outputs, strict=True):
            if slot.unit.copied:
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
