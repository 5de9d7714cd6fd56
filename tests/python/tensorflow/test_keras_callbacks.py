"""Callbacks, saved models, values and synchronized batch normalization, on each Keras."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras_frontends import (
    ALL,
    VERSION,
    Frontend,
    data,
    differ,
    environment,
    fit,
    frontend,
    is_keras_3,
    make_model,
    shares,
    weights,
)

import lightcc
from lightcc.testing import spawn_ranks

pytestmark = pytest.mark.multiproc


def use(name: str, folder: str) -> None:
    warnings.simplefilter("ignore")
    lightcc.init()
    tested = frontend(name)
    values(tested)
    a_common_start(tested)
    metrics_are_averaged(tested)
    learning_rates(tested)
    momentum_is_corrected(tested)
    # ModelCheckpoint of Keras 2.14 gives save() options that this format does not take.
    suffix = "" if VERSION < (2, 15) else ".keras"
    best_model(tested, Path(folder) / f"best-{lightcc.rank()}{suffix}")
    saved_and_loaded(tested, Path(folder) / f"model-{lightcc.rank()}.keras")
    batch_normalization(tested)


def values(tested: Frontend) -> None:
    _, hvd, name = tested
    rank = lightcc.rank()
    value = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32) * (rank + 1)
    assert np.array(hvd.allreduce(value)).tolist() == [[1.5, 3.0], [4.5, 6.0]]
    assert np.array(hvd.allreduce(value, op=hvd.Sum)).tolist() == [[3.0, 6.0], [9.0, 12.0]]
    assert np.array(hvd.allreduce(value, average=False)).tolist()[0] == [3.0, 6.0]
    assert np.array(hvd.allgather(value, name="rows"))[:, 0].tolist() == [1.0, 3.0, 2.0, 6.0]
    assert np.array(hvd.broadcast(value, 1)).tolist() == [[2.0, 4.0], [6.0, 8.0]]
    scattered = np.array(hvd.reducescatter(value, op=hvd.Sum)).tolist()
    assert scattered == [[[3.0, 6.0]], [[9.0, 12.0]]][rank]
    with pytest.raises(RuntimeError, match="broadcast_global_variables"):
        hvd.broadcast_global_variables(0)
    assert name in ("tensorflow", "keras2") or hvd.__name__ == "lightcc.keras"


def a_common_start(tested: Frontend) -> None:
    keras, hvd, _ = tested
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9))
    model = make_model(keras, optimizer, **tested.eagerly)
    rank = lightcc.rank()
    model.set_weights([weight + rank for weight in weights(model)])
    assert differ(model)
    local = model.layers[-1].trainable_weights[-1]
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(1, local_variables=[local])
    fit(model, *data(seed=rank), callbacks=[start])
    digests = lightcc.allgather_object([w.tobytes() for w in weights(model)])
    assert [a == b for a, b in zip(*digests, strict=True)] == [True, True, True, False]


def metrics_are_averaged(tested: Frontend) -> None:
    keras, hvd, _ = tested
    model = make_model(keras, hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)))
    x, y = data()
    alone = float(model.evaluate(x, y, verbose=0))
    mine = shares(x, y, 16)
    history = fit(model, *mine, epochs=1, callbacks=[hvd.callbacks.MetricAverageCallback()])
    (loss,) = history.history["loss"]
    np.testing.assert_allclose(loss, alone, rtol=1e-5)
    assert abs(float(model.evaluate(*mine, verbose=0)) - alone) > 1e-3


def learning_rates(tested: Frontend) -> None:
    keras, hvd, _ = tested
    seen: list[float] = []
    model = make_model(
        keras, hvd.DistributedOptimizer(keras.optimizers.SGD(0.08)), **tested.eagerly
    )

    def watch(*_: Any, **__: Any) -> None:
        # By the callback's attribute, for which JAX's state is brought up to date.
        seen.append(float(np.array(watching.model.optimizer.learning_rate)))

    hook = "on_train_batch_end" if is_keras_3(keras) else "on_batch_end"
    watching = keras.callbacks.LambdaCallback(**{hook: watch})
    callbacks = [
        hvd.callbacks.LearningRateWarmupCallback(0.08, warmup_epochs=2, verbose=1),
        hvd.callbacks.LearningRateScheduleCallback(0.08, 0.1, start_epoch=3, end_epoch=4),
        hvd.callbacks.LearningRateScheduleCallback(0.08, lambda epoch: epoch, start_epoch=4),
        watching,
    ]
    history = fit(model, *data(rows=16), epochs=5, callbacks=callbacks)
    # From a half to the whole over four batches, unchanged, the multiplier's 0th power, 4 times.
    expected = [0.05, 0.06, 0.07, 0.08, 0.08, 0.08, 0.08, 0.08, 0.32, 0.32]
    np.testing.assert_allclose(seen, expected, rtol=1e-5)
    np.testing.assert_allclose(history.history["lr"], expected[1::2], rtol=1e-5)
    with pytest.raises(ValueError, match="initial_lr"):
        hvd.callbacks.LearningRateScheduleCallback(None, 0.1)


def momentum_is_corrected(tested: Frontend) -> None:
    """With gradients of 1, what SGD remembers grows with the learning rate."""
    keras, hvd, _ = tested
    for corrected, expected in ((True, 0.1 + (0.9 * 0.2 + 0.2)), (False, 0.1 + (0.9 * 0.1 + 0.2))):
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
        model = keras.Sequential(
            [keras.layers.InputLayer((1,)), keras.layers.Dense(1, use_bias=False)]
        )
        model.compile(optimizer, "mae", **tested.eagerly)
        model.set_weights([np.array([[10.0]], np.float32)])
        schedule = hvd.callbacks.LearningRateScheduleCallback(
            0.1, lambda epoch: 1.0 + epoch, momentum_correction=corrected
        )
        x, y = np.ones((8, 1), np.float32), np.zeros((8, 1), np.float32)
        fit(model, x, y, epochs=2, callbacks=[schedule])
        np.testing.assert_allclose(weights(model)[0], [[10.0 - expected]], rtol=1e-5)


def best_model(tested: Frontend, path: Path) -> None:
    keras, hvd, _ = tested
    model = make_model(keras, hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    best = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    with pytest.raises(ValueError, match="filepath"):
        best.on_train_begin()
    if hvd.__name__ == "lightcc.tensorflow.keras":
        named = "a.weights.h5"
        given = hvd.callbacks.BestModelCheckpoint(save_weights_only=True, filepath=named)
        assert str(given.filepath) == named
    best.filepath = str(path)
    fit(model, *data(), callbacks=[hvd.callbacks.MetricAverageCallback(), best])
    loaded = keras.models.load_model(path)  # Without lightcc.
    assert type(loaded.optimizer).__mro__[1].__name__ != "_Keras3"
    np.testing.assert_allclose(loaded.predict(data()[0], verbose=0).shape, (32, 1))


def saved_and_loaded(tested: Frontend, path: Path) -> None:
    keras, hvd, _ = tested
    x, y = data(seed=lightcc.rank())
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    model = make_model(keras, optimizer)
    fit(model, x, y)
    model.save(path)
    plain = keras.models.load_model(path)
    loaded = hvd.load_model(path, compression=hvd.Compression.fp16)
    assert int(np.array(loaded.optimizer.iterations)) == 8
    for found, expected in zip(weights(loaded), weights(model), strict=True):
        assert np.array_equal(found, expected)
    fit(loaded, x, y)
    assert not differ(loaded)
    fit(plain, x, y)
    assert differ(plain)
    loaded = hvd.load_model(path)
    fit(loaded, x, y)
    fit(model, x, y)
    for found, expected in zip(weights(loaded), weights(model), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def batch_normalization(tested: Frontend) -> None:
    """Forward and backward on uneven parts are those of one rank with the whole batch."""
    if tested.name in ("torch", "jax"):
        with pytest.raises(AttributeError, match="for Keras on TensorFlow only"):
            _ = tested.hvd.SyncBatchNormalization
        return
    import tensorflow as tf

    import lightcc.tensorflow as hvd

    keras = tested.keras
    rank = lightcc.rank()
    whole = np.random.default_rng(3).normal(100.0, 2.0, (8, 5, 3)).astype(np.float32)
    ratio = np.random.default_rng(4).standard_normal((8, 5, 3)).astype(np.float32)
    mine = slice(0, 3) if rank == 0 else slice(3, 8)

    def run(layer: Any, x: Any, ratio: Any) -> tuple[Any, Any, Any]:
        x = tf.convert_to_tensor(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = layer(x, training=True)
            loss = tf.reduce_sum(out * ratio)
        return out, tape.gradient(loss, x), layer.moving_variance

    expected = run(keras.layers.BatchNormalization(), whole, ratio)
    for wrap in (lambda function: function, tf.function):
        layer = hvd.SyncBatchNormalization()
        layer.build(whole.shape)
        found = wrap(run)(layer, whole[mine], ratio[mine])
        for a, b in zip(found[:2], expected[:2], strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy()[mine], rtol=2e-3, atol=2e-4)
        np.testing.assert_allclose(np.array(found[2]), np.array(expected[2]), rtol=1e-3)
    assert hvd.SyncBatchNormalization(momentum=0.5).get_config()["momentum"] == 0.5
    with pytest.raises(ValueError, match="fused=True"):
        hvd.SyncBatchNormalization(fused=True)
    model = keras.Sequential([hvd.SyncBatchNormalization(), hvd.SyncBatchNormalization()])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    fit(model, *data(seed=rank)[:1], np.ones((32, 6), np.float32), epochs=1)
    assert not differ(model)
    assert is_keras_3(keras) == (tested.name == "tensorflow" and VERSION >= (3, 0))


@pytest.mark.parametrize("name", ALL)
def test_what_training_needs(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spawn_ranks(use, 2, name, folder, env=environment(name), timeout_s=110)
