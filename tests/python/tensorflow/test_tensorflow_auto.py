"""`Compression.auto` of tapes and graphs: steps of one graph travel in different ways."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import lightcc.tensorflow as hvd
from lightcc._adapter import compression_tuner
from lightcc.tensorflow._library import ops
from lightcc.testing import RankProcesses, spawn_ranks

pytestmark = pytest.mark.multiproc

#: A trial has seven steps.
TRIAL_STEPS = 7
#: Steps of a tape: the warm-up, three trials, and some steps in what was chosen.
SUM_STEPS = 2 + 3 * TRIAL_STEPS + 2
HOSTS = ["a", "b"]
#: Everything is large enough for compression.
SMALL = {"LIGHT_TOPK_THRESHOLD": "0"}
TIMES = {"uncompressed": 1.0, "int8": 0.5, "int4": 0.3, "top-k at 0.05": 0.2, "top-k at 0.01": 0.1}
SHAPES = {"dense/kernel": (40, 5), "dense/bias": (1000,), "other": (3, 3)}


class Clock:
    """Says that steps take as long as the way in which gradients travel is told to."""

    def __init__(self, steps: Any, seconds: dict[str, float]) -> None:
        self._steps, self._seconds = steps, seconds
        self._now = 0.0

    def __call__(self) -> float:
        self._now += max(self._seconds[way] for way in self._steps.choices().values())
        return self._now


def follow(exchange: Any, seconds: dict[str, float]) -> None:
    """Gives what was made in the first step a clock of the test."""
    (steps,) = exchange._own_steps
    steps._tuner._clock = Clock(steps, seconds)


def gradients_of(step: Any, rank: int) -> list[Any]:
    """Returns gradients of a step, which may be a tensor of a graph."""
    return [
        tf.random.stateless_normal(shape, tf.stack([tf.cast(step, tf.int32), 10 * rank + i]))
        for i, shape in enumerate(SHAPES.values())
    ]


def tape_with(gradients: list[Any], weights: list[Any]) -> tuple[Any, Any]:
    """Returns a tape that has recorded a loss with these gradients, and the loss."""
    with tf.GradientTape() as tape:
        pairs = zip(weights, gradients, strict=True)
        loss = tf.add_n([tf.reduce_sum(weight * g) for weight, g in pairs])
    return tape, loss


def sums_arrive(in_function: bool, fusion: dict[str, Any]) -> tuple[list[str], list[bytes]]:
    """Adds up gradients that end uncompressed: no residual may be missing."""
    hvd.init()
    weights = [tf.Variable(tf.zeros(shape), name=name) for name, shape in SHAPES.items()]
    compression = hvd.Compression.auto(warmup_steps=2)
    tapes: list[Any] = []

    def step(number: Any) -> None:
        tape, loss = tape_with(gradients_of(number, hvd.rank()), weights)
        tape = hvd.DistributedGradientTape(tape, compression=compression, op=hvd.Sum, **fusion)
        tapes.append(tape)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_add(gradient)

    run = tf.function(step) if in_function else step
    ways: list[str] = []
    for number in range(SUM_STEPS):
        run(tf.constant(number))
        if number == 0:
            follow(tapes[0]._exchange, {**TIMES, "uncompressed": 0.1})
        found = tapes[-1].compression_choices()
        assert {name.partition(":")[0] for name in found} == set(SHAPES)
        ways += set(found.values())
    assert len(tapes) == (1 if in_function else SUM_STEPS)
    expected = [np.zeros(shape) for shape in SHAPES.values()]
    for number in range(SUM_STEPS):
        for rank in range(2):
            for total, gradient in zip(expected, gradients_of(number, rank), strict=True):
                total += gradient.numpy()
    for weight, total in zip(weights, expected, strict=True):
        np.testing.assert_allclose(weight.numpy(), total, rtol=1e-4, atol=1e-3)
    kept = [t for t in hvd.stats().compression if t.kept_energy > 0]
    assert kept, "there was never a residual, so this test says nothing"
    return ways, [weight.numpy().tobytes() for weight in weights]


@pytest.mark.parametrize(
    ("in_function", "fusion"),
    [
        (False, {}),
        (True, {}),
        (True, {"fusion_type": "piecewise_fusion", "piecewise_fusion_schedule": "0;2"}),
        (True, {"num_groups": 2}),
    ],
)
def test_steps_of_one_graph_travel_in_each_way_and_all_arrives(
    in_function: bool, fusion: dict[str, Any]
) -> None:
    (ways, mine), other = spawn_ranks(sums_arrive, 2, in_function, fusion, env=SMALL, hosts=HOSTS)
    assert other == (ways, mine)
    trials = [way for way in ("uncompressed", "int8", "int4") for _ in range(TRIAL_STEPS)]
    # What is said after a step is how the next one travels, or in a graph this one.
    assert ways[:2] == ["int8", "int8"]
    assert ways[2 : 2 + len(trials)] == trials
    assert ways[2 + len(trials) :] == ["uncompressed"] * 2


def the_optimizer_of_a_session(adaptive: bool) -> tuple[str, bytes]:
    hvd.init()
    compression_tuner.INT4_STEPS = 1
    tf.compat.v1.disable_eager_execution()
    weights = [
        tf.compat.v1.get_variable(name.replace("/", "_"), initializer=tf.zeros(shape))
        for name, shape in SHAPES.items()
    ]
    number = tf.compat.v1.placeholder(tf.int32, [])
    gradients = gradients_of(number, hvd.rank())
    loss = tf.add_n([tf.reduce_sum(w * g) for w, g in zip(weights, gradients, strict=True)])
    v1: Any = tf.compat.v1.train
    inner = v1.AdamOptimizer(0.01) if adaptive else v1.MomentumOptimizer(0.01, 0.9)
    optimizer = hvd.DistributedOptimizer(
        inner, compression=hvd.Compression.auto(warmup_steps=3), backward_passes_per_step=2
    )
    train = optimizer.minimize(loss)
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        for step in range(2 * (3 + 5 * TRIAL_STEPS + 4)):
            session.run(train, {number: step})
            if step == 1:  # The second pass is the first step.
                follow(optimizer._exchange, TIMES)
        (way,) = set(optimizer.compression_choices().values())
        return way, b"".join(session.run(weight).tobytes() for weight in weights)


@pytest.mark.parametrize(("adaptive", "expected"), [(False, "top-k at 0.01"), (True, "int4")])
def test_an_optimizer_in_a_session_chooses_as_suits_it(adaptive: bool, expected: str) -> None:
    found = spawn_ranks(the_optimizer_of_a_session, 2, adaptive, env=SMALL, hosts=HOSTS)
    assert [way for way, _ in found] == [expected] * 2
    assert found[0] == found[1]


def outlive() -> str:
    """Rank 1 ends where ranks are about to choose; the other one is told in words of its step."""
    hvd.init()
    weights = [tf.Variable(tf.zeros((40, 5)), name="w")]

    @tf.function  # type: ignore[untyped-decorator]
    def step(number: Any) -> None:
        tape, loss = tape_with(gradients_of(number, hvd.rank())[:1], weights)
        compression = hvd.Compression.auto(warmup_steps=0)
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        weights[0].assign_sub(tape.gradient(loss, weights)[0])

    for number in range(3 * TRIAL_STEPS):
        step(tf.constant(number))
    if hvd.rank() == 1:
        os._exit(17)
    try:
        step(tf.constant(0))
    except tf.errors.AbortedError as error:
        return str(error)
    return "no error"


def test_a_rank_that_is_gone_when_others_choose_aborts_their_step() -> None:
    with RankProcesses(outlive, 2, env=SMALL, hosts=HOSTS) as processes:
        (first,) = processes.wait(120, ranks=[0])
    assert first.ok, first.describe()
    assert first.value is not None
    assert "rank 1" in first.value


def on_one_host() -> None:
    hvd.init()
    weights = [tf.Variable(tf.ones((40, 5)), name="w")]
    for op in (hvd.Min, hvd.Adasum):
        with pytest.raises(ValueError, match="auto compression needs op=Average or op=Sum"):
            hvd.DistributedGradientTape(tf.GradientTape(), compression=hvd.Compression.auto, op=op)
    with pytest.raises(ValueError, match=r"budget is 0\.001: the least .* is int4"):
        hvd.DistributedGradientTape(
            tf.GradientTape(), compression=hvd.Compression.auto(budget=0.001)
        )
    with pytest.raises(ValueError, match="auto compression is for DistributedOptimizer and"):
        hvd.allreduce(tf.ones(3), name="x", compression=hvd.Compression.auto)
    for number in range(3):
        tape, loss = tape_with(gradients_of(number, hvd.rank())[:1], weights)
        tape = hvd.DistributedGradientTape(tape, compression=hvd.Compression.auto)
        (gradient,) = tape.gradient(loss, weights)
        each = [gradients_of(number, rank)[0].numpy() for rank in range(2)]
        np.testing.assert_allclose(gradient.numpy(), np.mean(each, axis=0), rtol=1e-6)
        assert tape.compression_choices() == {}
    for ways in ([[3.0, 0.0]], [[0.0, 2.0]], [[0.0, 0.0], [0.0, 0.0]]):
        with pytest.raises(tf.errors.InvalidArgumentError):
            ops.lightcc_tuned_allreduce(weights, ways, names=["refused"])
    with tf.GradientTape() as tape:
        (total,) = ops.lightcc_tuned_allreduce(weights, [[8.0, 0.0]], names=["total"])
        loss = tf.reduce_sum(total) * (hvd.rank() + 1)
    np.testing.assert_array_equal(total.numpy(), np.full((40, 5), 2.0))
    np.testing.assert_array_equal(tape.gradient(loss, weights)[0].numpy(), np.full((40, 5), 3.0))


def test_on_one_host_nothing_is_compressed_and_what_cannot_be_is_refused() -> None:
    spawn_ranks(on_one_host, 2)
