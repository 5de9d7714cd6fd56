"""`Compression.auto` of Keras' optimizers, in graphs and in streams, over a slow link."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from keras_frontends import (
    NEEDS_KERAS_3,
    data,
    environment,
    fit,
    frontend,
    make_model,
    shares,
    weights,
)

import lightcc
from lightcc._adapter import compression_tuner
from lightcc.testing import spawn_ranks

pytestmark = pytest.mark.multiproc

TRIAL_STEPS = 7
#: Bytes per second; uncompressed gradients of the model take two thirds of a second.
SLOW = {"LIGHT_TOPK_THRESHOLD": "1K", "LIGHT_TCP_RATE": "200K"}


def digest_of(model: Any) -> str:
    return hashlib.sha256(b"".join(w.tobytes() for w in weights(model))).hexdigest()


def fit_over_a_slow_link(name: str, optimizer: str, options: dict[str, Any]) -> tuple[Any, str]:
    """Trains until a choice is made; returns the ways of weights, and a digest of them."""
    lightcc.init()
    compression_tuner.INT4_STEPS = 1
    tested = frontend(name)
    made: Any = getattr(tested.keras.optimizers, optimizer)(0.001)
    wrapped = tested.hvd.DistributedOptimizer(
        made, compression=tested.hvd.Compression.auto(warmup_steps=2), **options
    )
    model = make_model(tested.keras, wrapped, width=4000)
    passes = options.get("backward_passes_per_step", 1)
    trials = 5 if optimizer == "SGD" else 3
    steps = passes * (2 + trials * TRIAL_STEPS + 4)
    x, y = shares(*data(rows=8 * steps), 8)
    fit(model, x, y, batch=4, epochs=1)
    return model.optimizer.compression_choices(), digest_of(model)


# Keras 2 has the exchange of the first, JAX that of the second.
@pytest.mark.parametrize("name", ["tensorflow", pytest.param("torch", marks=NEEDS_KERAS_3)])
def test_fit_chooses_a_way_over_a_slow_link(name: str) -> None:
    env = {**environment(name), **SLOW}
    first, second = spawn_ranks(
        *(fit_over_a_slow_link, 2, name, "SGD", {}), env=env, hosts=["a", "b"], timeout_s=300
    )
    assert first == second
    choices, _ = first
    assert len(choices) == 3, choices  # One weight has 4 bytes.
    (way,) = set(choices.values())
    assert way != "uncompressed"


def test_passes_are_added_up_before_a_step_chooses() -> None:
    env = {**environment("tensorflow"), **SLOW}
    passes = {"backward_passes_per_step": 2}
    first, second = spawn_ranks(
        *(fit_over_a_slow_link, 2, "tensorflow", "Adam", passes),
        env=env,
        hosts=["a", "b"],
        timeout_s=300,
    )
    assert first == second
    (way,) = set(first[0].values())
    assert way in ("int8", "int4")  # No top-k where gradients are squared.


def refused() -> None:
    lightcc.init()
    tested = frontend("tensorflow")
    keras, hvd = tested.keras, tested.hvd
    for optimizer, least in (("SGD", "top-k at 0.01"), ("Adam", "int4")):
        inner = getattr(keras.optimizers, optimizer)(0.1)
        with pytest.raises(ValueError, match=f"budget is 0.001: the least .* is {least}"):
            hvd.DistributedOptimizer(inner, compression=hvd.Compression.auto(budget=0.001))
    with pytest.raises(ValueError, match="auto compression needs op=Average or op=Sum"):
        hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.1), compression=hvd.Compression.auto, op=hvd.Max
        )


def test_what_cannot_be_is_refused() -> None:
    spawn_ranks(refused, 1)
