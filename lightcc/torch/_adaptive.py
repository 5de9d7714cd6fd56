"""Which optimizers of torch divide by squares of what arrives."""

from __future__ import annotations

from typing import Any

#: What parameter groups have whose optimizer divides by a running mean of squared gradients, or of
#: their like: Adam, AdamW, LAMB and others; RMSprop; Adagrad; Adadelta; Adafactor.
_SECOND_MOMENT = ("betas", "centered", "initial_accumulator_value", "rho", "beta2_decay")


def is_adaptive(groups: list[dict[str, Any]]) -> bool:
    """Returns whether an optimizer with these parameter groups has a second moment."""
    return any(key in group for group in groups for key in _SECOND_MOMENT)
