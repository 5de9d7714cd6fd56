"""Gradients of every operation: which collective they are, and by what they are scaled."""

from __future__ import annotations

import pytest
import torch
from tensors import check_same, rows_of

import lightcc.torch as hvd
from lightcc.testing import spawn_ranks

pytestmark = pytest.mark.multiproc


def leaf(*shape: int) -> torch.Tensor:
    return torch.ones(shape, requires_grad=True)


def weight(rank: int, *shape: int) -> torch.Tensor:
    """The gradient that `rank` gives to its result: different everywhere."""
    return (torch.arange(float(torch.Size(shape).numel())) * 2 + 6 * (rank + 1)).reshape(shape)


def total_weight(ranks: list[int], *shape: int) -> torch.Tensor:
    return torch.stack([weight(rank, *shape) for rank in ranks]).sum(0)


def gradients() -> None:
    hvd.init(process_sets="dynamic")
    sets = [hvd.global_process_set]
    if hvd.size() > 2:
        sets.append(hvd.add_process_set([0, 2]))
    for process_set in sets:
        if process_set.included():
            assert process_set.ranks is not None
            of_reductions(process_set, process_set.ranks)
            of_reducescatters(process_set, process_set.ranks)
            of_gathers(process_set, process_set.ranks)
            of_broadcasts(process_set, process_set.ranks)
            of_alltoalls(process_set, process_set.ranks)
    what_is_recorded()


def of_reductions(process_set: hvd.ProcessSet, ranks: list[int]) -> None:
    total = total_weight(ranks, 4, 3)
    for op, expected in ((hvd.Sum, total), (hvd.Average, total * (1 / len(ranks)))):
        x = leaf(4, 3)
        hvd.allreduce(x, op=op, process_set=process_set).backward(weight(hvd.rank(), 4, 3))
        check_same(x.grad, expected, op)

        x, y = leaf(4, 3), leaf(2)
        first, _ = hvd.grouped_allreduce([x, y], op=op, process_set=process_set)
        first.backward(weight(hvd.rank(), 4, 3))
        check_same(x.grad, expected, op)
        check_same(y.grad, torch.zeros(2), "a member that has no effect")

    x = leaf(4, 3)
    scaled = hvd.allreduce(
        x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=8.0, process_set=process_set
    )
    scaled.backward(weight(hvd.rank(), 4, 3))
    check_same(x.grad, total * 4)

    x = leaf(4, 3)
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        # The gradient of a sum is expanded, so it is not contiguous.
        hvd.allreduce(x, compression=compression, process_set=process_set).sum().backward()
    check_same(x.grad, torch.full((4, 3), 2.0))


def of_reducescatters(process_set: hvd.ProcessSet, ranks: list[int]) -> None:
    size, index = len(ranks), process_set.rank()
    assert index is not None
    rows = rows_of(5, index, size)
    count = rows.stop - rows.start
    shares = [rows_of(5, i, size) for i in range(size)]
    gathered = torch.cat(
        [weight(rank, s.stop - s.start, 2) for rank, s in zip(ranks, shares, strict=True)]
    )
    for op, factor in ((hvd.Sum, size), (hvd.Average, 1)):
        x, y = leaf(5, 2), leaf(5, 2)
        hvd.reducescatter(
            x, op=op, process_set=process_set, prescale_factor=0.5, postscale_factor=8.0
        ).backward(weight(hvd.rank(), count, 2))
        check_same(x.grad, gathered * factor * 4, op)
        x = leaf(5, 2)
        outputs = hvd.grouped_reducescatter([x, y], op=op, process_set=process_set)
        torch.autograd.backward(outputs, [weight(hvd.rank(), count, 2)] * 2)
        check_same(x.grad, gathered * factor, op)
        check_same(y.grad, gathered * factor, op)


def of_gathers(process_set: hvd.ProcessSet, ranks: list[int]) -> None:
    size, index = len(ranks), process_set.rank()
    assert index is not None
    # The member of index i has i + 1 rows, so its rows start at 1 + ... + i.
    start, rows = index * (index + 1) // 2, index + 1
    total_rows = size * (size + 1) // 2
    average = total_weight(ranks, total_rows, 2) * (1 / size)
    expected = average.narrow(0, start, rows)
    x = leaf(rows, 2)
    hvd.allgather(x, process_set=process_set).backward(weight(hvd.rank(), total_rows, 2))
    check_same(x.grad, expected)

    x, y = leaf(rows, 2), leaf(1)
    outputs = hvd.grouped_allgather([x, y], process_set=process_set)
    torch.autograd.backward(outputs, [weight(hvd.rank(), total_rows, 2), weight(0, size)])
    check_same(x.grad, expected)
    check_same(y.grad, (weight(0, size) * size * (1 / size))[index : index + 1])


def of_broadcasts(process_set: hvd.ProcessSet, ranks: list[int]) -> None:
    root = ranks[-1]
    x = leaf(3)
    hvd.broadcast(x, root, process_set=process_set).backward(weight(hvd.rank(), 3))
    average = total_weight(ranks, 3) * (1 / len(ranks))
    check_same(x.grad, average if hvd.rank() == root else torch.zeros(3))


def of_alltoalls(process_set: hvd.ProcessSet, ranks: list[int]) -> None:
    size, index = len(ranks), process_set.rank()
    assert index is not None
    # One row to member 0, two to member 1, ...; the last row stays at home.
    splits = [i + 1 for i in range(size)]
    x = leaf(sum(splits) + 1, 2)
    output, received = hvd.alltoall(x, splits=splits, process_set=process_set)
    assert not received.requires_grad
    check_same(received, torch.full((size,), index + 1, dtype=torch.int32))
    # Whoever received a row gives it its own index as gradient.
    output.backward(torch.full_like(output, float(index)))
    owners = [float(i) for i in range(size) for _ in range(splits[i])] + [0.0]
    check_same(x.grad, torch.tensor(owners).unsqueeze(1).expand(-1, 2).contiguous())

    y = leaf(size)
    hvd.alltoall(y, process_set=process_set).backward(torch.full((size,), float(index)))
    check_same(y.grad, torch.arange(float(size)))


def what_is_recorded() -> None:
    x = leaf(3)
    with torch.no_grad():
        assert not hvd.allreduce(x).requires_grad
    assert not hvd.allreduce(x.detach()).requires_grad
    for handle in (hvd.allreduce_async(x), hvd.broadcast_async(x, 0), hvd.allgather_async(x)):
        assert not hvd.synchronize(handle).requires_grad
    assert hvd.allreduce(x).requires_grad

    # The gradient can be derived again.
    squared = hvd.allreduce(x * x, op=hvd.Average)
    (first,) = torch.autograd.grad(squared.sum(), x, create_graph=True)
    check_same(first.detach(), torch.full((3,), 2.0))
    (second,) = torch.autograd.grad(first.sum(), x)
    check_same(second, torch.full((3,), 2.0))


def test_gradients_are_the_collectives_that_horovod_says() -> None:
    spawn_ranks(gradients, 3, timeout_s=90)
