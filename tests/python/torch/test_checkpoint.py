"""A training goes on from its checkpoint as if it had not ended, also on other ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from two_by_two import TWO_BY_TWO, make_model, sgd, train, weights

import lightcc.torch as hvd
from lightcc.testing import spawn_ranks
from lightcc.torch import checkpoint

pytestmark = pytest.mark.multiproc


def make_training() -> dict[str, Any]:
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        sgd(model), model.named_parameters(), compression=hvd.Compression.topk(0.05)
    )
    sampler = hvd.elastic.ElasticSampler(list(range(100)), shuffle=False)
    return {"model": model, "optimizer": optimizer, "sampler": sampler}


def save_and_go_on(folder: str) -> tuple[list[float], int]:
    """Returns the weights after 6 steps, of which the folder has the first 3."""
    hvd.init()
    training = make_training()
    assert checkpoint.load(folder, **training) is None
    train(training["model"], training["optimizer"], range(3))
    training["sampler"].record_batch(0, 5)
    path = checkpoint.save(folder, **training, epoch=3, note="x")
    train(training["model"], training["optimizer"], range(3, 6))
    return weights(training["model"]).tolist(), int(path.name.partition("-")[2])


def load_and_go_on(folder: str) -> tuple[list[float], int]:
    """Returns the weights after steps 3 to 5, and how many tensors had a residual."""
    hvd.init()
    training = make_training()
    with torch.no_grad():
        for parameter in training["model"].parameters():
            parameter.zero_()
    assert checkpoint.load(folder, **training) == {"epoch": 3, "note": "x"}
    kept = training["optimizer"].compression_state_dict()["tensors"]
    train(training["model"], training["optimizer"], range(3, 6))
    sampler = training["sampler"]
    assert sampler.processed_num == 20
    assert len(sampler) == 80 // hvd.size()
    return weights(training["model"]).tolist(), len(kept)


def test_a_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    first = spawn_ranks(save_and_go_on, 4, str(tmp_path), env=TWO_BY_TWO)
    then = spawn_ranks(load_and_go_on, 4, str(tmp_path), env=TWO_BY_TWO)
    assert [one[0] for one in then] == [one[0] for one in first]
    assert all(one[1] == 4 for one in then)


def test_it_goes_on_with_other_ranks_on_each_host(tmp_path: Path) -> None:
    hosts = [0, 1]
    env = {"LIGHT_TOPK_THRESHOLD": "0"}
    spawn_ranks(save_and_go_on, 4, str(tmp_path), env=env, hosts=[0, 0, 1, 1])
    then = spawn_ranks(load_and_go_on, len(hosts), str(tmp_path), env=env, hosts=hosts)
    assert all(one == then[0] for one in then)
    assert then[0][1] == 4  # The residuals are divided anew.


def keep_the_newest(folder: str) -> list[str]:
    hvd.init()
    model = nn.Linear(2, 1)
    for epoch in range(5):
        checkpoint.save(folder, keep=2, model=model, epoch=epoch)
    hvd.barrier()
    assert checkpoint.load(folder) == {"epoch": 4}
    return sorted(path.name for path in Path(folder).iterdir())


def test_older_checkpoints_are_removed(tmp_path: Path) -> None:
    found = spawn_ranks(keep_the_newest, 2, str(tmp_path / "new" / "folder"))
    assert found == [["checkpoint-4", "checkpoint-5"]] * 2


def refuse(folder: str) -> list[str]:
    """Returns what this rank is told when it cannot save or load."""
    hvd.init()
    model = nn.Linear(2, 1)
    texts = []

    def refused(function: Any, *arguments: Any, **values: Any) -> None:
        with pytest.raises((ValueError, TypeError, OSError, RuntimeError)) as caught:
            function(*arguments, **values)
        texts.append(str(caught.value))

    refused(checkpoint.save, folder, keep=0, model=model)
    refused(checkpoint.save, folder, model=model, what=object())
    file = Path(folder) / "file"
    if hvd.rank() == 0:
        file.write_text("")
    hvd.barrier()
    refused(checkpoint.save, file, model=model)
    path = checkpoint.save(folder, model=model)
    refused(checkpoint.load, folder, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    refused(checkpoint.load, folder, model=nn.Linear(3, 1) if hvd.rank() == 1 else model)
    if hvd.rank() == 0:
        (path / "state.pt").write_bytes(b"no zip")
    hvd.barrier()
    refused(checkpoint.load, folder, model=model)
    assert [one.name for one in Path(folder).glob("*.partial")] == []
    return texts


def test_what_one_rank_cannot_do_no_rank_does(tmp_path: Path) -> None:
    first, second = spawn_ranks(refuse, 2, str(tmp_path))
    assert first[0] == second[0] == "keep=0: at least one checkpoint must stay"
    assert first[1].startswith("what: a object has no state_dict()")
    assert second[1] == f"no checkpoint was saved, because rank 0 cannot: {first[1]}"
    assert "Not a directory" in first[2]
    assert "rank 0 cannot" in second[2]
    assert (
        "has no state of optimizer; it has model" in first[3] == second[3] or first[3] == second[3]
    )
    assert "rank 1 cannot" in first[4]
    assert "size mismatch" in second[4]
    assert "state.pt is damaged" in first[5]
    assert first[5] == second[5]
