"""torch tensors in a world of one rank: memory, and what is refused."""

from __future__ import annotations

import copy
import gc
import itertools
import resource
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tensors import DTYPES, SHAPES, check_same, pattern

import lightcc
import lightcc.torch as hvd
from lightcc import _core

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(params=[True, False], ids=["exchange", "attributes"])
def exchange(request: pytest.FixtureRequest, world: None) -> Iterator[bool]:  # noqa: ARG001
    """Both ways to read a tensor: torch's exchange table, and its Python attributes."""
    _core.use_torch_exchange(request.param)
    yield request.param
    _core.use_torch_exchange(True)


pytestmark = pytest.mark.usefixtures("exchange")


def test_one_rank_gets_its_own_tensor_back() -> None:
    for dtype, shape in itertools.product(DTYPES, SHAPES):
        x = pattern(dtype, shape, 0)
        result = hvd.allreduce(x, op=hvd.Max)
        check_same(result, x, shape)
        assert result.data_ptr() != x.data_ptr() or x.numel() == 0
        assert hvd.allreduce_(x, op=hvd.Max) is x
        check_same(hvd.broadcast(x, 0), x, shape)
        if shape:
            check_same(hvd.allgather(x), x, shape)
            check_same(hvd.alltoall(x), x, shape)


# --- memory --------------------------------------------------------------------------------------


def test_result_owns_its_memory_after_shutdown() -> None:
    x = pattern(torch.float64, (1000,), 0)
    result, part = hvd.allreduce(x), hvd.allgather(x)[500:]
    splits = hvd.alltoall(x, splits=[1000])[1]
    hvd.shutdown()
    gc.collect()
    check_same(result, x)
    check_same(part, x[500:])
    check_same(splits, torch.tensor([1000], dtype=torch.int32))
    result += 1
    check_same(result, x + 1)
    assert result.data_ptr() % 64 == 0


def test_results_are_freed_with_the_last_reference() -> None:
    x = torch.ones(1 << 20, dtype=torch.float64)
    hvd.allreduce(x)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(30):
        rest = hvd.allreduce(x)[1:3]
        assert rest.tolist() == [1, 1]
        # The last reference may go in another thread.
        results = [hvd.allreduce(x)]
        thread = threading.Thread(target=results.clear)
        thread.start()
        thread.join()
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert grown_kib < 16 * 8 * 1024, "60 results of 8 MiB"


def test_result_behaves_as_any_tensor() -> None:
    result = hvd.allreduce(torch.arange(6.0).reshape(2, 3))
    assert torch.equal(copy.deepcopy(result), result)
    assert result.t().contiguous().shape == (3, 2)
    result.requires_grad_()
    (result * 2).sum().backward()
    check_same(result.grad, torch.full((2, 3), 2.0))
    empty = hvd.allreduce(torch.zeros(0, 3))
    assert torch.cat([empty, torch.ones(1, 3)]).shape == (1, 3)


def test_parameters_are_written_in_place() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    writes: list[Callable[[Any], Any]] = [hvd.allreduce_, lambda p: hvd.broadcast_(p, 0)]
    for write in writes:
        assert write(parameter) is parameter
    hvd.grouped_allreduce_([parameter], op=hvd.Sum, postscale_factor=2.0)
    check_same(parameter.detach(), torch.full((3,), 2.0))
    assert parameter.is_leaf
    assert parameter.requires_grad


# --- negative views ------------------------------------------------------------------------------


def negative(values: torch.Tensor) -> torch.Tensor:
    """A view with the elements of `values`, whose memory holds the opposite numbers."""
    view = torch._neg_view(-values)
    assert view.is_neg()
    return view


def test_negative_views_are_read_as_what_they_are() -> None:
    x = pattern(torch.float32, (6, 2), 0)
    # What conj() and imag make of one number needs no other layout.
    assert torch.tensor([3 + 4j]).conj().imag.is_neg()
    check_same(hvd.allreduce(torch.tensor([3 + 4j]).conj().imag), torch.tensor([-4.0]))
    reads: list[Callable[[Any], Any]] = [
        lambda t: hvd.allreduce(t, op=hvd.Max),
        lambda t: hvd.grouped_allreduce([t, t], op=hvd.Min)[1],
        lambda t: hvd.synchronize(hvd.allreduce_async(t, op=hvd.Product)),
        lambda t: hvd.allgather(t),
        lambda t: hvd.broadcast(t, 0),
        lambda t: hvd.alltoall(t),
        lambda t: hvd.reducescatter(t),
        lambda t: hvd.synchronize(hvd.grouped_allgather_async([t]))[0],
        lambda t: hvd.allreduce(t.detach().requires_grad_()).detach(),
    ]
    for read in reads:
        check_same(read(negative(x)), x)
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[2, 0]]), negative(torch.ones(2)), (3,), check_invariants=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has something to say of sparse tensors.
        sums = hvd.sparse_allreduce_async(sparse, "sparse", hvd.Sum)()
    check_same(sums.to_dense(), torch.tensor([1.0, 0.0, 1.0]))
    splits = negative(torch.tensor([6], dtype=torch.int32))
    check_same(hvd.alltoall(x, splits=splits)[0], x)


def test_negative_views_receive_no_result() -> None:
    x = torch.arange(1.0, 4.0)
    view = negative(x)
    writes: list[Callable[[Any], Any]] = [
        lambda t: hvd.allreduce_(t, postscale_factor=2.0),
        lambda t: hvd.grouped_allreduce_([torch.ones(1), t]),
        lambda t: hvd.broadcast_(t, 0),
        lambda t: hvd.recv(t, 0),
    ]
    for write in writes:
        with pytest.raises(ValueError, match=r"is a negative view \(is_neg\(\)\).*resolve_neg"):
            write(view)
    assert torch.equal(view, x)


def test_negative_and_conjugate_views_among_parameters_and_state_are_broadcast() -> None:
    x = torch.arange(1.0, 4.0)
    view = negative(x)
    hvd.broadcast_parameters({"x": view}, 0)
    assert torch.equal(view, x)
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    optimizer.state[parameter] = {"negative": view, "conjugate": torch.tensor([1 + 2j]).conj()}
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert torch.equal(optimizer.state[parameter]["negative"], x)


# --- refused tensors -----------------------------------------------------------------------------

CALLS: list[Callable[[Any], Any]] = [
    lambda x: hvd.allreduce(x),
    lambda x: hvd.allreduce_(x),
    lambda x: hvd.grouped_allreduce([x]),
    lambda x: hvd.allgather(x),
    lambda x: hvd.broadcast(x, 0),
    lambda x: hvd.alltoall(x),
    lambda x: hvd.reducescatter(x),
    lambda x: hvd.send(x, 0),
    lambda x: hvd.recv(x, 0),
]

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "column": (lambda: torch.zeros(4, 4)[:, 1], r"Tensor is required to be contiguous\.$"),
    "expanded": (lambda: torch.zeros(1).expand(3), r"Tensor is required to be contiguous\.$"),
    "channels last": (
        lambda: torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last),
        r"Tensor is required to be contiguous\.$",
    ),
    "complex": (
        lambda: torch.zeros(2, dtype=torch.complex64),
        r"Tensor type torch\.ComplexFloatTensor is not supported\.$",
    ),
    "uint32": (
        lambda: torch.zeros(2, dtype=torch.uint32),
        r"Tensor type torch\.UInt32Tensor is not supported\.$",
    ),
    "float8": (
        lambda: torch.zeros(2, dtype=torch.float8_e4m3fn),
        r"Tensor type torch\.Float8_e4m3fnTensor is not supported\.$",
    ),
    "sparse": (
        lambda: torch.eye(2).to_sparse(),
        r"Tensor type torch\.sparse\.FloatTensor is not supported\.$",
    ),
    "sparse by rows": (
        lambda: torch.eye(2).to_sparse_csr(),
        r"Tensor layout torch\.sparse_csr is not supported\.$",
    ),
    "nested": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(1)]),
        r"Nested tensors are not supported\.$",
    ),
    "nested and jagged": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged),
        r"Nested tensors are not supported\.$",
    ),
    "on a device": (
        lambda: torch.zeros(2, device="meta"),
        "Tensor is on device meta; this version of lightcc takes tensors in CPU and CUDA memory",
    ),
    "misaligned": (
        lambda: (
            torch.frombuffer(bytearray(17), dtype=torch.uint8)[1:].view(torch.float64)
            if torch.frombuffer(bytearray(17), dtype=torch.uint8)[1:].storage_offset() % 8 == 0
            else torch.frombuffer(bytearray(17), dtype=torch.float64, offset=1, count=2)
        ),
        "Tensor is required to be aligned",
    ),
    "of a lazy module": (
        lambda: torch.nn.LazyLinear(3).weight,
        "Attempted to use an uninitialized parameter",
    ),
}


def test_tensor_that_cannot_be_used_where_it_lies_is_refused() -> None:
    for call, (make, text) in itertools.product(CALLS, REFUSED.values()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls some layouts prototypes.
            tensor = make()
        with pytest.raises(ValueError, match=f"^{text}"):
            call(tensor)
    check_same(hvd.allreduce(torch.ones(1)), torch.ones(1))


def test_what_is_no_tensor_is_refused() -> None:
    values: list[Any] = [[1.0], "abc", None, 3]
    for value in values:
        for call in CALLS[:1] + CALLS[3:]:
            with pytest.raises((TypeError, AttributeError), match=type(value).__name__):
                call(value)
        with pytest.raises(TypeError, match=r"^Tensor is required to be a numpy\.ndarray, a torch"):
            hvd.allreduce_(value)


def test_bad_arguments_have_horovods_errors() -> None:
    with pytest.raises(ValueError, match=r"^alltoall expects a splits tensor with 32-bit integer"):
        hvd.alltoall(torch.zeros(4, 2), splits=torch.tensor([4]))
    with pytest.raises(ValueError, match=r"^The op parameter supersedes average\. Please provide"):
        hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)
    with pytest.warns(DeprecationWarning, match="op=Average") as records:
        hvd.allreduce(torch.ones(1), average=False)
    assert records[0].filename == __file__
    hvd.shutdown()
    with pytest.raises(ValueError, match=r"^lightcc has not been initialized; use hvd\.init\(\)\."):
        hvd.allreduce(torch.ones(1))


def test_neutral_face_keeps_torch_tensors_torch() -> None:
    x = torch.nn.Parameter(torch.ones(2))
    check_same(lightcc.allreduce(x), torch.ones(2))
    check_same(lightcc.grouped_allgather([x])[0], torch.ones(2))
    check_same(lightcc.broadcast(x, 0), torch.ones(2))
    assert lightcc.allreduce_(x) is x
    output, splits = lightcc.alltoall(x, splits=torch.tensor([2], dtype=torch.int32))
    check_same(output, torch.ones(2))
    check_same(splits, torch.tensor([2], dtype=torch.int32))
