"""DistributedOptimizer under Keras, on each backend: two ranks train as one, and stay alike."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import pytest
from keras_frontends import (
    ALL,
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
from lightcc.testing import RankProcesses, mark, spawn_ranks

pytestmark = pytest.mark.multiproc

ONLY_RANK_0 = lightcc.ProcessSet([0])


def train(name: str) -> None:
    warnings.simplefilter("ignore")
    lightcc.init(process_sets=[ONLY_RANK_0])
    tested = frontend(name)
    if name == "torch":
        trace_without_compiling()
    only_the_wrapped_optimizer_keeps_replicas_alike(tested)
    what_compilation_does(tested)
    as_one_rank_with_the_whole_batch(tested)
    arguments_of_all_kinds(tested)
    overflow_on_one_rank(tested)
    state_is_taken_over(tested)
    members_only(tested)
    wrong_arguments(tested)
    if name == "torch":
        a_variable_without_a_gradient(tested)
    if name in ("tensorflow", "keras2"):
        custom_loops(tested)
        sparse_gradients(tested)


def sgd(keras: Any, **arguments: Any) -> Any:
    return keras.optimizers.SGD(0.01, **arguments)


def only_the_wrapped_optimizer_keeps_replicas_alike(tested: Frontend) -> None:
    """One step with other data on each rank.

    Horovod overrides what Keras 3 does not call, so that its optimizer trains each rank alone.
    """
    keras, hvd, _ = tested
    x, y = data(seed=lightcc.rank())

    class Horovods(type(sgd(keras))):  # type: ignore[misc]
        def get_gradients(self, *_: Any) -> None:
            raise AssertionError

        def _aggregate_gradients(self, *_: Any) -> None:
            raise AssertionError

    alone = make_model(keras, Horovods(0.01), **tested.eagerly)
    assert not differ(alone)
    fit(alone, x[:8], y[:8], epochs=1)
    assert differ(alone)
    together = make_model(keras, hvd.DistributedOptimizer(sgd(keras)))
    fit(together, x[:8], y[:8], epochs=1)
    assert not differ(together)


def trace_without_compiling() -> None:
    """Leaves out torch's compiler, which takes 30 s; what matters here is what it is given."""
    import torch

    torch.compile = functools.partial(torch.compile, backend="eager")


def what_compilation_does(tested: Frontend) -> None:
    keras, hvd, name = tested
    x, y = data(seed=lightcc.rank())
    for jit in ("auto", True, False) if is_keras_3(keras) else (None, False):
        optimizer = hvd.DistributedOptimizer(sgd(keras, momentum=0.9))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = make_model(keras, optimizer, jit_compile=jit)
        said = any("support `jit_compile=True`" in str(warning.message) for warning in caught)
        assert said == (name == "tensorflow" and jit is True)
        fit(model, x, y)
        assert not differ(model), jit
    if name == "tensorflow" and is_keras_3(keras):
        a_function_that_xla_compiles_is_refused(tested)
    if not is_keras_3(keras):
        model = make_model(keras, hvd.DistributedOptimizer(sgd(keras)), jit_compile=True)
        with pytest.raises(NotImplementedError, match="jit_compile=False"):
            fit(model, x, y)


def a_function_that_xla_compiles_is_refused(tested: Frontend) -> None:
    import tensorflow as tf

    keras, hvd, _ = tested
    optimizer = hvd.DistributedOptimizer(sgd(keras))
    weight = keras.Variable(1.0)
    optimizer.build([weight])

    def step() -> None:
        optimizer.apply([tf.constant(1.0)], [weight])

    compiled = tf.function(step, jit_compile=True)
    with pytest.raises(NotImplementedError, match="jit_compile=False"):
        compiled()


def as_one_rank_with_the_whole_batch(tested: Frontend) -> None:
    keras, hvd, _ = tested
    x, y = data()
    makes: list[Any] = [
        lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=3),
        # The norm of the averages is clipped: a rank's own gradients have a larger one.
        lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, global_clipnorm=0.1),
    ]
    for make in makes:
        alone = make_model(keras, make(), **tested.eagerly)
        fit(alone, x, y, batch=16)
        model = make_model(keras, hvd.DistributedOptimizer(make()))
        fit(model, *shares(x, y, 16), batch=8)
        assert not differ(model)
        for found, expected in zip(weights(model), weights(alone), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def arguments_of_all_kinds(tested: Frontend) -> None:
    keras, hvd, name = tested
    x, y = data()
    plain = make_model(keras, hvd.DistributedOptimizer(sgd(keras)), **tested.eagerly)
    fit(plain, *shares(x, y, 16))
    ways: list[dict[str, Any]] = [
        {"groups": 2, "gradient_predivide_factor": 2.0},
        {"allreduce_type": "normal"},
        {"fusion_type": "piecewise_fusion", "piecewise_fusion_schedule": "0;2"},
        {"compression": hvd.Compression.topk(ratio=0.5)},  # On one host everything travels.
    ]
    for way in ways:
        model = make_model(keras, hvd.DistributedOptimizer(sgd(keras), **way), **tested.eagerly)
        fit(model, *shares(x, y, 16))
        for found, expected in zip(weights(model), weights(plain), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=str(way))
    optimizer = hvd.DistributedOptimizer(sgd(keras), compression=hvd.Compression.fp16)
    half = make_model(keras, optimizer, **tested.eagerly)
    fit(half, *shares(x, y, 16))
    assert not differ(half)
    np.testing.assert_allclose(weights(half)[0], weights(plain)[0], atol=0.02)
    if name == "jax":
        with pytest.raises(NotImplementedError, match="gradient_accumulation_steps"):
            hvd.DistributedOptimizer(sgd(keras), backward_passes_per_step=2)
        return
    # Two passes of 4 rows on each of 2 ranks are a step of 16 rows.
    passes = hvd.DistributedOptimizer(
        sgd(keras), backward_passes_per_step=2, average_aggregated_gradients=True
    )
    model = make_model(keras, passes)
    mine = shares(x, y, 16)
    fit(model, mine[0][:12], mine[1][:12], batch=4, epochs=1)
    assert int(np.array(passes._agg_helper.counter)) == 1
    fit(model, mine[0][12:], mine[1][12:], batch=4, epochs=1)
    fit(model, *mine, batch=4, epochs=1)
    assert int(np.array(passes._agg_helper.counter)) == 0
    for found, expected in zip(weights(model), weights(plain), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert int(np.array(passes.iterations)) == 8


def overflow_on_one_rank(tested: Frontend) -> None:
    """Ranks take or skip a step together, whichever optimizer is within the other."""
    keras, hvd, _ = tested
    scaling = (
        keras.optimizers.LossScaleOptimizer
        if is_keras_3(keras)
        else keras.mixed_precision.LossScaleOptimizer
    )
    x, y = data()
    x[0] = np.inf if lightcc.rank() == 1 else x[0]
    for optimizer in (
        hvd.DistributedOptimizer(scaling(sgd(keras))),
        scaling(hvd.DistributedOptimizer(sgd(keras))),
    ):
        model = make_model(keras, optimizer)
        before = weights(model)
        fit(model, x[:8], y[:8], epochs=1)
        assert all(np.array_equal(a, b) for a, b in zip(weights(model), before, strict=True))
        fit(model, x[8:], y[8:])
        assert not differ(model)
        assert not np.array_equal(weights(model)[0], before[0])


def state_is_taken_over(tested: Frontend) -> None:
    keras, hvd, _ = tested
    optimizer = keras.optimizers.Adam(0.01)
    distributed = hvd.DistributedOptimizer(optimizer)
    assert type(distributed).__name__ == "Adam"
    assert distributed.get_config() == optimizer.get_config()
    again = type(distributed).from_config(distributed.get_config())
    model = make_model(keras, again, **tested.eagerly)
    fit(model, *data(seed=lightcc.rank()))
    assert not differ(model)
    if is_keras_3(keras):
        alone = make_model(keras, optimizer, **tested.eagerly)
        fit(alone, *data())
        taken = hvd.DistributedOptimizer(optimizer)
        for found, expected in zip(taken.variables(), optimizer.variables, strict=True):
            assert np.array_equal(np.array(found), np.array(expected))


def members_only(tested: Frontend) -> None:
    keras, hvd, _ = tested
    optimizer = hvd.DistributedOptimizer(sgd(keras), process_set=ONLY_RANK_0)
    model = make_model(keras, optimizer, **tested.eagerly)
    fit(model, *data(seed=lightcc.rank()))
    assert differ(model)
    local = make_model(keras, sgd(keras))
    partial = hvd.PartialDistributedOptimizer(sgd(keras), local_layers=local.layers[-1])
    local.compile(partial, "mse", **tested.eagerly)
    fit(local, *data(seed=lightcc.rank()))
    assert differ(local)
    digests = lightcc.allgather_object([w.tobytes() for w in weights(local)])
    assert [a == b for a, b in zip(*digests, strict=True)][-2:] == [False, False]


def wrong_arguments(tested: Frontend) -> None:
    keras, hvd, _ = tested
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd(keras)))
    with pytest.raises(TypeError, match="expected an optimizer object of Keras"):
        hvd.DistributedOptimizer("sgd")
    with pytest.raises(TypeError, match="compression is 3"):
        hvd.DistributedOptimizer(sgd(keras), compression=3)
    with pytest.raises(ValueError, match="must be > 0"):
        hvd.DistributedOptimizer(sgd(keras), backward_passes_per_step=0)
    with pytest.raises(ValueError, match="gradient_predivide_factor not supported"):
        hvd.DistributedOptimizer(sgd(keras), gradient_predivide_factor=2.0, op=hvd.Sum)
    topk = hvd.Compression.topk(momentum_correction=True)
    with pytest.raises(ValueError, match="give it as a number"):
        hvd.DistributedOptimizer(sgd(keras, momentum=0.9), compression=topk)
    with pytest.raises(ValueError, match="'fusion' or 'normal'"):
        hvd.DistributedOptimizer(sgd(keras), allreduce_type="other")
    if keras.backend.backend() == "jax":
        with pytest.raises(AttributeError, match="does not support elastic jobs with JAX yet"):
            _ = hvd.elastic


def custom_loops(tested: Frontend) -> None:
    """Gradients are combined once, whoever computes them."""
    import tensorflow as tf

    keras, hvd, _ = tested
    rank = lightcc.rank()

    def loop(step: Any) -> None:
        for run in (step, tf.function(step)):
            weight = tf.Variable(10.0)
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
            _ = optimizer.iterations
            run_once = run if run is step else tf.function(step)
            if hasattr(optimizer, "build"):
                optimizer.build([weight])
            run_once(optimizer, weight)
            assert float(weight) == 10.0 - 3.0, run  # The gradients are 1 and 2.

    def own(optimizer: Any, weight: Any) -> None:
        with tf.GradientTape() as tape:
            loss = weight * (rank + 1.0)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    def computed(optimizer: Any, weight: Any) -> None:
        pairs = optimizer._compute_gradients(lambda: weight * (rank + 1.0), [weight])
        optimizer.apply_gradients([(gradient * 1.0, variable) for gradient, variable in pairs])

    loop(own)
    loop(computed)


def a_variable_without_a_gradient(tested: Frontend) -> None:
    """It stays as it is where no rank has one, also when several passes are added up."""
    import torch

    keras, hvd, _ = tested
    for passes in (1, 2):
        used, unused = keras.Variable(10.0), keras.Variable(5.0)
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(1.0), op=hvd.Sum, backward_passes_per_step=passes
        )
        for _ in range(passes):
            optimizer.apply([None, torch.tensor(lightcc.rank() + 1.0)], [unused, used])
        assert float(used.numpy()) == 10.0 - 3.0 * passes
        assert float(unused.numpy()) == 5.0


def sparse_gradients(tested: Frontend) -> None:
    keras, hvd, _ = tested
    rows = np.arange(4).reshape(2, 2) + lightcc.rank()
    for as_dense in (False, True):
        optimizer = hvd.DistributedOptimizer(sgd(keras), sparse_as_dense=as_dense)
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Embedding(8, 4)])
        model.compile(optimizer, "mse", run_eagerly=as_dense)
        fit(model, rows, np.ones((2, 2, 4), np.float32))
        assert not differ(model)


@pytest.mark.parametrize("name", ALL)
def test_optimizer(name: str) -> None:
    spawn_ranks(train, 2, name, env=environment(name), timeout_s=200)


def outlive(name: str) -> str:
    warnings.simplefilter("ignore")
    lightcc.init()
    keras, hvd, _ = frontend(name)
    model = make_model(keras, hvd.DistributedOptimizer(sgd(keras)))
    fit(model, *data(), epochs=1)
    mark("running")
    try:
        fit(model, *data(), epochs=1_000_000)
    except Exception as error:  # noqa: BLE001  its class is what the test looks at.
        return f"{type(error).__name__}: {error}"
    return "trained to the end"


def test_a_killed_rank_ends_fit_with_a_typed_error() -> None:
    with RankProcesses(outlive, 2, "tensorflow", env=environment("tensorflow")) as ranks:
        ranks.wait_mark("running", timeout_s=90)
        ranks.kill(1)
        (result,) = ranks.wait(30, ranks=[0])
    assert result.ok, result.describe()
    assert result.value is not None
    assert result.value.startswith("AbortedError")
    assert "rank 1" in result.value


def compressed(name: str) -> list[float]:
    warnings.simplefilter("ignore")
    lightcc.init()
    keras, hvd, _ = frontend(name)
    sent = []
    for compression in (hvd.Compression.none, hvd.Compression.topk(ratio=0.05)):
        optimizer = hvd.DistributedOptimizer(sgd(keras), compression=compression)
        model = make_model(keras, optimizer, width=2048)
        before = lightcc.stats()["network_bytes_sent"]
        fit(model, *data(seed=lightcc.rank()))
        sent.append(float(lightcc.stats()["network_bytes_sent"] - before))
        assert not differ(model)
    return sent


def test_topk_sends_less_between_hosts_and_keeps_replicas_alike() -> None:
    name = "tensorflow"
    variables = {**environment(name), "LIGHT_TOPK_THRESHOLD": "1K", "LIGHT_2D_ALLREDUCE": "1"}
    for dense, topk in spawn_ranks(compressed, 2, name, env=variables, hosts=["a", "b"]):
        assert 0.0 < topk < dense / 2
