"""Horovod's interface for torch: operations with gradients, and what training scripts need.

Example:
    >>> import torch
    >>> import lightcc.torch as hvd
    >>> hvd.init()
    >>> hvd.allreduce(torch.ones(3))
    tensor([1., 1., 1.])

What `lightcc` tells about tensors, names, handles, memory and errors holds here. Beyond that:

The synchronous forms that return a new tensor record a gradient where their input requires one
(`lightcc.torch.autograd`). The forms that write in place change a tensor's memory without autograd
knowing, whether it requires a gradient or not.
"""

from __future__ import annotations

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
from lightcc.reporting import report_stats
from lightcc.torch.compression import Compression
from lightcc.torch.exchanges import recv, recv_async, send, send_async
from lightcc.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from lightcc.torch.grad_scaler import GradScaler
from lightcc.torch.local_steps import LocalSteps
from lightcc.torch.mpi_ops import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    init,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    poll,
    rank,
    reducescatter,
    reducescatter_async,
    rocm_built,
    shutdown,
    size,
    sparse_allreduce_async,
    start_timeline,
    stop_timeline,
    synchronize,
)
from lightcc.torch.optimizer import DistributedOptimizer
from lightcc.torch.reductions import ReduceOp
from lightcc.torch.sync_batch_norm import SyncBatchNorm

from lightcc.torch import elastic  # isort: skip  (it needs what is above)

__all__ = [
    "Adasum",
    "Average",
    "CollectiveTimeoutError",
    "Compression",
    "DistributedOptimizer",
    "EngineError",
    "GradScaler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "LocalSteps",
    "Max",
    "Min",
    "PeerFailedError",
    "ProcessSet",
    "Product",
    "RankMismatchError",
    "ReduceOp",
    "ShutDownError",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "load_compression_state",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "process_set_ids",
    "rank",
    "recv",
    "recv_async",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "report_stats",
    "rocm_built",
    "save_compression_state",
    "send",
    "send_async",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stats",
    "stop_timeline",
    "synchronize",
]
