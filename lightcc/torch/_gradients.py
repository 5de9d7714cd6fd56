"""What DistributedOptimizer's gradients are in torch; how they travel, `GradientStream` knows.

A hook of each parameter says that its gradient is ready. The engine combines gradients where they
lie. Those that cannot be combined there (they are compressed, not contiguous, or negative views) go
through a copy, and sparse ones are gathered. Parameters that had no gradient on this rank
contribute zeros, since another rank may wait for them.

Whoever writes into a gradient that travels gets another result on each rank. torch counts writes
(`_version`), and not those of the engine, so the end of the step finds out and refuses.

What it does not handle: a parameter whose gradient is sparse on one rank while another rank never
had a gradient for it. That rank cannot know, and contributes dense zeros: a mismatch on all ranks.
`sparse_as_dense` does.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from lightcc._adapter import GradientStream, Slot
from lightcc._ops.reductions import Average
from lightcc.compression import find_engine_compressor
from lightcc.torch import mpi_ops
from lightcc.torch._profile import region
from lightcc.torch.compression import Compression

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.utils.hooks import RemovableHandle

    from lightcc._core import CompressionSpec
    from lightcc.fusion import FusionChoice
    from lightcc.process_sets import ProcessSet
    from lightcc.torch._start_check import StartCheck


_TOUCHED = """The gradient of parameter '{}' was changed while it was on its way, so that ranks \
would go on with different ones. No step was made. Before gradients are clipped, scaled, zeroed or \
replaced, write
    optimizer.synchronize()
and for the step
    with optimizer.skip_synchronize(): optimizer.step()"""
_TAKEN_OVER = """Another DistributedOptimizer was made later for parameter '{}', and combines its \
gradient. Use that one; give parameters of several optimizers to one of them, in groups."""


class _Slot(Slot):
    """One parameter.

    Attributes:
        parameter: It.
        context: Of the compression, while its gradient travels.
        sparse_dim: Of its sparse gradients; 0 as long as there was none.
        owner: The exchange that it is of.
    """

    __slots__ = ("context", "owner", "parameter", "sparse_dim")

    owner: weakref.ref[GradientExchange]

    def __init__(self, name: str, parameter: torch.Tensor) -> None:
        super().__init__(
            name,
            parameter.numel() * parameter.element_size(),
            str(parameter.dtype),
            expected=parameter.requires_grad,
        )
        self.parameter = parameter
        self.context: Any = None
        self.sparse_dim = 0


class _Gradients:
    """The gradients of parameters, as a GradientSource.

    Attributes:
        taken: What travels in this step: the slot, its gradient, and how often that was written.
    """

    def __init__(
        self, compression: Any, op: int, process_set: ProcessSet, *, sparse_as_dense: bool
    ) -> None:
        by_engine = (
            compression is Compression.none or find_engine_compressor(compression) is not None
        )
        self._compression = None if by_engine else compression
        self._op = op
        self._process_set = process_set
        self._sparse_as_dense = sparse_as_dense
        self.taken: list[tuple[_Slot, torch.Tensor, int]] = []

    def take(self, slot: _Slot, *, grouped: bool) -> torch.Tensor | None:  # hot
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
            self._note(slot, gradient)
            return gradient
        if not grouped and self._is_sparse(slot):
            return None
        return self._pack(slot)

    def start_alone(self, slot: _Slot) -> Callable[[], None]:
        gradient = _gradient(slot)
        self._note(slot, gradient)
        handle: Any = mpi_ops.sparse_allreduce_async(
            gradient, slot.name, self._op, self._process_set
        )

        def finish() -> None:
            slot.parameter.grad = handle()

        return finish

    def put(self, slot: _Slot, output: torch.Tensor) -> None:
        if self._compression is not None:
            output = self._compression.decompress(output, slot.context)
            slot.context = None
        gradient = slot.parameter.grad
        if gradient is None or gradient.is_sparse:
            # Optimizers for sparse gradients take no others.
            slot.parameter.grad = output.to_sparse(slot.sparse_dim) if slot.sparse_dim else output
        elif output is not gradient:
            gradient.copy_(output)

    def find_touched(self) -> _Slot | None:
        """Returns a slot whose gradient was written or replaced since it was taken."""
        for slot, gradient, version in self.taken:
            if slot.parameter.grad is not gradient or gradient._version != version:  # noqa: SLF001
                return slot
        return None

    def is_expected(self, slot: _Slot) -> bool:
        return slot.parameter.requires_grad

    def too_many_passes(self, slot: _Slot) -> Exception:
        self.taken[:] = [taken for taken in self.taken if taken[0] is not slot]  # Told of here.
        return AssertionError(
            "Gradients were computed more than backward_passes_per_step times before call to "
            "step(). Increase backward_passes_per_step to accumulate gradients locally. "
            f"Parameter '{slot.name}' got another gradient while its last one was being averaged, "
            "and its value is lost. One backward pass can also visit a parameter several times: "
            "under torch.utils.checkpoint pass use_reentrant=False, or else count each visit as a "
            "pass."
        )

    def _is_sparse(self, slot: _Slot) -> bool:
        if self._sparse_as_dense:
            return False
        gradient = slot.parameter.grad
        return slot.sparse_dim > 0 if gradient is None else gradient.is_sparse

    def _note(self, slot: _Slot, gradient: torch.Tensor) -> None:  # hot
        self.taken.append((slot, gradient, gradient._version))  # noqa: SLF001  torch's name for it

    def _pack(self, slot: _Slot) -> torch.Tensor:
        """Returns what is sent for a gradient: itself if possible."""
        gradient = _gradient(slot, dense=True)
        self._note(slot, gradient)
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


class GradientExchange:
    """Combines the gradients of some parameters over all ranks of a process set.

    Attributes:
        stream: In which they travel.
    """

    def __init__(
        self,
        names: Mapping[torch.Tensor, str],
        groups: Sequence[Sequence[torch.Tensor]],
        *,
        compression: Any,
        spec: CompressionSpec | None,
        passes: int,
        op: int,
        predivide_factor: float,
        sparse_as_dense: bool,
        process_set: ProcessSet,
        fusion: FusionChoice,
        start_check: StartCheck,
    ) -> None:
        """Registers the hooks. Arguments as of DistributedOptimizer, `passes` per step.

        Collective, where `fusion` is a plan. `spec` is what `compression` asks of the engine, if
        anything. `start_check` counts the steps.

        Raises:
            ValueError: A gradient is on its way in another exchange, which this one takes over.
        """
        self._slots = _make_slots(names)
        _check_idle(self._slots)
        self._hooks: list[RemovableHandle] = []
        self._taken_over = ""
        self._start_check = start_check
        # The engine divides by the number of ranks when the op is Average.
        averaged = op == Average
        self._source = _Gradients(compression, op, process_set, sparse_as_dense=sparse_as_dense)
        self.stream: GradientStream[_Slot] = GradientStream(
            self._source,
            self._slots.values(),
            [[self._slots[p] for p in group] for group in groups],
            op=op,
            process_set=process_set,
            fusion=fusion,
            passes=passes,
            factors=(1.0 / predivide_factor, predivide_factor) if averaged else (1.0, 1.0),
            spec=spec,
            region=region,
        )
        self._hook(self._slots)

    def add(self, names: Mapping[torch.Tensor, str]) -> None:
        """Takes in more parameters, each a unit of its own.

        Raises:
            ValueError: As of the constructor.
        """
        slots = _make_slots(names)
        _check_idle(slots)
        self._slots |= slots
        self._start_check.add(names)
        self.stream.add(slots.values())
        self._hook(slots)

    def remove_hooks(self) -> None:
        """Leaves the parameters alone from now on."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def synchronize(self) -> None:
        """Waits as the stream does.

        Raises:
            AssertionError: A gradient was changed on its way; on the ranks where it was, when all
                have arrived.
            HorovodInternalError: As of the stream.
            RuntimeError: A later exchange has taken over.
        """
        if self._taken_over:
            raise RuntimeError(_TAKEN_OVER.format(self._taken_over))

        def wait() -> bool:
            self.stream.synchronize()
            return True

        self._wait(wait)

    def settle(self) -> bool | None:
        """Ends the step under way as the stream does; raises as `synchronize()`."""
        return self._wait(self.stream.settle)

    def _wait(self, wait: Callable[[], bool | None]) -> bool | None:
        touched = self._source.find_touched()
        try:
            combined = wait()
        finally:
            if not self.stream.active:  # Else the wait was interrupted, and will be repeated.
                self._source.taken.clear()
        if combined:
            self._start_check.count_step()
        if touched is not None and combined:
            raise AssertionError(_TOUCHED.format(touched.name))
        return combined

    def handles(self) -> dict[torch.Tensor, tuple[Any, Any]]:
        """Returns the parameters that got a gradient in this step, with handle and context."""
        return {
            slot.parameter: (handle, slot.context) for slot, handle in self.stream.handles().items()
        }

    def expected(self) -> set[torch.Tensor]:
        """Returns the parameters whose gradients other ranks may wait for."""
        return {p for p, slot in self._slots.items() if slot.expected or p.requires_grad}

    def send(self, parameter: torch.Tensor) -> tuple[Any, Any]:
        """Takes the gradient of a parameter as its last one of this step; returns its handle.

        Raises:
            ValueError: There is no such parameter.
        """
        slot = self._slots.get(parameter)
        if slot is None:
            msg = f"the optimizer has no such parameter: {tuple(parameter.shape)}"
            raise ValueError(msg)
        self.stream.send(slot)
        return self.handles()[parameter]

    def _hook(self, slots: Mapping[torch.Tensor, _Slot]) -> None:
        for slot, owner in _owners(slots):
            owner.remove_hooks()
            owner._taken_over = slot.name  # noqa: SLF001
        for parameter, slot in slots.items():
            slot.owner = weakref.ref(self)
            # Called with the parameter besides; a partial costs less than a function around it.
            self._hooks.append(_register(parameter, partial(self.stream.ready, slot)))


def _make_slots(names: Mapping[torch.Tensor, str]) -> dict[torch.Tensor, _Slot]:
    """Returns a slot for each parameter that can have a gradient; torch lets nobody hook others."""
    return {
        parameter: _Slot(name, parameter)
        for parameter, name in names.items()
        if parameter.is_floating_point() or parameter.is_complex()
    }


def _owners(slots: Mapping[torch.Tensor, _Slot]) -> Iterator[tuple[_Slot, GradientExchange]]:
    """Gives the slots that optimizers which still live have for the same parameters."""
    for parameter in slots:
        hooks: Any = parameter._post_accumulate_grad_hooks or {}  # noqa: SLF001  torch's name
        for hook in list(hooks.values()):
            if isinstance(hook, partial) and isinstance(hook.args[0], _Slot):
                owner = hook.args[0].owner()
                if owner is not None:
                    yield hook.args[0], owner


def _check_idle(slots: Mapping[torch.Tensor, _Slot]) -> None:
    for slot, owner in _owners(slots):
        if owner.stream.active:
            msg = (
                f"The gradient of parameter '{slot.name}' is on its way in another "
                "DistributedOptimizer: call its step() or synchronize() first."
            )
            raise ValueError(msg)


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
