"""Every operation in a world of one rank: results, ownership of memory, and refused arguments."""

from __future__ import annotations

import gc
import re
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from arrays import BOOL, DTYPES, SHAPES, check_same, pattern

import lightcc as hvd

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrays import Array

pytestmark = pytest.mark.usefixtures("world")

#: All dtypes of one shape, and all shapes of one dtype.
KINDS = [(dtype, (5, 7)) for dtype in DTYPES] + [(np.dtype("float32"), shape) for shape in SHAPES]


def test_what_one_rank_reduces_and_broadcasts_is_the_input() -> None:
    for dtype, shape in KINDS:
        op = hvd.Max if dtype == BOOL else hvd.Sum
        x = pattern(dtype, shape)
        before = x.copy()
        result = hvd.allreduce(x, op=op)
        check_same(result, before)
        check_same(x, before)
        assert not np.shares_memory(result, x)
        check_same(hvd.broadcast(x, 0), before)
        assert hvd.allreduce_(x, op=op) is x
        assert hvd.broadcast_(x, 0) is x
        check_same(x, before)


def test_an_allreduce_that_repeats_follows_what_is_asked_for() -> None:
    x = np.arange(6, dtype=np.float32)
    for _ in range(3):
        for tensor in (x, x.reshape(2, 3), x.astype(np.int64), x[::2].copy(), x[:0].copy()):
            for _ in range(2):
                result = hvd.allreduce(tensor, name="repeats")
                check_same(result, tensor)
                assert tensor.size == 0 or not np.shares_memory(result, tensor)
        check_same(hvd.allreduce(x, name="repeats", op=hvd.Sum, prescale_factor=2.0), 2 * x)
        check_same(hvd.allreduce(x, name="repeats", op=hvd.Sum, postscale_factor=3), 3 * x)
        y = x.copy()
        assert hvd.allreduce_(y, name="repeats", op=hvd.Sum, prescale_factor=2.0) is y
        check_same(y, 2 * x)
        check_same(hvd.allreduce(np.float32(7), name="repeats"), np.array(7, np.float32))
    x.flags.writeable = False
    with pytest.raises(ValueError, match="required to be writable"):
        hvd.allreduce_(x, name="repeats", op=hvd.Sum, prescale_factor=2.0)


def test_moving_operations_of_one_rank_are_the_input() -> None:
    for dtype, shape in KINDS:
        x = pattern(dtype, shape or (1,))
        check_same(hvd.allgather(x), x)
        check_same(hvd.grouped_allgather([x, x])[1], x)
        check_same(hvd.alltoall(x), x)
        if dtype != BOOL:
            check_same(hvd.reducescatter(x, op=hvd.Sum), x)
            check_same(hvd.grouped_reducescatter([x], op=hvd.Sum)[0], x)


def test_grouped_allreduce_keeps_order_shapes_and_dtypes() -> None:
    xs: list[Any] = [
        pattern(np.dtype("float32"), (3,)),
        pattern(np.dtype("int64"), (2, 2)),
        np.float64(7),
    ]
    for result, x in zip(hvd.grouped_allreduce(xs, op=hvd.Sum), xs, strict=True):
        check_same(result, np.asarray(x))
    ys = [x.copy() for x in xs[:2]]
    results = hvd.grouped_allreduce_(ys, op=hvd.Sum)
    assert [result is y for result, y in zip(results, ys, strict=True)] == [True, True]


def test_alltoall_gives_received_splits_when_splits_are_given() -> None:
    x = np.arange(6).reshape(3, 2)
    for splits in ([2], np.array([2], np.int32), np.array([2], np.uint8)):
        output, received = hvd.alltoall(x, splits=splits)
        check_same(output, x[:2])
        check_same(received, np.array([2], np.int32))
    output, received = hvd.synchronize(hvd.alltoall_async(x))
    check_same(output, x)
    check_same(received, np.array([3], np.int32))


def test_scale_factors_apply_before_and_after() -> None:
    x = np.array([1.0, 3.0], np.float32)
    check_same(hvd.allreduce(x, prescale_factor=2.0, postscale_factor=0.25), x / 2)
    check_same(hvd.allreduce(np.array([7], np.int32), prescale_factor=0.5), np.array([3], np.int32))


def test_numpy_scalar_counts_as_a_zero_dimensional_array() -> None:
    check_same(hvd.allreduce(np.float32(2.5)), np.array(2.5, np.float32))


def test_average_argument_still_works_and_is_deprecated() -> None:
    x = np.ones(2)
    with pytest.warns(DeprecationWarning, match="op=Average") as records:
        hvd.allreduce(x, average=False)
    assert records[0].filename == __file__
    with pytest.raises(ValueError, match=r"^The op parameter supersedes average\."):
        hvd.allreduce(x, average=True, op=hvd.Sum)


def test_fp16_compression_gives_back_the_dtype() -> None:
    x = np.array([1.0, 65504.0, 1e-9])
    result = hvd.allreduce(x, compression=hvd.Compression.fp16)
    check_same(result, x.astype(np.float16).astype(np.float64))
    check_same(hvd.reducescatter(x[:1], compression=hvd.Compression.fp16), x[:1])
    n = np.arange(3)
    check_same(hvd.grouped_allreduce([n], compression=hvd.Compression.fp16)[0], n)


WRONG_TYPES: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (hvd.allreduce, {"name": 3}, "name is 3: expected a text or None"),
    (hvd.allgather, {"name": ["x"]}, "name is ['x']: expected a text or None"),
    (hvd.alltoall_async, {"name": 3}, "name is 3: expected a text or None"),
    (hvd.reducescatter, {"name": 3}, "name is 3: expected a text or None"),
    (hvd.allreduce, {"process_set": 0}, "process_set is 0: expected a ProcessSet"),
    (hvd.allgather_async, {"process_set": None}, "process_set is None: expected a ProcessSet"),
    (hvd.broadcast_, {"root_rank": 0, "process_set": 0}, "expected a ProcessSet"),
    (hvd.broadcast, {"root_rank": "0"}, "root_rank is '0': expected an integer"),
    (hvd.broadcast_, {"root_rank": None}, "root_rank is None: expected an integer"),
    (hvd.allreduce, {"prescale_factor": "2"}, "prescale_factor is '2': expected a number"),
    (hvd.reducescatter, {"postscale_factor": None}, "postscale_factor is None: expected a"),
    (hvd.send, {"destination": "1"}, "destination is '1': expected an integer"),
    (hvd.recv_async, {"source": 1.5}, "source is 1.5: expected an integer"),
    (hvd.allreduce, {"compression": "int8"}, "compression is 'int8'; allowed are Compression.none"),
    (hvd.allgather, {"compression": "int8"}, "compression is 'int8'; allowed are Compression.none"),
    (lambda _, **a: hvd.Compression.topk(**a), {"ratio": "x"}, "ratio is 'x': expected a number"),
    (lambda _, **a: hvd.Compression.auto(**a), {"budget": None}, "budget is None: expected a"),
]


def test_an_argument_of_a_wrong_type_is_refused_in_words_of_the_api() -> None:
    x = np.ones(2)
    for call, arguments, text in WRONG_TYPES:
        with pytest.raises(TypeError, match=re.escape(text)) as caught:
            call(x, **arguments)
        assert "lightcc._core" not in str(caught.value)
        assert hvd.allreduce(x, op=hvd.Sum).tolist() == [1, 1]


def test_barrier_and_sets_refuse_what_is_no_set() -> None:
    with pytest.raises(TypeError, match="process_set is 0: expected a ProcessSet"):
        hvd.barrier(0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="process_set is 1: expected a ProcessSet"):
        hvd.remove_process_set(1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"ranks are 3; allowed is a list of ranks"):
        hvd.ProcessSet(3)  # type: ignore[arg-type]


# --- memory --------------------------------------------------------------------------------------


def test_result_owns_its_memory_after_shutdown() -> None:
    x = pattern(np.dtype("float64"), (1000,))
    result = hvd.allreduce(x)
    hvd.shutdown()
    gc.collect()
    check_same(result, x)
    result += 1
    assert result.flags.writeable
    assert result.flags.c_contiguous


def test_arrays_in_flight_are_kept_alive() -> None:
    x = np.zeros(100_000)
    reference = weakref.ref(x)
    handle = hvd.allreduce_async_(x)
    del x
    gc.collect()
    assert reference() is not None
    hvd.synchronize(handle)
    gc.collect()
    assert reference() is None


def test_read_only_input_is_enough_where_nothing_is_written() -> None:
    x = np.arange(4)
    x.flags.writeable = False
    check_same(hvd.allreduce(x, op=hvd.Sum), x)
    check_same(hvd.broadcast(x, 0), x)
    for write in (
        lambda: hvd.allreduce_(x),
        lambda: hvd.broadcast_(x, 0),
        lambda: hvd.recv_async(x, 0),
        lambda: hvd.grouped_allreduce_([np.zeros(1), x]),
    ):
        with pytest.raises(ValueError, match=r"^Tensor is required to be writable"):
            write()


# --- refused arguments ---------------------------------------------------------------------------

CALLS: list[Callable[[Array], Any]] = [
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


def test_arrays_that_no_operation_takes_are_refused() -> None:
    refused: list[tuple[Any, str]] = [
        *(
            (x, r"^Tensor is required to be contiguous\.$")
            for x in (np.zeros((4, 4))[:, 1], np.zeros((4, 4)).T[1:], np.zeros((2, 3), order="F"))
        ),
        *(
            (np.zeros(4, name), rf"^Tensor type {np.dtype(name)} is not supported\.$")
            for name in ("uint32", "uint64", "complex64", "longdouble", "U3", "O", ">f4")
        ),
        (
            np.frombuffer(bytearray(17), np.uint8)[1:].view(np.float64),
            "^Tensor is required to be aligned",
        ),
    ]
    for call in CALLS:
        for x, text in refused:
            with pytest.raises(ValueError, match=text):
                call(x)
        for value in ([1.0], "abc", None, 3):
            with pytest.raises((TypeError, AttributeError), match=type(value).__name__):
                call(value)  # type: ignore[arg-type]


class ReadOnly:
    """An array as JAX has it: its memory is offered by DLPack, and must not be written."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.__dlpack__ = array.__dlpack__
        self.__dlpack_device__ = array.__dlpack_device__


def test_arrays_that_offer_their_memory_by_dlpack_are_read() -> None:
    x: Any = ReadOnly(np.arange(6, dtype=np.float32).reshape(2, 3))
    check_same(hvd.allreduce(x, op=hvd.Sum), np.arange(6, dtype=np.float32).reshape(2, 3))
    assert hvd.allgather(x).shape == (2, 3)
    with pytest.raises(ValueError, match="required to be writable"):
        hvd.allreduce_(x)
    # As JAX's of bfloat16, which numpy refuses to take by DLPack.
    x.__dlpack__ = None
    x.__array__ = lambda *_, **__: np.arange(3.0)
    check_same(hvd.allreduce(x), np.arange(3.0))


def test_unknown_reduction_is_refused() -> None:
    wrong: list[Any] = [-1, 6, "sum"]
    for op in wrong:
        for call in (hvd.allreduce, hvd.reducescatter):
            with pytest.raises(ValueError, match=rf"^op is {op!r}; allowed are Average"):
                call(np.zeros(1), op=op)


def test_bool_has_no_sum() -> None:
    with pytest.raises(ValueError, match="bool"):
        hvd.allreduce(np.zeros(1, bool), op=hvd.Sum)


def test_empty_group_is_refused() -> None:
    for call in (hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter):
        with pytest.raises(ValueError, match=r"^A grouped operation needs a list of at least one"):
            call([])


def test_bad_splits_are_refused() -> None:
    x = np.zeros((4, 2))
    cases: list[tuple[Any, str]] = [
        ([[4]], "alltoall expects a 1D splits tensor"),
        (np.array(4), "alltoall expects a 1D splits tensor"),
        (np.array([4.0]), r"alltoall expects a splits tensor with 32-bit integer elements\."),
        ([2**31], "alltoall expects a splits tensor with 32-bit integer elements"),
        ([-1], "alltoall expects a splits tensor with 32-bit integer elements, none negative"),
        ([5], r"Sum of splits entries is greater than the first dimension of tensor\."),
        ([2, 2], r"Number of entries in splits does not equal number of workers\."),
        ([], r"Number of entries in splits does not equal number of workers\."),
    ]
    for splits, text in cases:
        with pytest.raises(ValueError, match=f"^{text}"):
            hvd.alltoall(x, splits=splits)


def test_root_outside_the_world_is_refused() -> None:
    for root in (-1, 1):
        with pytest.raises(ValueError, match=f"^broadcast received invalid root rank {root}"):
            hvd.broadcast(np.zeros(1), root)


def test_scalar_cannot_be_scattered_or_gathered() -> None:
    with pytest.raises(ValueError, match=r"^Reducescatter does not support scalar inputs"):
        hvd.reducescatter(np.float32(1))
    with pytest.raises(hvd.HorovodInternalError, match=r"^Process-set rank zero tried to "):
        hvd.allgather(np.float32(1))


def test_reducescatter_has_sum_and_average_only() -> None:
    text = r"^Reducescatter currently only supports AVERAGE and SUM\."
    # One error for every dtype, also where Adasum would not do either.
    for dtype in (np.float32, np.int32):
        for op in (hvd.Max, hvd.Adasum):
            with pytest.raises(hvd.HorovodInternalError, match=text):
                hvd.reducescatter(np.ones(2, dtype), op=op)


def test_refused_call_leaves_no_operation_behind() -> None:
    handle = hvd.allreduce_async(np.zeros(1), name="mine")
    hvd.synchronize(handle)
    for _ in range(2):
        with pytest.raises(ValueError, match="contiguous"):
            hvd.allreduce(np.zeros((4, 4))[:, 1], name="mine")
    check_same(hvd.allreduce(np.ones(1), name="mine"), np.ones(1))
