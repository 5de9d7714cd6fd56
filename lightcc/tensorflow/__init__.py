"""Horovod's interface for TensorFlow: operations with gradients, and what training scripts need.

Example:
    >>> import tensorflow as tf
    >>> import lightcc.tensorflow as hvd
    >>> hvd.init()
    >>> hvd.allreduce(tf.ones(3)).numpy().tolist()
    [1.0, 1.0, 1.0]

Operations work eagerly, in tf.function, and in graphs of tf.compat.v1, and can be saved with a
model; who loads it imports this module before. Each records a gradient, whose backward pass is a
collective again. Errors are TensorFlow's: InvalidArgumentError for a call that is wrong on this
rank, FailedPreconditionError where ranks disagree, AbortedError where a rank failed or left.

A thread of TensorFlow's is never held while an operation waits for other ranks.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from lightcc import __version__, exceptions, process_sets
from lightcc._ops import basics
from lightcc._ops.basics import *
from lightcc._ops.compression_state import load_compression_state, save_compression_state
from lightcc.exceptions import *
from lightcc.process_sets import *
from lightcc.tensorflow import exchanges, functions, reductions, standing
from lightcc.tensorflow.compression import Compression
from lightcc.tensorflow.exchanges import *
from lightcc.tensorflow.functions import *
from lightcc.tensorflow.mpi_ops import (
    _executing_eagerly as _executing_eagerly,
    check_num_rank_power_of_2,
    gpu_available,
    handle_average_backwards_compatibility,
)
from lightcc.tensorflow.optimizer import DistributedOptimizer
from lightcc.tensorflow.reductions import *
from lightcc.tensorflow.standing import *
from lightcc.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape

__all__ = [
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",
    "__version__",
    "check_num_rank_power_of_2",
    "gpu_available",
    "handle_average_backwards_compatibility",
    "load_compression_state",
    "save_compression_state",
    *basics.__all__,
    *exceptions.__all__,
    *process_sets.__all__,
    *exchanges.__all__,
    *functions.__all__,
    *reductions.__all__,
    *standing.__all__,
]

if TYPE_CHECKING:
    from lightcc.tensorflow.sync_batch_norm import SyncBatchNormalization
else:  # A checker would take any name for one that is there.

    def __getattr__(name: str) -> object:
        if name == "SyncBatchNormalization":  # Programs without Keras need not load it.
            module = importlib.import_module("lightcc.tensorflow.sync_batch_norm")
            return module.SyncBatchNormalization
        if name == "elastic":
            return importlib.import_module("lightcc.tensorflow.elastic")
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg, name=name)


del TYPE_CHECKING
