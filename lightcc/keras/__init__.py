"""Horovod's interface for Keras on any backend: TensorFlow, torch, or JAX on CPUs.

Optimizers of Keras 2 (`tf.keras` with TF_USE_LEGACY_KERAS=1) are taken as well.

Example:
    >>> import keras, numpy as np
    >>> import lightcc.keras as hvd
    >>> hvd.init()
    >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size()))
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer, "mse")
    >>> start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    >>> history = model.fit(np.ones([4, 2]), np.ones([4, 1]), callbacks=[start], verbose=0)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import keras

from lightcc import __version__, process_sets
from lightcc._keras.frontend import Frontend
from lightcc._ops import basics
from lightcc._ops.basics import *
from lightcc._ops.reductions import Adasum, Average, Max, Min, Product, Sum
from lightcc.exceptions import NotThereYetError
from lightcc.keras import callbacks
from lightcc.keras._backends import Compression, backend as _backend, backend_for as _backend_for
from lightcc.process_sets import *
from lightcc.process_sets import ProcessSet, global_process_set

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "Product",
    "Sum",
    "__version__",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "load_model",
    "reducescatter",
    *basics.__all__,
    *process_sets.__all__,
]


_FRONTEND = Frontend(__name__, keras, _backend, _backend_for)
PartialDistributedOptimizer = _FRONTEND.PartialDistributedOptimizer
allgather = _FRONTEND.allgather
broadcast = _FRONTEND.broadcast
broadcast_global_variables = _FRONTEND.broadcast_global_variables
load_model = _FRONTEND.load_model
reducescatter = _FRONTEND.reducescatter


def DistributedOptimizer(  # noqa: D103, N802  Horovod's name and order
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    *,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    allreduce_type: str | None = None,
    fusion_type: str | None = None,
    auto_fusion_threshold: int | None = None,
    piecewise_fusion_schedule: str | None = None,
    scopewise_fusion_schedule: str | None = None,
) -> Any:
    return _FRONTEND.DistributedOptimizer(**locals())


DistributedOptimizer.__doc__ = _FRONTEND.DistributedOptimizer.__doc__


def allreduce(  # noqa: D103  Horovod's default of `average`
    value: Any,
    name: str | None = None,
    average: bool | None = True,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    average = None if average else average  # As given by nobody: `op` is the newer one.
    return _FRONTEND.allreduce(
        value, name, average, prescale_factor, postscale_factor, op, compression
    )


allreduce.__doc__ = _FRONTEND.allreduce.__doc__


if not TYPE_CHECKING:  # A checker would take any name for one that is there.

    def __getattr__(name: str) -> object:
        if name == "SyncBatchNormalization":
            if keras.backend.backend() == "tensorflow":
                return importlib.import_module("lightcc.tensorflow").SyncBatchNormalization
            msg = f"{name}: this version of lightcc has it for Keras on TensorFlow only"
            raise NotThereYetError(msg, name=name)
        if name == "elastic":
            if keras.backend.backend() != "jax":
                return importlib.import_module("lightcc.keras.elastic")
            msg = f"{name}: this version of lightcc does not support elastic jobs with JAX yet"
            raise NotThereYetError(msg, name=name)
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg, name=name)
