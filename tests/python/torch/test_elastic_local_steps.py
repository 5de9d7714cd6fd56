"""Elastic jobs whose hosts train on their own: what survivors have done is kept, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from elastic_jobs import run_story

if TYPE_CHECKING:
    from pathlib import Path

STEPS, EVERY = 60, 10

TRAINING = f"""
import json, os, signal, sys, time
from pathlib import Path
import torch
import lightcc.torch as hvd

worker, story, folder = int(os.environ["LIGHT_WORKER"]), json.loads(sys.argv[1]), Path(sys.argv[2])
os.environ["LIGHT_HOST_ID"] = f"site-{{worker % 2}}"
hvd.init()
model = torch.nn.Linear(3, 1, bias=False)
torch.nn.init.constant_(model.weight, worker)
optimizer = hvd.LocalSteps(
    torch.optim.SGD(model.parameters(), lr=1.0),
    model.named_parameters(),
    every={EVERY},
    dense_steps=5,
    outer_lr=1.0,
    outer_momentum=0.0,
    compression=hvd.Compression.none,
)
state = hvd.elastic.TorchState(model, optimizer, batch=0, sizes=[])

@hvd.elastic.run
def train(state):
    state.sizes = [*state.sizes, hvd.size()]
    while state.batch < {STEPS}:
        if story.get(str(worker)) == state.batch:
            os.kill(os.getpid(), signal.SIGKILL)
        if state.batch > 40 and hvd.size() < 4:
            time.sleep(3)  # Until somebody has come for the one who was lost.
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        state.batch += 1
        state.commit()
    optimizer.outer_step()

train(state)
about = {{"weights": model.weight.flatten().tolist(), "sizes": state.sizes}}
(folder / f"result.{{worker}}").write_text(json.dumps(about))
"""


@pytest.mark.slow  # Five or six processes import torch: 10 s.
@pytest.mark.multiproc
@pytest.mark.parametrize("story", [{"3": 17}, {"0": 17, "2": 17}], ids=["a rank", "a host"])
def test_steps_of_survivors_are_kept_and_newcomers_take_no_part_in_their_mean(
    tmp_path: Path, story: dict[str, int]
) -> None:
    """All gradients are 1, so the weights say how many steps were made, and by whom.

    A newcomer that counted would take away two of seven steps. Ranks on both sides of a failure may
    be a step apart.
    """
    found = run_story(TRAINING, story, tmp_path, patience_s=180)
    assert len({tuple(about["weights"]) for about in found}) == 1
    for about in found:
        assert about["weights"][0] == pytest.approx(-STEPS, abs=1)
        assert about["sizes"][0] == 4
        assert min(about["sizes"]) < 4 == about["sizes"][-1]
