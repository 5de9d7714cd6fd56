"""Where an optimizer of Keras divides by squares of gradients, the flag means int4, or warns."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytest
from keras_frontends import NEEDS_KERAS_3, data, environment, fit, frontend, make_model

import lightcc
from lightcc.compression import CompressionWarning
from lightcc.testing import spawn_ranks

pytestmark = pytest.mark.multiproc


def what_is_said(name: str) -> dict[str, list[str]]:
    """Trains a step with each of some optimizers; returns what was said of compression, by name."""
    lightcc.init()
    tested = frontend(name)
    logged: list[str] = []
    handler = logging.Handler()
    handler.addFilter(lambda record: record.getMessage().startswith("LIGHT_TOPK_ALLREDUCE:"))
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("lightcc").addHandler(handler)
    said = {}
    for optimizer, arguments in (("SGD", {"momentum": 0.9}), ("Adam", {}), ("RMSprop", {})):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made: Any = getattr(tested.keras.optimizers, optimizer)(0.01, **arguments)
            wrapped = tested.hvd.DistributedOptimizer(made)
            model = make_model(tested.keras, wrapped, width=256, **tested.eagerly)
            fit(model, *data(), epochs=1)
        said[optimizer] = [str(w.message) for w in caught if w.category is CompressionWarning]
        said[optimizer] += logged
        logged.clear()
    return said


INT4 = "LIGHT_TOPK_ALLREDUCE: gradients of Adam travel by int4"


# All backends share this, so two of them are enough.
@pytest.mark.parametrize(
    ("name", "by_optimizer", "expected"),
    [
        ("tensorflow", "1", INT4),
        ("tensorflow", "0", "top-k compression under Adam costs accuracy"),
        pytest.param("torch", "1", INT4, marks=NEEDS_KERAS_3),
    ],
)
def test_the_flag_means_int4_under_a_second_moment(
    name: str, by_optimizer: str, expected: str
) -> None:
    variables = {**environment(name), "LIGHT_TOPK_THRESHOLD": "1K", "LIGHT_TOPK_ALLREDUCE": "1"}
    variables["LIGHT_TOPK_OPTIMIZER"] = by_optimizer
    first, second = spawn_ranks(what_is_said, 2, name, env=variables, hosts=["a", "b"])
    (text,) = first.pop("Adam")
    assert expected in text
    assert first == {"SGD": [], "RMSprop": []}  # It is said once.
    assert second == {"SGD": [], "Adam": [], "RMSprop": []}


def test_nothing_is_said_where_nothing_is_compressed() -> None:
    variables = {**environment("tensorflow"), "LIGHT_TOPK_ALLREDUCE": "1"}  # All is below 1 MiB.
    for said in spawn_ranks(what_is_said, 2, "tensorflow", env=variables, hosts=["a", "b"]):
        assert said == {"SGD": [], "Adam": [], "RMSprop": []}
