"""Horovod's interface for Keras on TensorFlow: `tf.keras`, which is Keras 3 or Keras 2.

Since TensorFlow 2.16, `tf.keras` is Keras 3; with TF_USE_LEGACY_KERAS=1 it is Keras 2 (tf-keras).

Example:
    >>> import tensorflow as tf
    >>> import lightcc.tensorflow.keras as hvd
    >>> hvd.init()
    >>> optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1 * hvd.size()))
    >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    >>> model.compile(optimizer, "mse")
    >>> start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    >>> x, y = tf.ones([4, 2]), tf.ones([4, 1])
    >>> history = model.fit(x, y, callbacks=[start], verbose=0)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from lightcc import _not_yet
from lightcc._keras.face import Face
from lightcc.basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stats,
    stop_timeline,
)
from lightcc.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from lightcc.reductions import Adasum, Average, Max, Min, Product, Sum
from lightcc.tensorflow.compression import Compression
from lightcc.tensorflow.keras import callbacks, elastic
from lightcc.tensorflow.keras._backend import BACKEND as _BACKEND
from lightcc.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stats",
    "stop_timeline",
]


_FACE = Face(__name__, tf.keras, lambda: _BACKEND, lambda _: _BACKEND)
DistributedOptimizer = _FACE.DistributedOptimizer
PartialDistributedOptimizer = _FACE.PartialDistributedOptimizer
allgather = _FACE.allgather
allreduce = _FACE.allreduce
broadcast = _FACE.broadcast
broadcast_global_variables = _FACE.broadcast_global_variables
load_model = _FACE.load_model
reducescatter = _FACE.reducescatter


if not TYPE_CHECKING:  # A checker would take any name for one that is there.

    def __getattr__(name: str) -> object:
        raise _not_yet.absent(name, __name__)
