"""torch.compile takes the operations without a graph break, with the gradients of eager ones."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import lightcc.torch as hvd
from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.multiproc

# What torch 2.4 asks for where sizes are known only when an operation has run.
torch._dynamo.config.capture_dynamic_output_shape_ops = True


def rows_of(rank: int, rows: int, factor: float = 1.0) -> torch.Tensor:
    values = torch.arange(float(rows * 2)).reshape(rows, 2)
    return (values * factor + rank).requires_grad_()


def all_operations(
    members: hvd.ProcessSet,
) -> list[tuple[str, Callable[..., Any], list[torch.Tensor]]]:
    """Returns what the ranks of a set compile, with inputs whose rows may differ."""
    rank, size = members.rank() or 0, members.size() or 1
    equal = [rows_of(rank, 7), rows_of(rank, 4, 0.5)]
    ragged = [rows_of(rank, rank + 1), rows_of(rank, size - rank)]
    splits = torch.tensor([rank, 1, *[0] * (size - 2)], dtype=torch.int32)
    ps: Any = {"process_set": members}
    return [
        ("allreduce", lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, **ps), equal[:1]),
        ("half", lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16, **ps), equal[:1]),
        ("grouped_allreduce", lambda *x: hvd.grouped_allreduce(list(x), **ps), equal),
        ("broadcast", lambda x: hvd.broadcast(x, 2, **ps), equal[:1]),
        ("allgather", lambda x: hvd.allgather(x, **ps), ragged[:1]),
        ("grouped_allgather", lambda *x: hvd.grouped_allgather(list(x), **ps), ragged),
        ("alltoall", lambda x: hvd.alltoall(x, **ps), [rows_of(rank, size * (rank + 1))]),
        ("splits", lambda x: hvd.alltoall(x, splits, **ps)[0], [rows_of(rank, 5)]),
        (
            "list of splits",
            lambda x: hvd.alltoall(x, [1, 0, 2, 0][:size], **ps)[0],
            [rows_of(rank, 4)],
        ),
        ("reducescatter", lambda x: hvd.reducescatter(x, op=hvd.Sum, **ps), equal[:1]),
        ("grouped_reducescatter", lambda *x: hvd.grouped_reducescatter(list(x), **ps), equal),
    ]


def run(function: Callable[..., Any], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the outputs, and the gradients of a weighted sum of them."""
    outputs = function(*inputs)
    total = sum((output * (i + 2)).square().sum() for i, output in enumerate(outputs))
    gradients = torch.autograd.grad(total, inputs)
    return [*(output.detach() for output in outputs), *gradients]


def together(parts: list[tuple[Callable[..., Any], int]]) -> Callable[..., list[torch.Tensor]]:
    """Returns one function of all inputs, each part of which takes so many of them."""

    def function(*inputs: torch.Tensor) -> list[torch.Tensor]:
        outputs: list[torch.Tensor] = []
        start = 0
        for part, count in parts:
            output = part(*inputs[start : start + count])
            outputs += [output] if isinstance(output, torch.Tensor) else output
            start += count
        return outputs

    return function


def compiled_as_eager() -> None:
    pair = hvd.ProcessSet([0, 2])
    hvd.init(process_sets=[pair])
    for members, names in ((pair, None), (hvd.global_process_set, {"allgather", "splits"})):
        if not members.included():
            continue
        chosen = [one for one in all_operations(members) if not names or one[0] in names]
        inputs = [x for _, _, mine in chosen for x in mine]
        one_graph = together([(function, len(mine)) for _, function, mine in chosen])
        expected = run(one_graph, inputs)
        torch._dynamo.reset()
        compiled = torch.compile(one_graph, backend="aot_eager", fullgraph=True)
        for _ in range(2):
            torch.testing.assert_close(run(compiled, inputs), expected)
    hvd.barrier()
    hvd.shutdown()


def test_no_operation_becomes_part_of_a_cuda_graph() -> None:
    unsafe = getattr(torch.Tag, "cudagraph_unsafe", None)  # None: this torch has no such word.
    importlib.import_module("lightcc.torch._operators")  # Which the first compiler asks for.
    for name in ("allreduce", "grouped_allreduce", "broadcast", "allgather", "alltoall"):
        tags = getattr(torch.ops.lightcc, name).default.tags
        assert unsafe is None or unsafe in tags, name


def test_operations_and_gradients_are_the_eager_ones() -> None:
    spawn_ranks(compiled_as_eager, 3)


def one_is_compiled() -> None:
    hvd.init()

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first, _ = hvd.grouped_allreduce([x, y], name="pair", op=hvd.Sum)
        hvd.allreduce(y)  # Nobody uses it.
        same = hvd.allreduce(y) + hvd.allreduce(y)
        scale = hvd.size() * 10 + hvd.rank()
        return (first * first).sum() * scale + hvd.allgather(y, name="rows").sum() + same.sum()

    if hvd.rank() == 0:
        function = torch.compile(function, backend="aot_eager", fullgraph=True)
    x, y = torch.full((3,), hvd.rank() + 1.0), torch.ones(2)
    with torch.no_grad():
        assert function(x, y).item() == 27 * (20 + hvd.rank()) + 4 + 4
    hvd.shutdown()


def alone_afterwards() -> None:
    hvd.init()
    scatter = torch.compile(hvd.reducescatter, backend="aot_eager", fullgraph=True)
    assert scatter(torch.ones(5), op=hvd.Sum).tolist() == [2.0] * (3 - hvd.rank())
    hvd.shutdown()
    for name in [name for name in os.environ if name.startswith(("LIGHT", "HOROVOD"))]:
        del os.environ[name]
    hvd.init()
    assert scatter(torch.ones(5), op=hvd.Sum).tolist() == [1.0] * 5
    hvd.shutdown()


def errors_arrive() -> None:
    hvd.init()
    function = torch.compile(hvd.allreduce, backend="aot_eager")
    with pytest.raises(hvd.HorovodInternalError, match="shape"):
        function(torch.ones(2 + hvd.rank()), name="x")
    assert function(torch.ones(2), name="y").tolist() == [1.0, 1.0]
    hvd.shutdown()


def beside_others() -> None:
    one_is_compiled()
    errors_arrive()
    alone_afterwards()


def test_compiled_code_keeps_what_others_wait_for_passes_errors_and_follows_worlds() -> None:
    spawn_ranks(beside_others, 2)


def layers() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


def train(model: Any, compression: Any) -> torch.Tensor:
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(
        sgd, named_parameters=model.named_parameters(), compression=compression
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for step in range(4):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def compiled_models_train() -> None:
    hvd.init()
    for compression in (hvd.Compression.none, hvd.Compression.topk(0.25)):
        expected = train(layers(), compression)
        found = train(torch.compile(layers(), backend="aot_eager"), compression)
        torch.testing.assert_close(found, expected)
        one = hvd.allgather(found[None])
        assert torch.equal(one[0], one[1])
    hvd.shutdown()


@pytest.mark.slow  # One more compilation.
def test_compiled_models_train_under_the_optimizer() -> None:
    spawn_ranks(compiled_models_train, 2)
