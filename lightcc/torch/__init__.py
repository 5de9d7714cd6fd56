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

from lightcc import __version__, exceptions, process_sets
from lightcc._ops import basics, waiting
from lightcc._ops.basics import *
from lightcc._ops.compression_state import load_compression_state, save_compression_state
from lightcc._ops.reporting import report_stats
from lightcc._ops.waiting import *
from lightcc.exceptions import *
from lightcc.process_sets import *
from lightcc.torch import exchanges, functions, reductions
from lightcc.torch._typed import DistributedOptimizer
from lightcc.torch.compression import Compression
from lightcc.torch.exchanges import *
from lightcc.torch.functions import *
from lightcc.torch.grad_scaler import GradScaler
from lightcc.torch.local_steps import LocalSteps
from lightcc.torch.reductions import *
from lightcc.torch.sparse import sparse_allreduce_async
from lightcc.torch.sync_batch_norm import SyncBatchNorm

from lightcc.torch import elastic  # isort: skip  (it needs what is above)

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "GradScaler",
    "LocalSteps",
    "SyncBatchNorm",
    "__version__",
    "elastic",
    "load_compression_state",
    "report_stats",
    "save_compression_state",
    "sparse_allreduce_async",
    *basics.__all__,
    *exceptions.__all__,
    *process_sets.__all__,
    *waiting.__all__,
    *exchanges.__all__,
    *functions.__all__,
    *reductions.__all__,
]


def __dir__() -> list[str]:
    return sorted(__all__)
