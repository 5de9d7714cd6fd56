"""Every operation on torch tensors between ranks, in every form, bit for bit.

Names, disagreements and joins are the engine's, whatever the tensors: parallel/test_agreement.py.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from tensors import (
    DTYPES,
    INTEGERS,
    NUMBERS,
    SHAPES,
    check_same,
    integers,
    pattern,
    reduced,
    reduction_limit,
    rows_of,
)

import lightcc
import lightcc.torch as hvd
from lightcc import _core
from lightcc.testing import spawn_ranks

pytestmark = pytest.mark.multiproc

#: All dtypes of one shape, and all shapes of one dtype: the C++ tests have every pair.
KINDS = [(dtype, (5, 7)) for dtype in DTYPES] + [(torch.float32, shape) for shape in SHAPES]


def operations() -> None:
    hvd.init()
    assert _core.use_torch_exchange(True) == hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    allreduces()
    groups()
    gathers_and_broadcasts()
    alltoalls()
    reducescatters()
    point_to_point()
    _core.use_torch_exchange(False)  # Every operation reads tensors by the same function.
    allreduces()
    hvd.barrier()  # Rank 2 has nothing to send, and must not leave while others do.


def allreduces() -> None:
    everyone = range(hvd.size())
    started = []
    for dtype, shape in KINDS:
        for op in (hvd.Min, hvd.Max, hvd.Product, hvd.Sum, hvd.Average):
            if dtype == torch.bool and op in (hvd.Sum, hvd.Average):
                continue
            what = (op, dtype, shape)
            x = pattern(dtype, shape, hvd.rank(), reduction_limit(op, dtype))
            y, before = x.clone(), x.clone()
            handles = hvd.allreduce_async(x, op=op), hvd.allreduce_async_(y, op=op)
            started.append((*handles, x, before, y, reduced(op, dtype, shape, everyone), what))
    for new, in_place, x, before, y, expected, what in started:
        check_same(hvd.synchronize(new), expected, what)
        assert hvd.synchronize(in_place) is y, what
        check_same(y, expected, what)
        assert torch.equal(x, before), what

    x = pattern(torch.float32, (5, 3), hvd.rank())
    expected = reduced(hvd.Average, torch.float32, (5, 3), everyone)
    check_same(hvd.allreduce(x), expected)
    check_same(lightcc.allreduce(x), expected, "without torch's frontend")
    check_same(hvd.allreduce(x, compression=hvd.Compression.fp16), expected.half().float())
    check_same(lightcc.allreduce(x, compression=lightcc.Compression.fp16), expected.half().float())
    check_same(hvd.allreduce(x, compression=hvd.Compression.bf16), expected.bfloat16().float())
    for dtype in INTEGERS:
        scaled = hvd.allreduce(
            pattern(dtype, (9,), hvd.rank()), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0
        )
        halves = sum(integers((9,), rank) // 2 for rank in everyone)
        check_same(scaled, (torch.as_tensor(halves) * 3).to(dtype), dtype)

    parameter = torch.nn.Parameter(pattern(torch.float32, (4,), hvd.rank()))
    assert hvd.allreduce_(parameter, op=hvd.Sum) is parameter
    check_same(parameter.detach(), reduced(hvd.Sum, torch.float32, (4,), everyone))
    assert parameter.grad_fn is None
    assert parameter.requires_grad


def groups() -> None:
    everyone = range(hvd.size())
    shapes = [(5,), (), (0,), (20_011,), (3, 3)]
    dtypes = [torch.float32, torch.int64, torch.float64, torch.bfloat16, torch.uint8]
    pairs = list(zip(dtypes, shapes, strict=True))
    mine = [pattern(dtype, shape, hvd.rank()) for dtype, shape in pairs]
    for compression in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
        results = hvd.grouped_allreduce(mine, op=hvd.Sum, compression=compression)
        for result, (dtype, shape) in zip(results, pairs, strict=True):
            check_same(result, reduced(hvd.Sum, dtype, shape, everyone), compression)
    copies = [x.clone() for x in mine]
    for result, copy, (dtype, shape) in zip(
        hvd.grouped_allreduce_(tuple(copies), name="group"), copies, pairs, strict=True
    ):
        assert result is copy
        check_same(copy, reduced(hvd.Average, dtype, shape, everyone))


def gathers_and_broadcasts() -> None:
    everyone = range(hvd.size())
    started = []
    for dtype, shape in itertools.product(DTYPES, [(4,), (0,), (3, 2), (2, 0, 3), (1001,)]):
        # Ranks have different numbers of rows.
        shapes = [(shape[0] + rank, *shape[1:]) for rank in everyone]
        gathered = torch.cat([pattern(dtype, shapes[rank], rank) for rank in everyone])
        x = pattern(dtype, shapes[hvd.rank()], hvd.rank())
        started.append((hvd.allgather_async(x), gathered, (dtype, shape)))
    for dtype, shape in KINDS:
        root = hvd.size() - 1
        x, expected = pattern(dtype, shape, hvd.rank()), pattern(dtype, shape, root)
        started.append((hvd.broadcast_async(x, root), expected, (dtype, shape)))
        started.append((hvd.broadcast_async_(x.clone(), root), expected, (dtype, shape)))
    for handle, expected, what in started:
        check_same(hvd.synchronize(handle), expected, what)
    rows = [torch.full((rank + 1, 2), rank) for rank in everyone]
    first, second = hvd.grouped_allgather([rows[hvd.rank()], torch.tensor([hvd.rank() > 0])])
    check_same(first, torch.cat(rows))
    check_same(second, torch.arange(hvd.size()) > 0)


def alltoalls() -> None:
    size, rank = hvd.size(), hvd.rank()
    # Each row says where it comes from and where it goes; the last row stays.
    rows = [(rank, other) for other in range(size) for _ in range(other + rank)] + [(-1, -1)]
    splits = [other + rank for other in range(size)]
    arrived = [(other, rank) for other in range(size) for _ in range(other + rank)]
    for dtype in (torch.int8, torch.bfloat16, torch.float64):
        x = torch.tensor(rows, dtype=dtype)
        expected = torch.tensor(arrived, dtype=dtype).reshape(-1, 2)
        for given in (splits, tuple(splits), torch.tensor(splits, dtype=torch.int32)):
            output, received = hvd.alltoall(x, splits=given)
            check_same(output, expected, (dtype, given))
            check_same(received, torch.tensor([o + rank for o in range(size)], dtype=torch.int32))
    even = hvd.alltoall(torch.arange(size) + 10 * rank)
    check_same(even, torch.arange(size) * 10 + rank)


def reducescatters() -> None:
    everyone = range(hvd.size())
    for dtype, shape in itertools.product(NUMBERS, [(0,), (1,), (17,), (5, 7), (4, 0)]):
        x = pattern(dtype, shape, hvd.rank())
        rows = rows_of(shape[0], hvd.rank(), hvd.size())
        for op in (hvd.Sum, hvd.Average):
            expected = reduced(op, dtype, shape, everyone)[rows]
            check_same(hvd.reducescatter(x, op=op), expected, (op, dtype, shape))
    xs = [pattern(torch.float32, (rows, 2), hvd.rank()) for rows in (5, 8)]
    results = hvd.grouped_reducescatter(xs, compression=hvd.Compression.bf16, op=hvd.Sum)
    for x, result in zip(xs, results, strict=True):
        expected = reduced(hvd.Sum, torch.float32, x.shape, everyone)
        check_same(result, expected[rows_of(x.shape[0], hvd.rank(), hvd.size())])


def point_to_point() -> None:
    x = pattern(torch.bfloat16, (9, 2), 0)
    if hvd.rank() == 0:
        hvd.send(x, 1)
    elif hvd.rank() == 1:
        y = torch.zeros_like(x)
        assert hvd.recv(y, 0) is y
        check_same(y, x)


def test_every_operation_has_the_exact_result() -> None:
    spawn_ranks(operations, 3, timeout_s=90)


# --- between ranks -------------------------------------------------------------------------------


def between_ranks() -> None:
    members = hvd.ProcessSet([1])
    hvd.init(process_sets=[members])
    with pytest.raises(hvd.RankMismatchError, match="Mismatched data types: One rank had type"):
        hvd.allreduce(torch.zeros(3, dtype=(torch.int32, torch.float32)[hvd.rank() > 0]), name="x")
    mixed_frameworks()
    sparse_tensors()
    process_sets(members)
    hvd.barrier()
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    if hvd.size() > 2:
        members = hvd.add_process_set([0, 2])
        process_sets(members)
        assert hvd.remove_process_set(members)


def mixed_frameworks() -> None:
    total = float(sum(range(hvd.size())))
    if hvd.rank() == 0:
        result = lightcc.allreduce(np.zeros(3, np.float32), op=hvd.Sum, name="mixed")
        assert isinstance(result, np.ndarray)
        assert result.tolist() == [total] * 3
    else:
        check_same(
            hvd.allreduce(torch.full((3,), float(hvd.rank())), op=hvd.Sum, name="mixed"),
            torch.full((3,), total),
        )
    pair: list[Any] = [np.ones(2), torch.ones(2)]
    array, tensor = lightcc.grouped_allreduce(pair, op=hvd.Sum)
    assert isinstance(array, np.ndarray)
    check_same(tensor, torch.full((2,), float(hvd.size())))


def sparse_part(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """`rank` entries on a diagonal, each of two numbers; the first one twice, not coalesced."""
    diagonal = [0, *range(rank)] if rank else []
    indices = torch.tensor([diagonal, diagonal], dtype=torch.int64)
    values = torch.full((len(diagonal), 2), 6 * rank, dtype=dtype)
    size = (hvd.size(), hvd.size(), 2)
    return torch.sparse_coo_tensor(indices, values, size, check_invariants=True)


def sparse_tensors() -> None:
    parts = [sparse_part(rank, torch.int64).to_dense() for rank in range(hvd.size())]
    total = torch.stack(parts).sum(0)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        x = sparse_part(hvd.rank(), dtype)
        for op in (hvd.Sum, hvd.Average):
            handle = hvd.sparse_allreduce_async(x, name=f"sparse.{op}", op=op)
            result = handle()
            assert result.is_sparse
            # The entries are averaged one by one; here each is a multiple of six.
            expected = total.to(dtype) if op == hvd.Sum else (total // hvd.size()).to(dtype)
            check_same(result.to_dense(), expected, (dtype, op))
            assert handle() is result
    with pytest.raises(NotImplementedError, match=r"^op is Max; sparse tensors have Average and"):
        hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), name=None, op=hvd.Max)
    with pytest.raises(ValueError, match=r"^Tensor is required to be sparse"):
        hvd.sparse_allreduce_async(torch.ones(2), name=None, op=hvd.Sum)


def process_sets(members: hvd.ProcessSet) -> None:
    assert hvd.global_process_set.size() == hvd.size()
    x = pattern(torch.float32, (6, 2), hvd.rank())
    if not members.included():
        text = rf"^Allreduce: Rank {hvd.rank()} is not a member of the provided process set\."
        with pytest.raises(ValueError, match=text):
            hvd.allreduce(x, process_set=members)
        return
    assert members.ranks is not None
    expected = reduced(hvd.Average, torch.float32, (6, 2), members.ranks)
    check_same(hvd.allreduce(x, process_set=members), expected)
    check_same(hvd.grouped_allreduce_([x.clone()], process_set=members)[0], expected)
    index = members.rank()
    assert index is not None
    check_same(
        hvd.reducescatter(x, process_set=members), expected[rows_of(6, index, len(members.ranks))]
    )
    gathered = hvd.allgather(torch.tensor([hvd.rank()]), process_set=members)
    check_same(gathered, torch.tensor(members.ranks))
    last = members.ranks[-1]
    check_same(
        hvd.broadcast(torch.tensor(hvd.rank()), last, process_set=members), torch.tensor(last)
    )
    handle = hvd.sparse_allreduce_async(
        torch.eye(2).to_sparse(), name="s", op=hvd.Average, process_set=members
    )
    assert torch.equal(handle().to_dense(), torch.eye(2))
    hvd.barrier(members)


def test_ranks_disagree_mix_frameworks_and_form_sets() -> None:
    spawn_ranks(between_ranks, 3, timeout_s=90)
