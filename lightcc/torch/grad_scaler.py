"""Mixed precision: gradients are awaited before they are unscaled; residuals follow the scale."""

from __future__ import annotations

import functools
from typing import Any

import torch

_unscale = torch.amp.GradScaler.unscale_


@functools.wraps(_unscale)
def _unscale_when_combined(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
    getattr(optimizer, "_step_supports_amp_scaling", False)  # Asked, our optimizers wait.
    _unscale(scaler, optimizer)


# Also in torch's own scaler: its kernel is the one that writes gradients and counts no write, so
# that no step could find out and refuse.
torch.amp.GradScaler.unscale_ = _unscale_when_combined  # type: ignore[assignment,method-assign]


class GradScaler(torch.amp.GradScaler):
    """The GradScaler of torch, for optimizers whose gradients travel, compressed or not.

    A residual is in the scale of the gradients it was taken from; so when the
    scale changes, it is changed, too. Use it as torch's, with the same arguments.
    `unscale_()` waits for the gradients of all ranks, which may be clipped then; so
    does that of torch's own scaler, once `lightcc.torch` is imported.

        scaler = hvd.GradScaler("cuda")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    An optimizer that has trained with another scale before (by `set_gradient_scale()` or another
    scaler) must be told before the first `backward()` with this one:

        optimizer.set_gradient_scale(scaler.get_scale())
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes the arguments of torch.amp.GradScaler."""
        super().__init__(*args, **kwargs)
        self._compressing: list[Any] = []

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Steps unless a gradient overflowed, as torch's.

        Raises:
            ValueError: The optimizer's gradients have another scale; in the first step only, on
                every rank.
        """
        if hasattr(optimizer, "expect_gradient_scale") and optimizer not in self._compressing:
            optimizer.expect_gradient_scale(self.get_scale())
            self._compressing.append(optimizer)
        result: float | None = super().step(optimizer, *args, **kwargs)
        return result

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Changes the scale, as torch's, and that of residuals."""
        super().update(new_scale)
        for optimizer in self._compressing:
            optimizer.set_gradient_scale(self.get_scale())
