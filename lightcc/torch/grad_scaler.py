"""Mixed precision together with compression."""

from __future__ import annotations

from typing import Any

import torch


class GradScaler(torch.amp.GradScaler):
    """The GradScaler of torch, for optimizers whose gradients are compressed.

    A residual is in the scale of the gradients it was taken from; so when the
    scale changes, it is changed, too. Use it as torch's, with the same arguments:

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
