"""What DistributedOptimizer and SyncBatchNorm refuse, and their signatures, on one rank alone."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import lightcc.torch as hvd


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))


def wrap(m: nn.Module, **options: Any) -> Any:
    return hvd.DistributedOptimizer(torch.optim.SGD(m.parameters(), lr=0.1), **options)


def test_signatures_are_horovods() -> None:
    optimizer = inspect.signature(hvd.DistributedOptimizer).parameters
    assert {name: p.default for name, p in optimizer.items()} == {
        "optimizer": inspect.Parameter.empty,
        "named_parameters": None,
        "compression": hvd.Compression.none,
        "backward_passes_per_step": 1,
        "op": hvd.Average,
        "gradient_predivide_factor": 1.0,
        "num_groups": 0,
        "groups": None,
        "sparse_as_dense": False,
        "process_set": hvd.global_process_set,
        "fusion_type": None,
        "auto_fusion_threshold": None,
        "piecewise_fusion_schedule": None,
        "scopewise_fusion_schedule": None,
    }
    norm = inspect.signature(hvd.SyncBatchNorm).parameters
    assert {name: p.default for name, p in norm.items()} == {
        "num_features": inspect.Parameter.empty,
        "eps": 1e-5,
        "momentum": 0.1,
        "affine": True,
        "track_running_stats": True,
    }
    horovods = [p for name, p in optimizer.items() if "fusion" not in name]
    assert all(
        p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in [*horovods, *norm.values()]
    )


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"compression": "topk"}, TypeError, r"^compression is 'topk'; allowed are Compression\.none"),
    ({"op": "avg"}, ValueError, "^op is 'avg'; allowed are Average, Sum, Adasum"),
    ({"process_set": 0}, TypeError, "^process_set is 0: expected a ProcessSet"),
    (
        {"process_set": hvd.ProcessSet([0])},
        ValueError,
        "does not exist, or has not been registered",
    ),
    ({"backward_passes_per_step": 0}, ValueError, "backward_passes_per_step must be > 0"),
    ({"backward_passes_per_step": -1}, ValueError, "backward_passes_per_step must be > 0"),
    (
        {"gradient_predivide_factor": 2.0, "op": hvd.Sum},
        ValueError,
        "gradient_predivide_factor not supported with op",
    ),
    ({"gradient_predivide_factor": 0.0}, ValueError, "expected a number > 0"),
    *(
        ({"groups": wrong}, ValueError, "groups should be a non-negative integer or a list")
        for wrong in (-1, 1.5, "two", True)
    ),
    ({"groups": [["name"]]}, ValueError, r"groups must consist of torch\.Tensor"),
    ({"groups": [torch.ones(1)]}, ValueError, r"groups must consist of torch\.Tensor"),
]


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(("options", "error", "text"), REFUSED)
def test_an_argument_that_is_not_allowed_is_refused_at_once(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        wrap(model(), **options)


def test_lightcc_must_be_initialized() -> None:
    with pytest.raises(ValueError, match=r"has not been initialized; use hvd.init\(\)"):
        wrap(model())


@pytest.mark.usefixtures("world")
def test_names_are_pairs_differ_and_are_complete() -> None:
    m = model()
    with pytest.raises(ValueError, match=r"sequence of tuples \(name, parameter\)"):
        wrap(m, named_parameters=m.parameters())
    with pytest.raises(ValueError, match=r"must be unique\. Found duplicates: same$"):
        wrap(m, named_parameters=[("same", p) for p in m.parameters()])
    unnamed = id(next(m.parameters()))
    with pytest.raises(ValueError, match=f"were not named. Python object ids: {unnamed}$"):
        wrap(m, named_parameters=list(m.named_parameters())[1:])
    # There may be more of them than parameters, and several of one.
    part = torch.optim.SGD(m[0].parameters(), lr=0.1)
    hvd.DistributedOptimizer(part, m.named_parameters())
    p = nn.Parameter(torch.ones(1))
    hvd.DistributedOptimizer(torch.optim.SGD([p], lr=0.1), [("b", p), ("a", p)])


@pytest.mark.usefixtures("world")
def test_a_parameter_belongs_to_the_optimizer_made_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")  # Ranks may come, so gradients travel.
    m = model()
    first = wrap(m)
    m(torch.ones(1, 2)).sum().backward()
    other = hvd.DistributedOptimizer(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1))
    refused = "parameter '.*0.0' is on its way in another DistributedOptimizer"
    with pytest.raises(ValueError, match=refused):
        wrap(m)
    with pytest.raises(ValueError, match=refused):
        other.add_param_group({"params": [next(m.parameters())]})
    assert len(other.param_groups) == 1
    first.step()
    second = wrap(m)
    m(torch.ones(1, 2)).sum().backward()
    before = [p.clone() for p in m.parameters()]
    with pytest.raises(RuntimeError, match=r"made later for parameter '.*0\.0'"):
        first.step()
    assert all(map(torch.equal, before, m.parameters()))
    del first
    second.step()
    assert not all(map(torch.equal, before, m.parameters()))


@pytest.mark.usefixtures("world")
def test_what_is_no_argument_of_its_own_is_refused_too() -> None:
    m = model()
    first, second, *_ = m.parameters()
    with pytest.raises(ValueError, match="can only appear once in groups"):
        wrap(m, groups=[[first], [second, first]])
    optimizer = wrap(m)
    with pytest.raises(ValueError, match="backward_passes_per_step must be > 0"):
        optimizer.set_backward_passes_per_step(0)
    with pytest.raises(ValueError, match="is a DistributedOptimizer already"):
        hvd.DistributedOptimizer(optimizer)
    with pytest.raises(TypeError, match=r"optimizer is a Linear: expected a torch\.optim"):
        hvd.DistributedOptimizer(nn.Linear(1, 1))  # type: ignore[call-overload]
    known = hvd.DistributedOptimizer(torch.optim.SGD(model().parameters(), lr=0.1))
    known.synchronize()
    with pytest.raises(AttributeError, match="synchronise"):
        known.synchronise()  # type: ignore[attr-defined]  # mypy sees it as well.


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("elastic", [False, True])
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum, hvd.Adasum])
def test_one_rank_steps_as_without(
    op: hvd.ReduceOp, elastic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if elastic:  # Ranks may come later, so gradients travel already.
        monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    p, q = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=0.1), [("p", p)], op=op)
    plain = torch.optim.SGD([q], lr=0.1)
    before = hvd.stats()["operations"]
    for _ in range(2):
        for tensor, inner in ((p, optimizer), (q, plain)):
            inner.zero_grad()
            tensor.pow(3).sum().backward()
            inner.step()
    assert torch.equal(p, q)
    assert hvd.stats()["operations"] - before == (2 if elastic else 0)


@pytest.mark.usefixtures("world")
def test_step_warns_after_synchronize_on_one_rank_too() -> None:
    optimizer = wrap(model())
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="without optimizer.skip_synchronize"):
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
