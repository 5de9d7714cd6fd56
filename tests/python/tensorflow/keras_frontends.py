"""What the tests of Keras share: which Keras there is to test, models, and proofs of likeness.

Nothing here imports Keras, TensorFlow, torch or JAX before a rank asks for it: the variables that
choose one are the rank's.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
from typing import Any, NamedTuple

import numpy as np
import pytest

import lightcc


class Frontend(NamedTuple):
    """A Keras to test, and lightcc's module for it."""

    keras: Any
    hvd: Any
    name: str

    @property
    def eagerly(self) -> dict[str, bool]:
        """Arguments of `compile()` that save TensorFlow's tracing, which takes most of a test."""
        return {"run_eagerly": True} if self.name in ("tensorflow", "keras2") else {}


#: The version of the package keras, which before TensorFlow 2.16 is Keras 2.
VERSION = tuple(int(number) for number in importlib.metadata.version("keras").split(".")[:2])

#: By name: the module, and the environment of a rank.
FRONTENDS: dict[str, tuple[str, dict[str, str]]] = {
    "tensorflow": ("lightcc.tensorflow.keras", {}),
    "keras2": ("lightcc.tensorflow.keras", {"TF_USE_LEGACY_KERAS": "1"}),
    "torch": ("lightcc.keras", {"KERAS_BACKEND": "torch"}),
    "jax": ("lightcc.keras", {"KERAS_BACKEND": "jax"}),
}
NEEDS_KERAS_3 = pytest.mark.skipif(
    VERSION < (3, 0),
    reason="TensorFlow below 2.16 has Keras 2 only, which the other tests use there",
)
ALL = [
    pytest.param(name, marks=() if name == "tensorflow" else NEEDS_KERAS_3) for name in FRONTENDS
]


def environment(name: str) -> dict[str, str]:
    """Returns the variables of a rank that tests a frontend."""
    return FRONTENDS[name][1]


def frontend(name: str) -> Frontend:
    """Returns the frontend, in a rank with its variables."""
    module = importlib.import_module(FRONTENDS[name][0])
    if module.__name__ == "lightcc.keras":
        keras = importlib.import_module("keras")
        assert keras.backend.backend() == os.environ["KERAS_BACKEND"]
    else:
        keras = importlib.import_module("tensorflow").keras
    return Frontend(keras, module, name)


def is_keras_3(keras: Any) -> bool:
    return hasattr(keras.optimizers, "LossScaleOptimizer")


def make_model(keras: Any, optimizer: Any, width: int = 8, **arguments: Any) -> Any:
    """Returns the same model on all ranks."""
    keras.utils.set_random_seed(1)
    layers = [
        keras.layers.InputLayer((6,)),
        keras.layers.Dense(width, activation="relu"),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential(layers)
    model.compile(optimizer, "mse", **arguments)
    return model


def data(seed: int = 0, rows: int = 32) -> tuple[Any, Any]:
    x = np.random.default_rng(seed).standard_normal((rows, 6)).astype(np.float32)
    return x, (x @ np.arange(6, dtype=np.float32)[:, None]).astype(np.float32)


def weights(model: Any) -> list[Any]:
    return [np.array(weight) for weight in model.get_weights()]


def differ(model: Any) -> bool:
    """Returns whether the weights of ranks are not the same bits."""
    digest = hashlib.sha256(b"".join(w.tobytes() for w in weights(model))).hexdigest()
    return len(set(lightcc.allgather_object(digest))) != 1


def fit(model: Any, x: Any, y: Any, batch: int = 8, **arguments: Any) -> Any:
    arguments = {"epochs": 2, "verbose": 0, "shuffle": False, **arguments}
    return model.fit(x, y, batch_size=batch, **arguments)


def shares(x: Any, y: Any, batch: int) -> tuple[Any, Any]:
    """Returns this rank's part of each batch of all ranks."""
    rank, size = lightcc.rank(), lightcc.size()
    rows = np.concatenate(
        [np.arange(begin, begin + batch)[rank::size] for begin in range(0, len(x), batch)]
    )
    return x[rows], y[rows]
