"""Every collective of torch.distributed, beside gloo on the same ranks, and by arithmetic."""

from __future__ import annotations

import itertools
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from groups import start

import lightcc.torch as hvd
from lightcc.exceptions import RankMismatchError
from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Some names of torch that its users call, too, have no types.
c10d: Any = dist.distributed_c10d
premul_sum: Any = torch._C._distributed_c10d._make_nccl_premul_sum

pytestmark = [pytest.mark.multiproc, pytest.mark.filterwarnings("ignore::FutureWarning")]

NUMBERS = [
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]
ELEMENTS = [*NUMBERS, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn]
#: Contiguous, empty, of one element, without dimensions, transposed, with gaps.
LAYOUTS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda t: t[:12].view(3, 4),
    lambda t: t[:0].view(0, 4),
    lambda t: t[:1],
    lambda t: t[0],
    lambda t: t[:12].view(3, 4).t(),
    lambda t: t[:24:2],
]


#: All layouts of one type, and all types in one layout: each is copied by what knows the other.
MOVED = [*((torch.float32, layout) for layout in LAYOUTS), *((it, LAYOUTS[4]) for it in ELEMENTS)]


def values(dtype: torch.dtype, rank: int) -> torch.Tensor:
    """Returns 24 small values, which differ among ranks."""
    ramp = (torch.arange(24) * (rank + 1) + rank) % 5
    return ramp.to(dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bool((a.float() == b.float()).all())


def run(function: Callable[..., Any], tmp_path: Path, *args: Any, ranks: int = 3) -> list[Any]:
    return spawn_ranks(function, ranks, os.fspath(tmp_path / "store"), *args)


def all_reduces_are_as_by_gloo(store: str) -> None:
    rank, _ = start(store)
    gloo = dist.new_group(backend="gloo")
    ops = [dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT]
    cases = [(dtype, layout) for dtype, layout in MOVED if dtype in NUMBERS]
    for (dtype, layout), op in itertools.product(cases, ops):
        ours, theirs = (layout(values(dtype, rank)) for _ in range(2))
        dist.all_reduce(ours, op=op)
        row = theirs.contiguous()
        dist.all_reduce(row, op=op, group=gloo)
        assert same(ours, row), (dtype, ours, row, op)
    for dtype in (torch.uint8, torch.int32, torch.int64):
        for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
            ours, theirs = values(dtype, rank), values(dtype, rank)
            dist.all_reduce(ours, op=op)
            dist.all_reduce(theirs, op=op, group=gloo)
            assert same(ours, theirs)


def test_all_reduce_of_all_numbers_and_layouts(tmp_path: Path) -> None:
    run(all_reduces_are_as_by_gloo, tmp_path)


def profiled_names(store: str) -> set[str]:
    start(store)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.ones(3))
        dist.broadcast(torch.ones(3), 0, async_op=True).wait()
    dist.destroy_process_group()
    return {event.name for event in profile.events()}


def test_a_profiler_shows_collectives_and_what_is_waited_for(tmp_path: Path) -> None:
    for names in run(profiled_names, tmp_path, ranks=2):
        assert {"lightcc::all_reduce", "lightcc::broadcast"} <= names
        assert any(name.startswith("lightcc::wait broadcast in the default") for name in names)


def layouts_of_ranks_may_differ(store: str) -> None:
    rank, _ = start(store)
    for root in (0, 1):
        x = torch.arange(12.0).reshape(3, 4)
        x = x.t() if rank else x.t().contiguous()
        dist.all_reduce(x)
        assert torch.equal(x, 2 * torch.arange(12.0).reshape(3, 4).t())
        turned = torch.arange(12.0).reshape(3, 4).t()
        dist.reduce(turned, root)  # Others than the root bring a contiguous copy.
        assert torch.equal(turned, (x if rank == root else x / 2))


def test_a_tensor_may_lie_differently_on_each_rank(tmp_path: Path) -> None:
    run(layouts_of_ranks_may_differ, tmp_path, ranks=2)


def other_reductions(store: str) -> None:
    rank, size = start(store)
    total = sum(range(1, size + 1))
    tensor = torch.full((3,), rank + 1.0)
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    assert tensor.tolist() == [total / size] * 3
    tensor = torch.full((3,), rank + 1.0)
    dist.all_reduce(tensor, op=premul_sum(0.5))
    assert tensor.tolist() == [total / 2] * 3
    flags = torch.tensor([rank == 0, True, False])
    dist.all_reduce(flags)
    assert flags.tolist() == [True, True, False]
    flags = torch.tensor([rank == 0, True, False])
    dist.all_reduce(flags, op=dist.ReduceOp.MIN)
    assert flags.tolist() == [False, True, False]
    number = torch.full((2, 2), complex(rank, 1)).t()
    dist.all_reduce(number)
    assert number.flatten().tolist() == [complex(total - size, size)] * 4
    out = torch.zeros(2, dtype=torch.complex64)
    dist.reduce_scatter_tensor(out, torch.full((2 * size,), complex(1, rank)))
    assert out.tolist() == [complex(size, total - size)] * 2
    for tensor, op in (
        (torch.ones(2), dist.ReduceOp.BAND),
        (torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG),
        (torch.ones(2, dtype=torch.int32), premul_sum(0.5)),
        (torch.ones(2, dtype=torch.complex64), dist.ReduceOp.MAX),
    ):
        with pytest.raises(ValueError, match=r"possible|complex"):
            dist.all_reduce(tensor, op=op)
    entries = torch.tensor([[rank, 0]])
    sparse = torch.sparse_coo_tensor(entries, torch.ones(2, 2), (size, 2))
    dist.all_reduce(sparse)
    assert sparse.to_dense()[0].tolist() == [size + 1.0] * 2
    assert sparse.to_dense()[1:].tolist() == [[1.0, 1.0]] * (size - 1)


def test_means_factors_bools_complex_and_sparse(tmp_path: Path) -> None:
    run(other_reductions, tmp_path)


def moves_keep_every_byte(store: str) -> None:
    rank, size = start(store)
    for dtype, layout in MOVED:
        mine = layout(values(dtype, rank))
        every = [layout(values(dtype, peer)) for peer in range(size)]
        blank = [torch.zeros_like(mine) for _ in range(size)]
        dist.all_gather(blank, mine)
        assert all(map(same, (t.contiguous() for t in blank), every)), (dtype, blank)
        shared = mine.clone()
        dist.broadcast(shared, src=size - 1)
        assert same(shared, every[-1])
        into = torch.zeros(size * mine.numel(), dtype=dtype)
        dist.all_gather_into_tensor(into, mine)
        assert same(into, torch.cat([t.reshape(-1) for t in every]))
        at_root = [torch.zeros_like(mine) for _ in range(size)] if rank == 1 else None
        dist.gather(mine, at_root, dst=1)
        assert rank != 1 or all(map(same, at_root or [], every))
        part = torch.zeros_like(mine)
        dist.scatter(part, every if rank == 0 else None, src=0)
        assert same(part, mine)
        swapped = [torch.zeros_like(mine) for _ in range(size)]
        dist.all_to_all(swapped, [mine for _ in range(size)])
        assert all(map(same, swapped, every))


def test_moves_of_all_elements_and_layouts(tmp_path: Path) -> None:
    run(moves_keep_every_byte, tmp_path)


def reduce_scatters(store: str) -> None:
    rank, size = start(store)
    for op, expected in (
        (dist.ReduceOp.SUM, lambda x: x * size + sum(range(size))),
        (dist.ReduceOp.AVG, lambda x: x + (size - 1) / 2),
        (dist.ReduceOp.MAX, lambda x: x + size - 1),
        (dist.ReduceOp.MIN, lambda x: x),
    ):
        whole = torch.arange(4.0 * size)
        out = torch.zeros(2, 2).t()
        dist.reduce_scatter_tensor(out, whole + rank, op=op)
        assert same(out.contiguous().view(-1), expected(whole[4 * rank : 4 * rank + 4]))  # type: ignore[no-untyped-call]
        out = torch.zeros(4)
        dist.reduce_scatter(out, list((whole + rank).chunk(size)), op=op)
        assert same(out, expected(whole[4 * rank : 4 * rank + 4]))  # type: ignore[no-untyped-call]
    uneven = [torch.full((i + 1,), float(i)) for i in range(size)]
    out = torch.zeros(rank + 1)
    dist.reduce_scatter(out, uneven)
    assert out.tolist() == [rank * size] * (rank + 1)
    into = torch.arange(2.0 * size)
    dist.reduce_scatter_tensor(into[2 * rank : 2 * rank + 2], into)
    assert into[2 * rank].item() == 2 * rank * size
    total = torch.full((2,), rank + 1)
    dist.reduce(total, dst=1)
    assert total.tolist() == [sum(range(1, size + 1)) if rank == 1 else rank + 1] * 2


def test_reduce_scatter_and_reduce(tmp_path: Path) -> None:
    run(reduce_scatters, tmp_path)


def splits(store: str) -> None:
    rank, size = start(store)
    # Rank r sends i + 1 rows to rank i.
    sent = torch.cat([torch.full((i + 1, 2), 10.0 * rank + i) for i in range(size)])
    out = torch.zeros(size * (rank + 1), 2)
    dist.all_to_all_single(out, sent, [rank + 1] * size, [i + 1 for i in range(size)])
    assert out[:, 0].tolist() == [10.0 * i + rank for i in range(size) for _ in range(rank + 1)]
    uneven = [torch.zeros(i + 1) for i in range(size)]
    dist.all_to_all(uneven, [torch.full((rank + 1,), float(i)) for i in range(size)])
    assert [t.tolist() for t in uneven] == [[float(rank)] * (i + 1) for i in range(size)]
    lists = [torch.zeros(i + 1) for i in range(size)]
    dist.all_gather(lists, torch.ones(rank + 1))
    assert [t.tolist() for t in lists] == [[1.0] * (i + 1) for i in range(size)]
    for wrong, text in (
        (lambda: dist.all_to_all_single(out, sent, [1], [1]), "split sizes"),
        (lambda: dist.all_gather_into_tensor(torch.zeros(5), torch.ones(2)), "has 5 elements"),
        (lambda: dist.reduce_scatter_tensor(torch.zeros(5), torch.ones(2)), "has 2 elements"),
        (lambda: dist.all_gather_into_tensor(out, sent.int()), "dtype"),
    ):
        with pytest.raises(ValueError, match=text):
            wrong()  # type: ignore[no-untyped-call]


def test_splits_and_what_is_refused(tmp_path: Path) -> None:
    run(splits, tmp_path)


def messages(store: str) -> None:
    rank, size = start(store)
    right, left = (rank + 1) % size, (rank - 1) % size
    out = torch.zeros(2, 3).t()
    ops = [
        dist.P2POp(dist.isend, torch.full((3, 2), float(rank)), right),
        dist.P2POp(dist.irecv, out, left),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert out.flatten().tolist() == [float(left)] * 6
    # Two tags, received in the other order.
    if rank == 0:
        dist.isend(torch.tensor([1.0]), 1, tag=1)
        second: Any = dist.isend(torch.tensor([2.0]), 1, tag=2)
        second.wait()
        dist.send(torch.tensor([3.0]), 1, tag=1)
    elif rank == 1:
        got = []
        for tag in (2, 1, 1):
            tensor = torch.zeros(1)
            assert dist.recv(tensor, 0, tag=tag) == 0
            got.append(tensor.item())
        assert got == [2.0, 1.0, 3.0]
    objects = [{"from": 0}, "b"] if rank == 0 else [None, None]
    dist.broadcast_object_list(objects, src=0)
    assert objects == [{"from": 0}, "b"]
    every: list[Any] = [None] * size
    dist.all_gather_object(every, ("rank", rank))
    assert every == [("rank", i) for i in range(size)]
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [f"to {i}" for i in range(size)] if rank == 0 else None, src=0)
    assert mine == [f"to {rank}"]
    at_root: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object(rank, at_root, dst=0)
    assert rank != 0 or at_root == list(range(size))
    if rank == 0:
        dist.send_object_list(["x", 1], dst=1)
    elif rank == 1:
        pair: list[Any] = [None, None]
        dist.recv_object_list(pair, src=0)
        assert pair == ["x", 1]


def test_messages_tags_and_objects(tmp_path: Path) -> None:
    run(messages, tmp_path)


def other_calls_at_one_place(store: str) -> None:
    rank, size = start(store)
    world: Any = dist.group.WORLD
    row, rows = torch.ones(4), torch.ones(4 * size)
    calls: list[Callable[[], Any]] = [
        lambda: dist.all_reduce(row),
        lambda: dist.broadcast(row, 0),
        lambda: dist.all_gather_into_tensor(rows, row),
        lambda: dist.all_to_all_single(torch.empty(4 * size), rows),
        lambda: dist.reduce_scatter_tensor(row, rows),
        dist.barrier,
        lambda: dist.all_reduce(torch.eye(4).to_sparse()),
        lambda: world.allreduce_coalesced([torch.ones(4) for _ in range(3)]).wait(),
        lambda: world.allreduce_coalesced([torch.ones(4) for _ in range(2)]).wait(),
    ]
    for one, other in itertools.combinations(calls, 2):
        with pytest.raises(RankMismatchError, match=r"Mismatched .* 'c10d.noname"):
            (one if rank == 1 else other)()
    call: Any = hvd.allreduce if rank else partial(hvd.broadcast, root_rank=0)
    with pytest.raises(RankMismatchError, match=r"BROADCAST.*ALLREDUCE|ALLREDUCE.*BROADCAST"):
        call(row)
    ones = torch.ones(1)
    dist.all_reduce(ones)
    assert ones.item() == hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size


def test_other_collectives_at_one_place_are_a_mismatch(tmp_path: Path) -> None:
    run(other_calls_at_one_place, tmp_path)


def works(store: str) -> None:
    rank, size = start(store)
    tensor = torch.full((4,), rank + 1.0)
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait()
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert work.result()[0] is tensor
    # A strided output is filled however the end is learnt of.
    outs = [torch.zeros(2 * size)[::2] for _ in range(2)]
    first = dist.all_gather_into_tensor(outs[0], torch.ones(1), async_op=True)
    second = dist.all_gather_into_tensor(outs[1], torch.ones(1), async_op=True)
    seen = second.get_future().then(lambda future: future.value()[0].sum().item())
    while not first.is_completed():
        pass
    assert seen.wait() == size
    assert [t.tolist() for t in outs] == [[1.0] * size] * 2
    second.wait()
    # Nobody waits for this one, which is dropped at its end.
    dist.all_reduce(torch.ones(1), async_op=True)
    tensors = [torch.ones(3), torch.full((2,), float(rank))]
    dist.all_reduce_coalesced(tensors)
    assert [t[0].item() for t in tensors] == [size, sum(range(size))]
    with c10d._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert tensors[0][0].item() == size * size
    by_rank = [[torch.zeros(1), torch.zeros(2, 2)] for _ in range(size)]
    dist.all_gather_coalesced(by_rank, [torch.full((1,), 1.0 * rank), torch.full((2, 2), 2.0)])
    assert [[t[0].sum().item() for t in row] for row in by_rank] == [[i, 4.0] for i in range(size)]
    outputs = [torch.zeros(size), torch.zeros(2 * size)]
    with c10d._coalescing_manager():
        for output in outputs:
            dist.all_gather_into_tensor(output, torch.full((output.numel() // size,), 1.0 + rank))
    assert outputs[1][2 * rank].item() == rank + 1
    parts = [torch.zeros(1), torch.zeros(2)]
    with c10d._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        for part in parts:
            dist.reduce_scatter_tensor(part, torch.ones(part.numel() * size), async_op=True)
    manager.wait()
    assert [part[0].item() for part in parts] == [size, size]
    dist.barrier()
    dist.barrier(async_op=True).wait()


def test_works_futures_and_coalescing(tmp_path: Path) -> None:
    run(works, tmp_path)
