"""Operations as Python functions: the same results as kernels, and when they are chosen."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import lightcc.tensorflow as hvd
from lightcc import doctor
from lightcc.tensorflow import _library, _python_ops
from lightcc.testing import spawn_ranks

pytestmark = pytest.mark.multiproc

WITHOUT_KERNELS = {"LIGHTCC_TF_KERNELS": "0"}


def same(found: Any, expected: Any) -> None:
    found = found if isinstance(found, np.ndarray) else found.numpy()
    assert np.array_equal(found, np.asarray(expected, np.float64)), (found, expected)


def results() -> list[tuple[Any, Any]]:
    rank = hvd.rank()
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]]) * (rank + 1.0)
    one = np.array([[1.0, 2.0], [3.0, 4.0]])
    rows = tf.ones([rank + 1, 2])
    output, received = hvd.alltoall(x, splits=tf.constant([1, 1]))
    return [
        (hvd.allreduce(x), one * 1.5),
        (hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5), one * 1.5),
        (hvd.allreduce(x, op=hvd.Max), one * 2),
        (hvd.broadcast(x, 1), one * 2),
        (hvd.allgather(rows), np.ones((3, 2))),
        (hvd.reducescatter(x, op=hvd.Sum), one[rank : rank + 1] * 3),
        (output, [one[rank], one[rank] * 2]),
        (received, [1, 1]),
        (hvd.grouped_allreduce([x, x[0]], op=hvd.Sum)[1], one[0] * 3),
        (hvd.grouped_allgather([rows, rows])[1], np.ones((3, 2))),
        (hvd.grouped_reducescatter([x, x], op=hvd.Sum)[1], one[rank : rank + 1] * 3),
        (hvd.rank_op(), rank),
        (hvd.size_op(), 2),
        (hvd.process_set_included_op(), 1),
    ]


def python_functions() -> None:
    assert _library.why_no_kernels == "LIGHTCC_TF_KERNELS is 0"
    hvd.init()
    for found, expected in results():
        same(found, expected)
    expected = [value for _, value in results()]
    for _ in range(2):
        found = tf.function(lambda: [value for value, _ in results()])
        for value, wanted in zip(found(), expected, strict=True):
            same(value, wanted)
    sessions()
    gradients()
    training()
    errors()
    assert int(hvd.join()) in (0, 1)


def sessions() -> None:
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("v", initializer=tf.constant([1.0]) + hvd.rank())
        summed = hvd.allreduce(variable * 2.0, op=hvd.Sum)
        everywhere = hvd.broadcast_global_variables(1)
        assert summed.shape == [1]
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            same(session.run(summed), [6])
            session.run(everywhere)
            same(session.run(variable), [2])


def gradients() -> None:
    def gradient(function: Any, x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(function(x) * (hvd.rank() + 1.0))
        return tape.gradient(loss, x)

    x = tf.ones([2, 2])
    for run in (gradient, tf.function(gradient)):
        same(run(lambda it: hvd.allreduce(it, op=hvd.Sum), x), np.full((2, 2), 3))
        same(run(lambda it: hvd.grouped_allreduce([it])[0], x), np.full((2, 2), 1.5))
        same(run(hvd.allgather, x), np.full((2, 2), 1.5))
        same(run(lambda it: hvd.broadcast(it, 0), x), np.full((2, 2), 1.5 * (hvd.rank() == 0)))
        same(run(lambda it: hvd.reducescatter(it, op=hvd.Sum), x), [[2, 2], [4, 4]])
        same(run(hvd.alltoall, x), [[1, 1], [2, 2]])


def training() -> None:
    weights = [tf.Variable([[1.0], [2.0]]), tf.Variable([0.5])]
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])[hvd.rank() :][:1]

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((x @ weights[0] + weights[1]) ** 2)
        tape = hvd.DistributedGradientTape(tape)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.01 * gradient)

    for _ in range(3):
        step()
    for weight in weights:
        both = hvd.allgather(tf.reshape(weight, [1, -1])).numpy()
        assert both[0].tobytes() == both[1].tobytes()
    assert not np.array_equal(weights[0].numpy(), [[1.0], [2.0]])


def errors() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="root rank"):
        hvd.broadcast(tf.ones(2), 7)
    with pytest.raises(tf.errors.FailedPreconditionError, match="shape"):
        hvd.allreduce(tf.ones([2 + hvd.rank()]), name="shapes")
    same(hvd.allreduce(tf.ones([2]), op=hvd.Sum), [2, 2])


def test_python_functions_do_what_kernels_do() -> None:
    # About 15 s: ranks import TensorFlow, and trace each operation twice with its gradient.
    spawn_ranks(python_functions, 2, env=WITHOUT_KERNELS, timeout_s=100)


def test_a_tensorflow_that_calls_back_otherwise_is_noticed() -> None:
    library = ctypes.CDLL(str(_library.PATH))
    library.lightcc_tf_calls_back.restype = ctypes.c_bool
    process = ctypes.CDLL(None)
    assert library.lightcc_tf_calls_back(None)
    for wrong in (process.abort, process.getpid):  # It crashes; it calls nothing.
        assert not library.lightcc_tf_calls_back(ctypes.cast(wrong, ctypes.c_void_p))


def test_where_kernels_fail_a_warning_says_so_and_functions_take_their_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_library, "_calls_back", lambda _: False)
    with pytest.warns(RuntimeWarning, match="does not call back.*run as Python functions"):
        operations, reason = _library._load()
    assert operations is _python_ops
    assert "does not call back" in reason
    monkeypatch.setattr(_library, "PATH", _library.PATH.with_name("missing.so"))
    with pytest.warns(RuntimeWarning, match="missing.so cannot be loaded"):
        assert _library._load()[0] is _python_ops


@pytest.mark.parametrize(("value", "words"), [("1", "runs as kernels"), ("0", "Python functions")])
def test_the_doctor_tells_how_operations_run(
    value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTCC_TF_KERNELS", value)
    findings = {finding.name: finding for finding in doctor.check_libraries()}
    assert words in findings["lightcc.tensorflow"].detail
    assert findings["tensorflow"].detail == tf.__version__
    assert findings["keras"].status == doctor.OK
