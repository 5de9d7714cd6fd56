"""Horovod's interface for TensorFlow: names and signatures, and what an import does."""

from __future__ import annotations

import importlib
import inspect
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tensorflow.python.framework import kernels, op_def_registry

import lightcc.tensorflow as hvd
from lightcc.tensorflow._library import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Callable

HOROVOD = json.loads((Path(__file__).parent / "horovod_tensorflow_api.json").read_text())

#: Where lightcc keeps what Horovod has in its package itself.
MODULES = {
    "__init__": "lightcc.tensorflow",
    "horovod.keras": "lightcc.keras",
    "horovod.keras.callbacks": "lightcc.keras.callbacks",
}
#: What lightcc has after Horovod's parameters, by keyword only.
FUSION = (
    ", allreduce_type=None, fusion_type=None, auto_fusion_threshold=None, "
    "piecewise_fusion_schedule=None, scopewise_fusion_schedule=None"
)
ADDED = {
    "DistributedOptimizer": FUSION,
    "DistributedGradientTape": FUSION,
    "PartialDistributedGradientTape": ", **fusion",
    "PartialDistributedOptimizer": ", **fusion",
    "BestModelCheckpoint": ", filepath=None",
}
#: Where Horovod's own function lacks what its other frontends have.
KERAS_ADDED = (
    ", backward_passes_per_step=1, average_aggregated_gradients=False, "
    "process_set=global_process_set, scale_local_gradients=True"
)


#: Private names of Horovod that programs reach for all the same.
UNDOCUMENTED = {"_executing_eagerly", "handle_average_backwards_compatibility"}


def spelled(default: Any) -> str:
    names = {
        id(hvd.global_process_set): "global_process_set",
        id(hvd.Compression.none): "Compression.none",
        id(hvd.Average): "Average",
    }
    return names.get(id(default), repr(default))


def signature(function: Callable[..., Any]) -> str:
    parts = []
    for parameter in inspect.signature(function).parameters.values():
        star = "**" if parameter.kind is inspect.Parameter.VAR_KEYWORD else ""
        given = parameter.default is not inspect.Parameter.empty
        parts.append(f"{star}{parameter.name}" + f"={spelled(parameter.default)}" * given)
    return ", ".join(parts)


@pytest.mark.parametrize("module", sorted(HOROVOD))
def test_signatures_are_horovods(module: str) -> None:
    ours = importlib.import_module(MODULES.get(module, f"lightcc.tensorflow.{module}"))
    assert HOROVOD[module]
    for name, expected in HOROVOD[module].items():
        added = ADDED.get(name, "")
        if (module, name) == ("horovod.keras", "DistributedOptimizer"):
            added = KERAS_ADDED + added
        assert signature(getattr(ours, name)) == expected + added, name


@pytest.mark.parametrize("module", ["lightcc.keras", "lightcc.tensorflow.keras"])
def test_functions_for_keras_are_documented_and_travel_pickled(module: str) -> None:
    frontend = importlib.import_module(module)
    for name in HOROVOD["keras"]:
        function = getattr(frontend, name)
        assert inspect.getdoc(function), name
        assert pickle.loads(pickle.dumps(function)) == function, name


@pytest.mark.parametrize("module", ["", ".mpi_ops", ".keras"])
def test_faces_have_each_of_their_names_once(module: str) -> None:
    frontend = importlib.import_module(f"lightcc.tensorflow{module}")
    assert len(frontend.__all__) == len(set(frontend.__all__))
    assert all(hasattr(frontend, name) for name in frontend.__all__)


@pytest.mark.parametrize("name", sorted(set(hvd.__all__) - UNDOCUMENTED))
def test_public_name_has_a_docstring(name: str) -> None:
    value = getattr(hvd, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert inspect.getdoc(value)


def test_threads_and_devices_can_be_chosen_after_the_import() -> None:
    code = (
        "import tensorflow as tf, lightcc.tensorflow as hvd; hvd.init(); "
        "tf.config.threading.set_inter_op_parallelism_threads(1); "
        "print(float(hvd.allreduce(tf.constant(2.0), op=hvd.Sum)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "2.0"


def test_operations_have_kernels_for_gpus_that_take_the_hosts_memory() -> None:
    for name in (*COLLECTIVES, "LightccStanding"):
        definition = op_def_registry.get(name)
        assert definition is not None, name
        arguments = [a.name for a in (*definition.input_arg, *definition.output_arg)]
        found = {k.device_type: k for k in kernels.get_registered_kernels_for_op(name).kernel}
        assert set(found) == {"CPU", "GPU"}, name
        assert sorted(found["GPU"].host_memory_arg) == sorted(arguments), name
        assert not found["CPU"].host_memory_arg, name


def test_elastic_names_are_one_under_both_names() -> None:
    code = """
from horovod.tensorflow import elastic
from horovod.tensorflow.elastic import TensorFlowKerasState, TensorFlowState, run
from horovod.tensorflow.keras.elastic import (
    CommitStateCallback, KerasState, UpdateBatchStateCallback, UpdateEpochStateCallback,
)
import horovod.keras.elastic, horovod.tensorflow.keras as hvd, lightcc.elastic
assert elastic.run is run is hvd.elastic.run and issubclass(KerasState, TensorFlowKerasState)
assert issubclass(TensorFlowState, lightcc.elastic.ObjectState)
print("one")
"""
    call = [sys.executable, "-m", "lightcc.horovod", "-c", code]
    done = subprocess.run(call, check=True, capture_output=True, text=True)
    assert done.stdout == "one\n"
