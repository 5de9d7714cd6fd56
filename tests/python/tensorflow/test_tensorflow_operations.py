"""Every operation in every way to run it, on two ranks that have one inter-op thread each."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf

import lightcc.tensorflow as hvd
from lightcc.testing import spawn_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.multiproc

DTYPES = ("uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64")


def in_graph(function: Callable[..., Any]) -> Callable[..., Any]:
    graph: Callable[..., Any] = tf.function(function)
    return graph


def at_once(function: Callable[[], Any]) -> Any:
    return function()


def same(found: Any, expected: Any, what: object = "") -> None:
    found = np.asarray(tf.cast(found, tf.float64))
    assert np.array_equal(found, np.asarray(expected, np.float64)), (what, found, expected)


def operations() -> None:
    tf.config.threading.set_inter_op_parallelism_threads(1)
    hvd.init(process_sets=[hvd.ProcessSet([1])])
    for check in (
        results_eagerly,
        results_in_functions,
        shapes_before_running,
        many_in_flight,
        loops_and_branches,
        saved_and_loaded,
        sessions,
        gradients,
        errors,
        sparse_tensors,
        variables_and_objects,
        members_only,
        joining,
    ):
        check()


def results() -> list[tuple[Any, Any]]:
    """What each operation returns, and what it must be, for ranks 0 and 1."""
    rank = hvd.rank()
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]]) * (rank + 1.0)
    rows = tf.ones([rank + 1, 2]) * (rank + 1.0)
    one = np.array([[1.0, 2.0], [3.0, 4.0]])
    pairs = [
        (hvd.allreduce(x), one * 1.5),
        (hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5), one * 1.5),
        (hvd.allreduce(x, op=hvd.Max), one * 2),
        (hvd.allreduce(x, op=hvd.Min), one),
        (hvd.allreduce(x, op=hvd.Product), one * one * 2),
        (hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16), one * 3),
        (hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.bf16), one * 3),
        (hvd.broadcast(x, 1), one * 2),
        (hvd.allgather(rows), [[1, 1], [2, 2], [2, 2]]),
        (hvd.reducescatter(x, op=hvd.Sum), one[rank : rank + 1] * 3),
        (hvd.alltoall(x), [one[rank], one[rank] * 2]),
        (hvd.rank_op(), rank),
        (hvd.size_op(), 2),
        (hvd.size_op(1), 1),
        (hvd.local_rank_op(), rank),
        (hvd.local_size_op(), 2),
        (hvd.process_set_included_op(1), rank),
    ]
    received, splits = hvd.alltoall(tf.range(3) + 10 * rank, splits=[1, 2])
    pairs += [(received, [0, 10] if rank == 0 else [1, 2, 11, 12]), (splits, [rank + 1] * 2)]
    mixed = hvd.grouped_allreduce([x, tf.constant(rank, tf.int64)], op=hvd.Sum)
    pairs += [(mixed[0], one * 3), (mixed[1], 1)]
    gathered = hvd.grouped_allgather([rows, tf.constant([rank])])
    pairs += [(gathered[0], [[1, 1], [2, 2], [2, 2]]), (gathered[1], [0, 1])]
    scattered = hvd.grouped_reducescatter([x, x * 2.0], op=hvd.Sum)
    pairs += [(scattered[1], one[rank : rank + 1] * 6)]
    return pairs


def results_eagerly() -> None:
    for found, expected in results():
        same(found, expected)
    for dtype in DTYPES:
        x = tf.cast(tf.constant([1, 2, 3]), dtype)
        total = hvd.allreduce(x, op=hvd.Sum, name=f"sum.{dtype}")
        assert total.dtype == x.dtype
        same(total, [2, 4, 6], dtype)
    same(hvd.allreduce(tf.constant([[]]), op=hvd.Sum), [[]])
    third = hvd.allreduce(tf.constant(3.0, tf.float64), op=hvd.Sum, prescale_factor=1 / 3)
    assert float(third) == 2.0  # A factor of 32 bits would not be as exact.
    x = tf.constant([1.0, 2.0])
    hvd.allreduce(x, op=hvd.Sum)
    same(x, [1, 2], "the input is not changed")


def results_in_functions() -> None:
    expected: list[Any] = []

    @in_graph
    def all_of_them() -> list[Any]:
        expected.clear()
        pairs = results()
        expected.extend(e for _, e in pairs)
        return [found for found, _ in pairs]

    for _ in range(2):
        for found, value in zip(all_of_them(), expected, strict=True):
            same(found, value)


def shapes_before_running() -> None:
    def traced(x: Any) -> Any:
        assert hvd.allreduce(x).shape.as_list() == [None, 3]
        assert hvd.allgather(x).shape.as_list() == [None, 3]
        assert hvd.allgather(tf.ones([2, 5])).shape.as_list() == [None, 5]
        assert hvd.broadcast(tf.ones([2, 5]), 0).shape.as_list() == [2, 5]
        received, splits = hvd.alltoall(x, splits=[1, 1])
        assert received.shape.as_list() == [None, 3]
        assert splits.shape.as_list() == [None]
        return hvd.allreduce(x, op=hvd.Sum)

    run = tf.function(traced, input_signature=[tf.TensorSpec([None, 3])])
    same(run(tf.ones([2, 3])), np.full([2, 3], 2.0))


def many_in_flight() -> None:
    """Ranks meet the operations in opposite orders, with one thread for all of them."""
    order = range(64) if hvd.rank() == 0 else range(63, -1, -1)

    @in_graph
    def step(x: Any) -> list[Any]:
        found = {i: hvd.allreduce(x * float(i), op=hvd.Sum, name=f"many_{i}") for i in order}
        return [found[i] for i in range(64)]

    for i, value in enumerate(step(tf.ones([4]))):
        same(value, [2 * i] * 4)


def loops_and_branches() -> None:
    @in_graph
    def loop(x: Any) -> Any:
        for _ in tf.range(3):
            x = hvd.allreduce(x, op=hvd.Sum)
            if tf.reduce_sum(x) > 3.0:
                x = hvd.allreduce(x, op=hvd.Average) + 1.0
        return x

    same(loop(tf.ones([2])), [15, 15])


def saved_and_loaded() -> None:
    module = tf.Module()
    module.total = tf.function(
        lambda x: hvd.allreduce(x, op=hvd.Sum) * tf.cast(hvd.size_op(), tf.float32),
        input_signature=[tf.TensorSpec([None])],
    )
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model")
        tf.saved_model.save(module, path)
        loaded = tf.saved_model.load(path)
        same(loaded.total(tf.ones([3])), [4, 4, 4])


def sessions() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        pairs = results()
        variable = tf.compat.v1.get_variable("v", initializer=float(hvd.rank()))
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(hvd.broadcast_global_variables(1))
        assert session.run(variable) == 1.0
        found = session.run([tf.cast(f, tf.float64) for f, _ in pairs])
        assert session.run(hvd.join()) in (0, 1)
        session.run(hvd.barrier())
    for value, (_, expected) in zip(found, pairs, strict=True):
        assert np.array_equal(value, np.asarray(expected, np.float64))
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("w", initializer=float(hvd.rank()))
        hook = hvd.BroadcastGlobalVariablesHook(0)
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            assert session.run(variable) == 0.0


def gradient(function: Any, *inputs: Any, weight: Any) -> Any:
    with tf.GradientTape() as tape:
        for x in inputs:
            tape.watch(x)
        loss = tf.reduce_sum(function(*inputs) * weight)
    return tape.gradient(loss, inputs[0] if len(inputs) == 1 else inputs)


def gradients() -> None:
    rank = hvd.rank()
    x, own = tf.ones([2, 2]), rank + 1.0

    def check_all() -> list[Any]:
        return [
            gradient(lambda a: hvd.allreduce(a, op=hvd.Sum), x, weight=own),
            gradient(hvd.allreduce, x, weight=own),
            gradient(lambda a: hvd.grouped_allreduce([a, a])[1], x, weight=own),
            gradient(lambda a: hvd.broadcast(a, 0), x, weight=own),
            gradient(
                hvd.allgather, tf.ones([rank + 1, 2]), weight=tf.reshape(tf.range(6.0), [3, 2])
            ),
            gradient(lambda a: hvd.reducescatter(a, op=hvd.Sum), x, weight=own),
            gradient(hvd.alltoall, x, weight=own),
        ]

    expected = [
        np.full([2, 2], 3.0),
        np.full([2, 2], 1.5),
        np.full([2, 2], 1.5),
        np.full([2, 2], 1.5 if rank == 0 else 0.0),
        [[0, 1]] if rank == 0 else [[2, 3], [4, 5]],
        [[2, 2], [4, 4]],
        [[1, 1], [2, 2]],
    ]
    for found in (check_all(), tf.function(check_all)()):
        for i, value in enumerate(found):
            same(value, expected[i], i)


def errors() -> None:
    rank = hvd.rank()
    for run in (at_once, lambda f: in_graph(f)()):
        with pytest.raises(tf.errors.FailedPreconditionError, match="Mismatched"):
            run(lambda: hvd.allreduce(tf.ones([2 + rank]), name="shapes"))
        with pytest.raises(tf.errors.FailedPreconditionError, match="Mismatched data types"):
            run(lambda: hvd.allreduce(tf.ones([2], (tf.float32, tf.int32)[rank]), name="types"))
        with pytest.raises(tf.errors.InvalidArgumentError, match="root rank"):
            run(lambda: hvd.broadcast(tf.ones([2]), 7, name="root"))
        with pytest.raises(tf.errors.InvalidArgumentError, match="splits"):
            run(lambda: hvd.alltoall(tf.ones([2]), splits=[5, 5]))
    with pytest.raises(ValueError, match="does not exist"):
        hvd.allreduce(tf.ones([2]), process_set=hvd.ProcessSet([0]))
    with pytest.raises(TypeError, match="compression"):
        hvd.allreduce(tf.ones([2]), compression="fp16")
    same(hvd.allreduce(tf.ones([2]), op=hvd.Sum), [2, 2], "after all that")


def sparse_tensors() -> None:
    rank = hvd.rank()
    slices = tf.IndexedSlices(tf.ones([1, 2]) * (rank + 1.0), tf.constant([rank]), [4, 2])
    combined = hvd.allreduce(slices)
    same(combined.indices, [0, 1])
    same(combined.values, [[0.5, 0.5], [1, 1]])
    grouped = hvd.grouped_allreduce([slices, tf.ones([2])], op=hvd.Sum)
    same(tf.convert_to_tensor(grouped[0]), [[1, 1], [2, 2], [0, 0], [0, 0]])
    same(grouped[1], [2, 2])
    with pytest.raises(NotImplementedError, match="Sum and Average"):
        hvd.allreduce(slices, op=hvd.Max)


def variables_and_objects() -> None:
    rank = hvd.rank()
    variables = [tf.Variable(tf.constant([1.0, 2.0]) + rank), tf.Variable(3 + rank)]
    hvd.broadcast_variables(variables, root_rank=1)
    same(variables[0], [2, 3])
    same(variables[1], 4)
    variables[1].assign(rank)
    tf.function(lambda: hvd.broadcast_variables(variables, root_rank=0))()
    same(variables[1], 0)
    values = hvd.broadcast_([tf.Variable(float(rank))], 1)
    same(values[0], 1)
    assert hvd.broadcast_object({"rank": rank}, 1) == {"rank": 1}
    assert hvd.broadcast_object_fn(0)(rank) == 0
    assert hvd.allgather_object(rank) == [0, 1]


def members_only() -> None:
    unknown = hvd.ProcessSet([0])
    unknown.process_set_id = 10
    with pytest.raises(ValueError, match="does not exist"):
        hvd.allreduce(tf.ones([2]), process_set=unknown)
    only_one = hvd.ProcessSet([1])
    only_one.process_set_id = 1
    if hvd.rank() == 1:
        same(hvd.allreduce(tf.ones([2]), op=hvd.Sum, process_set=only_one), [1, 1])
    else:
        with pytest.raises(tf.errors.InvalidArgumentError, match="not a member"):
            hvd.allreduce(tf.ones([2]), process_set=only_one)


def joining() -> None:
    if hvd.rank() == 0:
        same(hvd.allreduce(tf.ones([2]), op=hvd.Sum, name="alone"), [1, 1])
    assert int(hvd.join()) in (0, 1)
    hvd.shutdown()
    with pytest.raises(tf.errors.FailedPreconditionError, match="not been initialized"):
        hvd.rank_op()


def test_operations() -> None:
    spawn_ranks(operations, 2, timeout_s=100)
