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

from lightcc import _not_yet
from lightcc.basics import stats
from lightcc.compression_state import load_compression_state, save_compression_state
from lightcc.exceptions import (
    CollectiveTimeoutError,
    EngineError,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    PeerFailedError,
    RankMismatchError,
    ShutDownError,
)
from lightcc.process_sets import (
    ProcessSet,
    add_process_set,
    get_process_set_ids_and_ranks,
    global_process_set,
    process_set_ids,
    remove_process_set,
)
from lightcc.tensorflow.compression import Compression
from lightcc.tensorflow.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from lightcc.tensorflow.mpi_ops import (
    _executing_eagerly,
    allgather,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    ccl_built,
    check_num_rank_power_of_2,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    gpu_available,
    grouped_allgather,
    handle_average_backwards_compatibility,
    init,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_rank_op,
    local_size,
    local_size_op,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    process_set_included_op,
    rank,
    rank_op,
    rocm_built,
    shutdown,
    size,
    size_op,
    start_timeline,
    stop_timeline,
)
from lightcc.tensorflow.optimizer import DistributedOptimizer
from lightcc.tensorflow.reductions import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
    allreduce,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from lightcc.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "CollectiveTimeoutError",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "EngineError",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "PeerFailedError",
    "ProcessSet",
    "Product",
    "RankMismatchError",
    "ReduceOp",
    "ShutDownError",
    "Sum",
    "SyncBatchNormalization",
    "_executing_eagerly",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "load_compression_state",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_ids",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "save_compression_state",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stats",
    "stop_timeline",
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
        raise _not_yet.absent(name, __name__)


del TYPE_CHECKING
