"""AdamW that learns its second moment when 1-bit Adam does, from gradients that nothing compresses.

The control of a fair test: what this ends higher than AdamW is not what bits cost.
"""

from __future__ import annotations

import math
from typing import Any

import torch

#: Of lightcc.compression.AdamCompressor and lightcc.torch._adam.
WARMUP_STEPS = 100
EVERY = 32
LARGEST_DECAY = 0.95


class RarelyLearningAdamW(torch.optim.AdamW):
    """Takes AdamW's arguments, and does its steps for parameters of one age."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Updates the parameters; learns the second moment in some steps only."""
        for group in self.param_groups:
            for p in group["params"]:
                self._update_one(p, group)

    def _update_one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[p], group["betas"]
        if not state:
            state |= {"step": 0, "missing": 1.0}
            state |= {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        state["step"] += 1
        number = state["step"]
        if number <= WARMUP_STEPS or number % EVERY == 0:
            decay = beta2 if number <= WARMUP_STEPS else min(beta2**EVERY, LARGEST_DECAY)
            state["exp_avg_sq"].mul_(decay).addcmul_(p.grad, p.grad, value=1.0 - decay)
            state["missing"] *= decay
        state["exp_avg"].lerp_(p.grad, 1.0 - beta1)
        denominator = state["exp_avg_sq"].sqrt().div_(math.sqrt(1.0 - state["missing"]))
        denominator.add_(group["eps"])
        p.mul_(1.0 - group["lr"] * group["weight_decay"])
        p.addcdiv_(state["exp_avg"], denominator, value=-group["lr"] / (1.0 - beta1**number))
