"""`import lightcc` on TensorFlow's eager tensors, variables, and Keras's variables."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import lightcc as hvd
from lightcc.testing import spawn_ranks

pytestmark = pytest.mark.multiproc

DTYPES = (
    *("uint8", "int8", "uint16", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64"),
)


def same(found: Any, expected: Any, dtype: str = "float32") -> None:
    assert isinstance(found, tf.Tensor), type(found)
    assert found.dtype == tf.as_dtype(dtype)
    expected = np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    assert np.array_equal(tf.cast(found, tf.float64).numpy(), expected), (found, expected)


def tensors_give_tensors() -> None:
    hvd.init()
    rank = hvd.rank()
    for dtype in DTYPES:
        x = tf.cast([[1, 2, 3]], dtype) * tf.cast(rank + 1, dtype)
        same(hvd.allreduce(x, op=hvd.Sum), [[3, 6, 9]], dtype)
        same(x, np.array([[1, 2, 3]]) * (rank + 1), dtype)
    flag = hvd.allreduce(tf.constant([True, False, rank == 0]), op=hvd.Min)
    assert flag.numpy().tolist() == [True, False, False]
    same(hvd.allreduce(tf.constant(1.0 + rank)), 1.5)
    same(hvd.allreduce(tf.zeros([0, 3])), np.zeros((0, 3)))
    same(hvd.allgather(tf.ones([rank + 1, 2])), np.ones((3, 2)))
    same(hvd.broadcast(tf.constant([1.0 + rank]), 1), [2])
    same(hvd.reducescatter(tf.constant([1.0, 2.0]), op=hvd.Sum), [2.0 * (rank + 1)])
    for found, value in zip(hvd.grouped_allreduce([tf.ones(2), tf.ones(1)]), (2, 1), strict=True):
        same(found, np.ones(value))
    output, splits = hvd.alltoall(tf.constant([1.0, 2.0]) + rank, splits=tf.constant([1, 1]))
    same(output, [1.0 + rank, 2.0 + rank])
    same(splits, [1, 1], "int32")
    handle = hvd.allreduce_async(tf.ones(3), op=hvd.Sum, name="later")
    same(hvd.synchronize(handle), [2, 2, 2])
    # Ranks may mix what they bring.
    mixed = tf.ones(2) if rank == 0 else np.ones(2, np.float32)
    assert type(hvd.allreduce(mixed)) is type(mixed)


def test_tensors_give_tensors_of_their_dtype() -> None:
    spawn_ranks(tensors_give_tensors, 2)


def variables_are_assigned() -> None:
    hvd.init()
    rank = hvd.rank()
    variable = tf.Variable([1.0 + rank, 2.0])
    same(hvd.allreduce(variable), [1.5, 2])
    before = variable.value()
    assert hvd.allreduce_(variable, op=hvd.Sum) is variable
    same(variable.value(), [3, 4])
    same(before, [1.0 + rank, 2])  # What was read before is nobody's to change.
    assert hvd.broadcast_(tf.Variable(rank), 1).numpy() == 1
    handle = hvd.allreduce_async_(variable, op=hvd.Sum, name="later")
    same(variable.value(), [3, 4])  # Assigned when it is waited for.
    assert hvd.synchronize(handle) is variable
    same(variable.value(), [6, 8])
    flags = tf.Variable([True, rank == 0])
    group = hvd.grouped_allreduce_([variable, tf.Variable([2.0])], op=hvd.Average)
    assert group[0] is variable
    same(group[1].value(), [2])
    assert hvd.broadcast_(flags, 0).numpy().tolist() == [True, True]
    if rank == 0:
        hvd.send(variable, 1)
    else:
        hvd.recv(variable, 0)
    same(variable.value(), [6, 8])
    same(hvd.broadcast_(tf.Variable(tf.zeros([0, 2])), 0).value(), np.zeros((0, 2)))
    # The next step goes on from what was received.
    variable.assign_add([1.0, 1.0])
    same(variable.value(), [7, 9])


def test_variables_are_assigned_in_place() -> None:
    spawn_ranks(variables_are_assigned, 2)


def keras_variables_are_assigned() -> None:
    hvd.init()
    variable = keras.Variable([1.0 + hvd.rank(), 2.0], trainable=True, name="kernel")
    same(hvd.allreduce(variable), [1.5, 2])
    assert hvd.broadcast_(variable, 1) is variable
    assert np.asarray(variable).tolist() == [2, 2]


def test_keras_variables_are_assigned_in_place() -> None:
    if not hasattr(keras, "Variable"):
        pytest.skip("Keras 2 has no variables of its own: they are TensorFlow's")
    spawn_ranks(keras_variables_are_assigned, 2)


def wrong_tensors_are_refused() -> None:
    hvd.init()
    with pytest.raises(TypeError, match=r"never changes: pass a tf\.Variable"):
        hvd.allreduce_(tf.ones(2))
    with pytest.raises(TypeError, match="never changes"):
        hvd.recv(tf.ones(2), 0)
    with pytest.raises(ValueError, match=r"Tensor type tf\.string is not supported"):
        hvd.allreduce(tf.constant("text"))
    with pytest.raises(ValueError, match=r"Tensor type tf\.complex64 is not supported"):
        hvd.allreduce(tf.complex(1.0, 2.0))
    with pytest.raises(TypeError, match="IndexedSlices"):
        hvd.allreduce(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0])))
    with pytest.raises(TypeError, match=r"symbolic.*use lightcc\.tensorflow"):
        tf.function(hvd.allreduce)(tf.ones(2))
    variable = tf.Variable([1.0])
    with pytest.raises(TypeError, match=r"symbolic.*use lightcc\.tensorflow"):
        tf.function(lambda: hvd.allreduce_(variable))()
    with tf.Graph().as_default(), pytest.raises(TypeError, match="symbolic"):
        hvd.allreduce(tf.ones(2))
    same(hvd.allreduce(tf.ones(2)), [1, 1])


def test_what_has_no_values_or_never_changes_is_refused() -> None:
    spawn_ranks(wrong_tensors_are_refused, 1)
