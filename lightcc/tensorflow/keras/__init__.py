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

import tensorflow as tf

from lightcc import __version__, process_sets
from lightcc._keras.frontend import Frontend
from lightcc._ops import basics
from lightcc._ops.basics import *
from lightcc._ops.reductions import Adasum, Average, Max, Min, Product, Sum
from lightcc.process_sets import *
from lightcc.tensorflow._keras_backend import BACKEND as _BACKEND
from lightcc.tensorflow.compression import Compression
from lightcc.tensorflow.keras import callbacks, elastic
from lightcc.tensorflow.sync_batch_norm import SyncBatchNormalization

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
    "SyncBatchNormalization",
    "__version__",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "elastic",
    "load_model",
    "reducescatter",
    *basics.__all__,
    *process_sets.__all__,
]


_FRONTEND = Frontend(__name__, tf.keras, lambda: _BACKEND, lambda _: _BACKEND)
DistributedOptimizer = _FRONTEND.DistributedOptimizer
PartialDistributedOptimizer = _FRONTEND.PartialDistributedOptimizer
allgather = _FRONTEND.allgather
allreduce = _FRONTEND.allreduce
broadcast = _FRONTEND.broadcast
broadcast_global_variables = _FRONTEND.broadcast_global_variables
load_model = _FRONTEND.load_model
reducescatter = _FRONTEND.reducescatter
