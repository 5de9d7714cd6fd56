"""DistributedOptimizer with op=Adasum: ranks step on their own and combine what that changed.

Adasum weighs contributions by their angle, so it must see what a step does to the parameters and
not the gradient: `delta = step(start) - start; parameter = start + adasum(delta of all ranks)`.
Nothing travels during the backward pass; gradients stay this rank's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch

from lightcc._ops.reductions import Adasum
from lightcc.torch import mpi_ops
from lightcc.torch._copies import Copied
from lightcc.torch._parameters import check_named, name_parameters
from lightcc.torch._private_names import PrivateNames
from lightcc.torch._scaled_step import step_unless_infinite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class AdasumOptimizer(Copied, PrivateNames):
    """What DistributedOptimizer adds to the class of an optimizer when op is Adasum.

    Attributes:
        backward_passes_per_step: Kept for the caller; gradients add up until `step()` anyway.
    """

    # Only there while torch.amp.GradScaler calls step().
    grad_scale: torch.Tensor | None
    found_inf: torch.Tensor | None

    def _distribute(
        self,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
        compression: Any,
        backward_passes_per_step: int,
    ) -> None:
        """Starts the work of this class on an object that has the state of the given optimizer."""
        self.backward_passes_per_step = backward_passes_per_step
        self._compression = compression
        self._named = None if named_parameters is None else check_named(named_parameters)
        names = name_parameters(self.param_groups, self._named)
        self._exchange = None
        self._parameter_names = dict(names)  # Not used here; Horovod's users read it.
        self._expected = {p for p in names if p.requires_grad}
        self._starts: dict[torch.Tensor, torch.Tensor] = {}

    def _arguments(self, memo: dict[int, Any]) -> tuple[Any, ...]:  # noqa: ARG002
        return self._compression, self.backward_passes_per_step

    @property
    def _requires_update(self) -> set[torch.Tensor]:
        """Parameters whose change is combined."""
        return set(self._expected)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Notes how many backward passes come before a step.

        Raises:
            ValueError: `passes` is not positive.
        """
        if passes <= 0:
            msg = "backward_passes_per_step must be > 0"
            raise ValueError(msg)
        self.backward_passes_per_step = passes

    def synchronize(self) -> None:
        """Does nothing: there are no gradients on their way."""

    def skip_synchronize(self) -> NoReturn:
        """Raises AssertionError: the step itself is what all ranks do together."""
        msg = "Skipping synchronization is not supported when using Adasum optimizer."
        raise AssertionError(msg)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Does the step of the given optimizer on this rank, and combines it with the others'.

        Parameters that this rank did not change contribute zeros.

        Collective: every rank must call it.

        Args:
            closure: Computes this rank's loss and gradients again.

        Returns:
            What the given optimizer returns on this rank.

        Raises:
            HorovodInternalError: A rank failed; the parameters are as before. On all ranks.
        """
        names = name_parameters(self.param_groups, self._named)
        self._expected.update(p for p in names if p.requires_grad)
        names = {p: name for p, name in names.items() if p in self._expected}
        self._keep(names)
        loss = step_unless_infinite(self, super().step, closure)
        try:
            with torch.no_grad():
                self._combine(names)
        except BaseException:
            with torch.no_grad():
                for p in names:
                    p.copy_(self._starts[p])
            raise
        return loss

    step.hooked = True  # type: ignore[attr-defined]  # See _DistributedOptimizer.

    def _keep(self, parameters: Iterable[torch.Tensor]) -> None:
        """Notes where the parameters start."""
        with torch.no_grad():
            for p in parameters:
                start = self._starts.get(p)
                if start is None:
                    self._starts[p] = p.detach().clone()
                else:
                    start.copy_(p)

    def _combine(self, names: dict[torch.Tensor, str]) -> None:
        sent = []
        for p, name in names.items():
            p.sub_(self._starts[p])
            tensor, context = self._compression.compress(p.detach().contiguous().resolve_neg())
            handle = mpi_ops.allreduce_async_(tensor, name=name, op=Adasum)
            sent.append((p, handle, context))
        for p, handle, context in sent:
            delta = self._compression.decompress(mpi_ops.synchronize(handle), context)
            torch.add(self._starts[p], delta, out=p.detach())

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Tells torch.amp.GradScaler to leave the decision about infinite gradients to `step()`."""
        return True

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        self.__dict__["_step_supports_amp_scaling"] = value
