"""What programs of Horovod's users rely on beyond its documentation; its own suite told it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lightcc.torch as hvd
from lightcc.testing import spawn_ranks


def names_of_parameters() -> list[str]:
    hvd.init()
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    groups = [{"params": list(layer.parameters())} for layer in model]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1))
    unnamed = optimizer._parameter_names
    assert set(unnamed) == set(model.parameters())
    del optimizer
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model[0].parameters(), lr=0.1), list(model.named_parameters())
    )
    weights = dict(model.named_parameters())
    assert optimizer._parameter_names[weights["0.weight"]] == "0.weight"
    optimizer.add_param_group({"params": [weights["1.weight"]]})
    assert optimizer._parameter_names[weights["1.weight"]] == "1.weight"
    return sorted(unnamed.values())


def test_an_optimizer_tells_the_names_of_its_parameters_the_same_on_all_ranks() -> None:
    mine, theirs = spawn_ranks(names_of_parameters, 2)
    assert mine == theirs
    assert len(set(mine)) == 4


def step_with_integers() -> tuple[list[int], float]:
    hvd.init()
    chosen = nn.Parameter(torch.tensor([hvd.rank()]), requires_grad=False)
    weight = nn.Parameter(torch.ones(2))
    inner = torch.optim.SGD([chosen, weight], lr=1.0, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(inner, [("chosen", chosen), ("weight", weight)])
    hvd.broadcast_parameters({"chosen": chosen, "weight": weight}, root_rank=1)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert chosen.grad is None
    assert weight.grad is not None
    optimizer.zero_grad()
    weight[chosen].sum().backward()
    optimizer.step()
    return chosen.tolist(), float(weight[1].detach())


def test_an_optimizer_may_hold_parameters_of_integers() -> None:
    assert spawn_ranks(step_with_integers, 2) == [([1], 0.0)] * 2


def static_sets() -> dict[int, list[int]]:
    doubled = [hvd.ProcessSet([0]), hvd.ProcessSet(range(1, 3)), hvd.ProcessSet([0])]
    with pytest.raises(ValueError, match="process set"):
        hvd.init(process_sets=doubled)
    hvd.init(process_sets=[hvd.ProcessSet([0]), hvd.ProcessSet([2, 1])])
    ids_and_ranks: dict[int, list[int]] = hvd.mpi_ops._basics._get_process_set_ids_and_ranks()
    return ids_and_ranks


def test_equal_static_sets_are_refused_and_the_next_try_succeeds() -> None:
    expected = {0: [0, 1, 2], 1: [0], 2: [1, 2]}
    assert spawn_ranks(static_sets, 3) == [expected] * 3
