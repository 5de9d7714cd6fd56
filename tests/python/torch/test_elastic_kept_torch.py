"""States of torch in commits that agents keep, and in files."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lightcc.torch as hvd
from lightcc.elastic import ObjectState, State
from lightcc.testing import spawn_ranks

LIGHTCCRUN = str(Path(sys.executable).parent / "lightccrun")
PATIENCE_S = 200
STEPS = 20


def make(**objects: object) -> tuple[torch.nn.Linear, hvd.elastic.TorchState]:
    model = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    plain = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(list(range(64)), shuffle=False)
    return model, hvd.elastic.TorchState(model, optimizer, sampler=sampler, **objects)


def step(state: hvd.elastic.TorchState) -> None:
    """Moves the weights by whole numbers and halves, which is exact on any ranks."""
    state.optimizer.zero_grad()
    (state.model(torch.ones(1, 3)) * (state.batch % 3 + 1.0)).sum().backward()
    state.optimizer.step()
    state.sampler.record_batch(state.batch, 1)
    state.batch += 1


TRAINING = f"""
import json, os, signal, sys
from pathlib import Path
import torch
import lightcc.torch as hvd
from test_elastic_kept_torch import make, step

recovery, folder, worker = sys.argv[1], Path(sys.argv[2]), os.environ["LIGHT_WORKER"]
hvd.init()
model, state = make(batch=0)

@hvd.elastic.run(recovery=recovery, keep_commits=3)
def train(state):
    begun = state.batch
    processes = hvd.allgather_object(os.getpid())
    while state.batch < {STEPS}:
        if worker == "0" and state.batch == 10:
            for process in set(processes) - {{os.getpid()}}:
                os.kill(process, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        step(state)
        state.commit()
    return begun

begun = train(state)
about = {{"weights": model.weight.flatten().tolist(), "begun": begun,
         "seen": state.sampler.processed_num}}
(folder / f"result.{{worker}}").write_text(json.dumps(about))
"""


def train_undisturbed() -> list[float]:
    hvd.init()
    model, state = make(batch=0)
    while state.batch < STEPS:
        step(state)
    return [float(it) for it in model.weight.flatten().tolist()]


@pytest.mark.slow  # Four processes import torch: 10 s.
@pytest.mark.timeout(2 * PATIENCE_S)
@pytest.mark.multiproc
@pytest.mark.parametrize("recovery", ["rollback", "forward"])
def test_training_goes_on_where_all_ranks_were_killed(tmp_path: Path, recovery: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    argv = [LIGHTCCRUN, "-np", "2", "--min-np", "2", sys.executable, str(script)]
    job = subprocess.run(
        [*argv, recovery, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    assert job.returncode == 0, job.stderr
    assert "all begin from commit 10, which the agent of host localhost keeps" in job.stderr
    expected = spawn_ranks(train_undisturbed, 2)[0]
    results = [json.loads(path.read_text()) for path in tmp_path.glob("result.*")]
    assert len(results) == 2, job.stderr
    for about in results:
        assert about["begun"] == 9
        assert about["weights"] == expected
        assert about["seen"] == 2 * STEPS


def save_and_load(path: str) -> tuple[list[float], int, int]:
    hvd.init()
    _, state = make(batch=0)
    for _ in range(4):
        step(state)
    state.commit()
    step(state)  # Is not committed, so that it is not in the file.
    if hvd.rank() == 1:
        state.save_to(path)
    hvd.barrier()
    model, other = make(batch=0)
    if hvd.rank() == 0:
        other.load_from(path)
    other.sync()
    while other.batch < STEPS:
        step(other)
    return model.weight.flatten().tolist(), other.batch, other.sampler.processed_num


@pytest.mark.multiproc
def test_a_state_outlives_the_cluster_in_a_file(tmp_path: Path) -> None:
    found = spawn_ranks(save_and_load, 2, str(tmp_path / "state"))
    expected = spawn_ranks(train_undisturbed, 2)[0]
    assert not list(tmp_path.glob("*.partial"))
    for weights, batch, seen in found:
        assert batch == STEPS
        assert seen == 2 * STEPS
        assert weights == expected


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    state = ObjectState(lambda it: it, lambda: 0, batch=0)
    with pytest.raises(FileNotFoundError, match="nothing"):
        state.load_from(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        state.save_to(tmp_path / "nowhere" / "state")


def test_a_save_that_fails_leaves_the_file_before_and_nothing_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "state"
    state = ObjectState(lambda it: it, lambda: 0, value=5)
    state.save_to(path)
    vars(state)["value"] = lambda: 5  # Cannot be pickled.
    state.save()
    with pytest.raises((AttributeError, pickle.PicklingError), match="pickle"):
        state.save_to(path)
    assert list(tmp_path.iterdir()) == [path]
    state.load_from(path)
    assert vars(state)["value"] == 5


def test_states_that_cannot_be_kept_are_refused() -> None:
    class Other(State):
        """A state of the user's own."""

    @hvd.elastic.run(keep_commits=5)
    def train(_: State) -> None:
        raise AssertionError

    with pytest.raises(ValueError, match="keep_commits does not go with Other"):
        train(Other(lambda it: it, lambda: 0))


def test_a_negative_number_of_commits_is_refused() -> None:
    with pytest.raises(ValueError, match="keep_commits=-1: must be a number of commits, or 0"):
        hvd.elastic.run(keep_commits=-1)


def train_alone() -> list[str]:
    import warnings

    hvd.init()
    _, state = make(batch=0)

    @hvd.elastic.run(keep_commits=1)
    def train(state: hvd.elastic.TorchState) -> None:
        step(state)
        state.commit()

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        train(state)
    return [str(it.message) for it in found]


@pytest.mark.multiproc
def test_without_an_agent_a_warning_says_that_nothing_is_kept() -> None:
    for texts in spawn_ranks(train_alone, 2):
        assert any("keep_commits has no effect: no agent" in text for text in texts)
