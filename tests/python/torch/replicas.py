"""Small models on all ranks, beside the same model trained by one process on the joined batch.

Models are float64, so that what differs only in the order of additions agrees to 1e-9; replicas are
compared bit for bit. Importing torch takes seconds, so one set of ranks runs many checks:
`outcomes` calls them one after another and says what became of each.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import sys
import traceback
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import lightcc.torch as hvd
from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

INPUTS, OUTPUTS, ROWS = 6, 3, 4
TOLERANCE = 1e-9


def checks_of(module: str) -> list[Callable[[], None]]:
    """Returns the functions of a module up to here that take and return nothing."""
    return [
        function
        for function in vars(sys.modules[module]).values()
        if inspect.isfunction(function)
        and function.__module__ == module
        and function.__annotations__ == {"return": "None"}
        and not function.__name__.startswith("test_")
    ]


def each_on(
    ranks: int, checks: Sequence[Callable[[], None]], env: Mapping[str, str] | None = None
) -> Callable[[str], None]:
    """Returns a test of each of these functions, all on one set of ranks."""
    ask = functools.cache(lambda: outcomes(checks, ranks, env))

    @pytest.mark.parametrize("claim", [check.__name__ for check in checks])
    def test(claim: str) -> None:
        for rank, problem in enumerate(ask()[claim]):
            assert not problem, f"rank {rank}: {problem}"

    return test


def outcomes(
    checks: Sequence[Callable[[], None]], ranks: int, env: Mapping[str, str] | None = None
) -> dict[str, list[str]]:
    """Runs module-level functions on `ranks` ranks; returns what went wrong, by name and rank."""
    names = [(check.__module__, check.__name__) for check in checks]
    results = spawn_ranks(_run_in_turn, ranks, names, env=env, timeout_s=110)
    return {
        name: [result.get(name, "did not run: an earlier check failed") for result in results]
        for _, name in names
    }


def _run_in_turn(names: Sequence[tuple[str, str]]) -> dict[str, str]:
    import importlib

    torch.set_num_threads(1)
    hvd.init(process_sets="dynamic")
    done: dict[str, str] = {}
    for module, name in names:
        done[name] = _problem(getattr(importlib.import_module(module), name))
        if done[name]:
            break
    hvd.shutdown()
    return done


def _problem(check: Callable[[], None]) -> str:
    try:
        check()
        hvd.barrier()
    except Exception:  # noqa: BLE001  the test that asks for this check fails with the text
        return traceback.format_exc()
    return ""


def make_model(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Returns the same model on every call and rank."""
    generator = torch.Generator().manual_seed(5)
    model = nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, OUTPUTS)).to(dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) / 2)
    return model


def batch(step: int, rank: int, dtype: torch.dtype = torch.float64) -> tuple[Any, Any]:
    """Returns the inputs and targets of one rank in one step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(ROWS, INPUTS, generator=generator, dtype=torch.float64)
    y = torch.randn(ROWS, OUTPUTS, generator=generator, dtype=torch.float64)
    return x.to(dtype), y.to(dtype)


def joined_batch(step: int, ranks: Iterable[int]) -> tuple[Any, Any]:
    """Returns the batches of several ranks as one."""
    inputs, targets = zip(*(batch(step, rank) for rank in ranks), strict=True)
    return torch.cat(inputs), torch.cat(targets)


def mean_loss(model: nn.Module, data: tuple[Any, Any]) -> torch.Tensor:
    return nn.functional.mse_loss(model(data[0]), data[1])


def train_together(
    make_optimizer: Callable[[list[Any]], torch.optim.Optimizer],
    *,
    model: nn.Module | None = None,
    steps: int = 3,
    loss: Callable[[nn.Module, Any], torch.Tensor] = mean_loss,
    **options: Any,
) -> nn.Module:
    """Trains `model` with a DistributedOptimizer, each rank with its own batches."""
    model = model or make_model()
    optimizer = hvd.DistributedOptimizer(
        make_optimizer(list(model.parameters())), model.named_parameters(), **options
    )
    for step in range(steps):
        optimizer.zero_grad()
        loss(model, batch(step, hvd.rank())).backward()
        optimizer.step()
    return model


def train_alone(
    make_optimizer: Callable[[list[Any]], torch.optim.Optimizer],
    *,
    model: nn.Module | None = None,
    steps: int = 3,
    ranks: Iterable[int] | None = None,
    loss: Callable[[nn.Module, Any], torch.Tensor] = mean_loss,
) -> nn.Module:
    """Trains `model` in this process with the joined batches of `ranks` (`None`: all)."""
    model = model or make_model()
    optimizer = make_optimizer(list(model.parameters()))
    ranks = list(range(hvd.size()) if ranks is None else ranks)
    for step in range(steps):
        optimizer.zero_grad()
        loss(model, joined_batch(step, ranks)).backward()
        optimizer.step()
    return model


def check_identical(model: nn.Module) -> None:
    """Raises AssertionError unless all ranks hold the same bits."""
    state = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
    digests = hvd.allgather_object(hashlib.sha256(state).hexdigest())
    assert len(set(digests)) == 1, digests


def check_equal(actual: nn.Module, expected: nn.Module, tolerance: float = TOLERANCE) -> None:
    """Raises AssertionError unless two models have equal parameters, up to rounding."""
    for (name, p), q in zip(actual.named_parameters(), expected.parameters(), strict=True):
        close = torch.allclose(p, q, rtol=tolerance, atol=tolerance)
        assert close, (name, p, q)


def check_moved(model: nn.Module) -> None:
    """Raises AssertionError if every parameter of `model` is as `make_model()` made it."""
    start = make_model()
    assert any(
        not torch.equal(p, q)
        for p, q in zip(model.parameters(), copy.deepcopy(start).parameters(), strict=True)
    )


def sgd(parameters: list[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
