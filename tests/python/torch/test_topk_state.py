"""What top-k compression keeps back is taken in by all ranks alike, or by none."""

from __future__ import annotations

import copy
import gc
import os
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from replicas import checks_of, each_on
from torch import nn
from two_by_two import TWO_BY_TWO, collect_log, make_model, sgd, train, weights

import lightcc.torch as hvd
from lightcc import _world
from lightcc.testing import spawn_ranks

pytestmark = pytest.mark.multiproc

TOPK = hvd.Compression.topk(0.05)


def compressed(model: nn.Module) -> Any:
    return hvd.DistributedOptimizer(sgd(model), model.named_parameters(), compression=TOPK)


def weights_of(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.flatten() for p in model.parameters()])


def own_folder() -> Path:
    """A folder that all ranks name alike; the launcher removes it."""
    folder = Path(os.environ["LIGHTCC_TEST_DIRECTORY"]) / "state"
    hvd.barrier()
    return folder


def change_stored_bytes(file: Path) -> None:
    """Damages the last tensor of an archive, so that only who loads that tensor notices."""
    content = bytearray(file.read_bytes())
    at = content.rindex(b"lcctopk")
    content[at + 60] ^= 1
    file.write_bytes(content)


def zero_gradients_of_float64_are_saved_and_loaded() -> None:
    model = make_model().double()
    optimizer = compressed(model)
    for _ in range(3):
        (weights_of(model) * 0).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    folder = own_folder()
    hvd.save_compression_state(folder)
    hvd.barrier()
    assert hvd.load_compression_state(folder) >= 4


def a_file_that_is_damaged_for_one_rank_is_loaded_by_none() -> None:
    model = make_model()
    optimizer = compressed(model)
    train(model, optimizer, range(2))
    folder = own_folder()
    file = hvd.save_compression_state(folder)
    train(model, optimizer, range(2, 4))
    if hvd.rank() == 2:
        change_stored_bytes(file)
    hvd.barrier()
    before = optimizer.compression_state_dict()
    with pytest.raises(ValueError, match=r"compression-2\.zip is damaged") as caught:
        hvd.load_compression_state(folder)
    assert ("rank 2 cannot" in str(caught.value)) == (hvd.rank() != 2)
    assert optimizer.compression_state_dict() == before
    train(model, optimizer, range(4, 6))


def a_dict_that_is_damaged_on_one_rank_is_loaded_by_none() -> None:
    model = make_model()
    optimizer = compressed(model)
    train(model, optimizer, range(2))
    state = optimizer.compression_state_dict()
    train(model, optimizer, range(2, 4))
    before = optimizer.compression_state_dict()
    damaged: list[Any] = [
        {**state, "tensors": {**state["tensors"], "2.bias": state["tensors"]["2.bias"][:-1]}},
        {**state, "tensors": {"2.bias.momentum": state["tensors"]["2.bias"]}},  # 1-bit Adam had it.
        {**state, "version": 9},
        {"version": 1},
        None,
    ]
    for bad in damaged:
        with pytest.raises(ValueError, match="compression") as caught:
            optimizer.load_compression_state_dict(bad if hvd.rank() == 1 else state)
        assert ("rank 1 cannot" in str(caught.value)) == (hvd.rank() != 1)
        assert optimizer.compression_state_dict() == before
    train(model, optimizer, range(4, 6))


def states_of_different_steps_are_dropped() -> None:
    model = make_model()
    optimizer = compressed(model)
    train(model, optimizer, range(2))
    early = optimizer.compression_state_dict()
    train(model, optimizer, range(2, 4))
    late = optimizer.compression_state_dict()
    lines = collect_log()
    optimizer.load_compression_state_dict(early if hvd.rank() == 3 else late)
    assert len(lines) == 4
    assert all("not all ranks have it of the same step" in line for line in lines)
    assert optimizer.compression_state_dict() == late
    train(model, optimizer, range(4, 6))


def a_save_that_fails_leaves_the_file_before_and_nothing_else() -> None:
    model = make_model()
    train(model, compressed(model), range(2))
    folder = own_folder()
    file = hvd.save_compression_state(folder)
    content = file.read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            hvd.save_compression_state(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    hvd.barrier()
    assert file.read_bytes() == content
    assert not list(folder.glob("*.partial"))


def two_optimizers_that_share_names_are_warned_of() -> None:
    gc.collect()  # The optimizers of other checks.
    first, second = make_model(), make_model()
    optimizer = compressed(first)
    lines = collect_log()
    other = compressed(second)
    assert len(lines) == 1
    assert "two DistributedOptimizers call different parameters '0.weight' (and 3 more)" in lines[0]
    del optimizer, other
    gc.collect()
    lines = collect_log()
    again = compressed(first)  # The same parameters.
    named = [(f"second.{name}", p) for name, p in second.named_parameters()]
    renamed = hvd.DistributedOptimizer(sgd(second), named, compression=TOPK)
    assert lines == []
    assert again is not renamed


test_state = each_on(4, checks_of(__name__), TWO_BY_TWO)


# -- Process sets ---------------------------------------------------------------------------------


def begin(sets: list[list[int]]) -> tuple[nn.Module, Any]:
    """A model that the ranks of one host each train together with one of the other host."""
    process_sets = [hvd.ProcessSet(ranks) for ranks in sets]
    hvd.init(process_sets=process_sets)
    mine = next(process_set for process_set in process_sets if process_set.included())
    model = make_model()
    return model, hvd.DistributedOptimizer(
        sgd(model), model.named_parameters(), compression=TOPK, process_set=mine
    )


def resume_in_sets(folder: str) -> None:
    model, optimizer = begin([[0, 2], [1, 3]])
    train(model, optimizer, range(4))
    assert optimizer.compression_state_dict()["tensors"]
    hvd.save_compression_state(folder)
    checkpoint = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    inner = copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, range(4, 8))
    expected = weights(model)
    hvd.barrier()
    hvd.shutdown()

    # The sets have other numbers now.
    model, optimizer = begin([[1, 3], [0, 2]])
    model.load_state_dict(checkpoint)
    optimizer.load_state_dict(inner)
    lines = collect_log()
    assert hvd.load_compression_state(folder) == 8
    assert lines == []
    train(model, optimizer, range(4, 8))
    assert torch.equal(weights(model), expected)
    hvd.barrier()
    hvd.shutdown()

    begin([[0, 1], [2, 3]])
    lines = collect_log()
    assert hvd.load_compression_state(folder) == 0
    assert all("no process set of the ranks" in line for line in lines)
    assert _world.current().save_compression() == {}


def test_state_of_process_sets_belongs_to_their_ranks(tmp_path: Path) -> None:
    env = {"LIGHT_TOPK_THRESHOLD": "0"}
    spawn_ranks(resume_in_sets, 4, str(tmp_path), env=env, hosts=[0, 0, 1, 1])
