"""The control of the convergence experiments is AdamW but for when it learns its second moment."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "measure"))

from rarely_learning import EVERY, WARMUP_STEPS, RarelyLearningAdamW


def test_it_is_adamw_at_first_and_then_learns_in_one_step_of_many() -> None:
    torch.manual_seed(1)
    found, expected = (torch.nn.Parameter(torch.ones(50)) for _ in range(2))
    control = RarelyLearningAdamW([found], lr=0.01, weight_decay=0.1)
    adamw = torch.optim.AdamW([expected], lr=0.01, weight_decay=0.1)
    learnt = []
    for step in range(1, WARMUP_STEPS + 3 * EVERY):
        found.grad = expected.grad = torch.randn(50) + 1.0
        before = control.state[found]["exp_avg_sq"].clone() if step > 1 else torch.zeros(50)
        control.step()
        adamw.step()
        if step == WARMUP_STEPS:
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        if step > WARMUP_STEPS and not torch.equal(control.state[found]["exp_avg_sq"], before):
            learnt.append(step)
    assert learnt == [128, 160, 192]
    assert not torch.allclose(found, expected, rtol=1e-5, atol=1e-6)
