"""Tapes and optimizers: two ranks train as one would with both batches, and stay alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import lightcc.tensorflow as hvd
from lightcc.testing import RankProcesses, mark, spawn_ranks

pytestmark = pytest.mark.multiproc

STEPS = 4


def data() -> tuple[Any, Any]:
    generator = np.random.default_rng(7)
    x = generator.standard_normal((8, 6)).astype(np.float32)
    return x, (x @ np.arange(6, dtype=np.float32)[:, None]).astype(np.float32)


def variables() -> list[Any]:

    return [
        tf.Variable(initial()[0], name="encoder/kernel"),
        tf.Variable(initial()[1], name="encoder/bias"),
        tf.Variable(initial()[2], name="decoder/kernel"),
    ]


def loss_of(weights: list[Any], x: Any, y: Any) -> Any:
    hidden = tf.nn.relu(x @ weights[0] + weights[1])
    return tf.reduce_mean((hidden @ weights[2] - y) ** 2)


def train(rank: int, size: int, *, in_function: bool, **arguments: Any) -> list[Any]:
    """Trains on the rank's share of the data; returns the weights."""
    x, y = (tf.constant(part[rank::size]) for part in data())
    weights = variables()

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(weights, x, y)
        if size > 1:
            tape = hvd.DistributedGradientTape(tape, **arguments)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.01 * gradient)

    run = tf.function(step) if in_function else step
    for _ in range(STEPS):
        run()
    return [weight.numpy() for weight in weights]


def close(found: list[Any], expected: list[Any], tolerance: float = 1e-5) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def training() -> None:
    hvd.init()
    expected = train(0, 1, in_function=False)
    ways: list[dict[str, Any]] = [
        {},
        {"groups": 2},
        {"gradient_predivide_factor": 2.0},
        {"allreduce_type": "normal"},
        {"fusion_type": "auto_fusion", "auto_fusion_threshold": 64},
        {"fusion_type": "piecewise_fusion", "piecewise_fusion_schedule": "0;2"},
        {"fusion_type": "scopewise_fusion", "scopewise_fusion_schedule": "encoder;decoder"},
        {"compression": hvd.Compression.topk(ratio=0.5)},  # On one host everything travels.
        {"compression": hvd.Compression.int4},
    ]
    for in_function in (False, True):
        for way in ways:
            close(train(hvd.rank(), 2, in_function=in_function, **way), expected)
    half = train(hvd.rank(), 2, in_function=True, compression=hvd.Compression.fp16)
    close(half, expected, 1e-2)
    for strategy in ("arrival", "model"):
        with pytest.raises(ValueError, match="use auto_fusion"):
            hvd.DistributedGradientTape(tf.GradientTape(), fusion_type=strategy)
    momentum = tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)
    with pytest.raises(ValueError, match="give it as a number, and none to the optimizer"):
        hvd.DistributedOptimizer(
            momentum, compression=hvd.Compression.topk(momentum_correction=True)
        )
    tapes()
    sessions(expected)
    aggregation()


def quantized() -> int:
    """Trains between two hosts; returns how many gradients were compressed."""
    hvd.init()
    expected = train(0, 1, in_function=False)
    for compression in (hvd.Compression.int8, hvd.Compression.int4):
        for in_function in (False, True):
            found = train(hvd.rank(), 2, in_function=in_function, compression=compression)
            close(found, expected, 0.05)
    return int(hvd.stats()["compressed_tensors"])


def in_8_and_in_4_bits() -> list[list[float]]:
    """Returns what a host sends whose other has zeros, by int8 and by int4."""
    hvd.init()
    x = tf.constant([7.0, 0.6, -0.6, 0.0]) * (1.0 - hvd.rank())
    compressors = {"int8": hvd.Compression.int8, "int4": hvd.Compression.int4}

    def combine() -> Any:
        return [
            hvd.allreduce(x, name=name, op=hvd.Sum, compression=compressor)
            for name, compressor in compressors.items()
        ]

    return [sent.numpy().tolist() for sent in tf.function(combine)()]


def tapes() -> None:
    rank = hvd.rank()
    a, b, table = tf.Variable(1.0), tf.Variable(2.0), tf.Variable(tf.ones([4, 2]))

    def gradients(**arguments: Any) -> Any:
        with hvd.DistributedGradientTape(tf.GradientTape(persistent=True), **arguments) as tape:
            loss = (a * b + tf.reduce_sum(tf.gather(table, [rank]))) * (rank + 1.0)
        return tape.gradient(loss, {"a": a, "table": table})

    for run in (gradients, tf.function(gradients)):
        found = run()
        assert float(found["a"]) == 3.0
        assert found["table"].indices.numpy().tolist() == [0, 1]
        dense = tf.convert_to_tensor(found["table"]).numpy()
        assert dense.tolist() == [[0.5, 0.5], [1, 1], [0, 0], [0, 0]]
        assert float(run(op=hvd.Sum)["a"]) == 6.0
    assert not isinstance(gradients(sparse_as_dense=True)["table"], tf.IndexedSlices)

    def of_table(**arguments: Any) -> Any:
        with hvd.DistributedGradientTape(tf.GradientTape(), **arguments) as tape:
            loss = tf.reduce_sum(tf.gather(table, [rank]))
        return tape.gradient(loss, [table])

    for run in (of_table, tf.function(of_table)):  # Nobody waits for the others' kind.
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"sparse gradient is gathered"):
            run(sparse_as_dense=rank == 0)

    with tf.GradientTape() as plain:
        loss = a * b * (rank + 1.0) + tf.reduce_sum(a * 0.0)
    tape = hvd.DistributedGradientTape(plain)
    tape.register_local_source(a)
    local, shared = tape.get_local_and_global_gradients(loss, [a, b, table])
    ((source, gradient),) = local
    assert source is a
    assert float(gradient) == rank + 1.0  # 2 * (rank + 1), divided by two ranks.
    (source, gradient), (unused, none) = shared
    assert source is b
    assert float(gradient) == 1.5
    assert unused is table
    assert none is None


def sessions(expected: list[Any]) -> None:
    rank = hvd.rank()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x, y = (tf.constant(part[rank::2]) for part in data())
        weights = [
            tf.compat.v1.get_variable(f"w{i}", initializer=v) for i, v in enumerate(initial())
        ]
        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.01))
        step = optimizer.minimize(loss_of(weights, x, y), var_list=weights)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(hvd.broadcast_global_variables(0))
        for _ in range(STEPS):
            session.run(step)
        close(session.run(weights), expected)
        assert optimizer.get_slot_names() == []


def initial() -> list[Any]:
    return [
        np.linspace(-1, 1, 24, dtype=np.float32).reshape(6, 4),
        np.zeros(4, np.float32),
        np.ones((4, 1), np.float32),
    ]


def aggregation() -> None:
    """Three passes with the gradients 1, 2 and 3 (rank 0) or twice that make one step."""
    for average, change in ((False, 9.0), (True, 3.0)):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            pass_number = tf.compat.v1.placeholder(tf.float32, [])
            weight = tf.compat.v1.get_variable("w", initializer=0.0)
            optimizer = hvd.DistributedOptimizer(
                tf.compat.v1.train.GradientDescentOptimizer(1.0),
                backward_passes_per_step=3,
                average_aggregated_gradients=average,
            )
            step = optimizer.minimize(weight * pass_number * (hvd.rank() + 1.0))
            session.run(tf.compat.v1.global_variables_initializer())
            for expected in (-change, -2 * change):
                for number in (1.0, 2.0, 3.0):
                    assert session.run(weight) == expected + change
                    session.run(step, {pass_number: number})
                assert session.run(weight) == expected


def test_gradients_travel_quantised_between_hosts() -> None:
    env = {"LIGHT_TOPK_THRESHOLD": "0"}
    counts = spawn_ranks(quantized, 2, env=env, hosts=[0, 1])
    assert counts == [4 * STEPS * len(variables())] * 2


def test_the_bits_are_as_many_as_were_asked_for() -> None:
    env = {"LIGHT_TOPK_THRESHOLD": "0"}
    by_int8, by_int4 = spawn_ranks(in_8_and_in_4_bits, 2, env=env, hosts=[0, 1])[1]
    assert by_int8 == pytest.approx([7.0, 0.6, -0.6, 0.0], abs=0.05)
    assert by_int4 == [7.0, 1.0, -1.0, 0.0]


def test_training() -> None:
    spawn_ranks(training, 2, timeout_s=100)


def outlive() -> str:
    hvd.init()
    run = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
    x = tf.ones([1 << 12])
    run(x)
    mark("running")
    try:
        while True:
            run(x)
    except tf.errors.AbortedError as error:
        return str(error)


def test_a_killed_rank_aborts_the_step_of_the_others() -> None:
    with RankProcesses(outlive, 2) as ranks:
        ranks.wait_mark("running", timeout_s=90)
        ranks.kill(1)
        (result,) = ranks.wait(30, ranks=[0])
    assert result.ok, result.describe()
    assert result.value is not None
    assert "rank 1" in result.value


def compiled_functions() -> None:
    hvd.init()
    weights = variables()
    x, y = (tf.constant(part) for part in data())

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(weights, x, y)
        return hvd.DistributedGradientTape(tape).gradient(loss, weights)[0]

    compiled = tf.function(step, jit_compile=True)
    with pytest.raises(NotImplementedError, match="Set jit_compile=False"):
        compiled()
    with pytest.raises(NotImplementedError, match="Set jit_compile=False"):
        tf.function(lambda: hvd.allreduce(x), jit_compile=True)()

    # What talks to nobody may be compiled.
    gradients_of = tf.function(
        lambda: tf.gradients(loss_of(weights, x, y), weights), jit_compile=True
    )

    @tf.function  # type: ignore[untyped-decorator]
    def outer() -> Any:
        return hvd.grouped_allreduce(gradients_of())

    close([outer()[0].numpy()], [tf.function(step)().numpy()])


def test_xla_is_refused_with_words_that_say_what_to_set() -> None:
    spawn_ranks(compiled_functions, 2)
