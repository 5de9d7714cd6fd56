"""Data-parallel training over ordinary networks, with Horovod's interface.

Example:
    >>> import numpy as np
    >>> import lightcc as hvd
    >>> hvd.init()
    >>> gradient = np.ones(3, dtype=np.float32)
    >>> hvd.allreduce(gradient)
    array([1., 1., 1.], dtype=float32)

Start several ranks with `lightccrun -np 4 python train.py`. Importing this package loads no
framework and starts nothing.

Tensors are numpy arrays, torch tensors, and eager tensors and variables of TensorFlow,
C-contiguous, of uint8, int8, uint16, int16, int32, int64, float16, float32, float64, bool, or
bfloat16 (of torch, TensorFlow, or ml_dtypes); any shape, also 0-dimensional and empty. They are
used where they lie: not copied, and kept alive until the operation is done. Until then an input
must not be changed, and a tensor that is written (names that end with an underscore, `recv`) must
not be touched. Results are new tensors of the same kind and dtype. A numpy scalar counts as a
0-dimensional array where it is only read.

Tensors lie in CPU memory, or in that of a CUDA GPU: those of torch, CuPy's arrays, and whatever has
`__cuda_array_interface__` or, on a GPU, `__dlpack__`. What their streams have been given before the
call is waited for. Ranks agree on the kind of memory. What comes back for CuPy's arrays are such,
and for those of other libraries an object that these take with `asarray()` or `from_dlpack()`.
docs/guides/gpus.md has the rest.

torch tensors may be parameters, but no gradients are recorded: `lightcc.torch` does that, and
`lightcc.tensorflow` for TensorFlow. TensorFlow's tensors never change, so only its variables are
written: the operation works on a copy, and `synchronize()` assigns it. Symbolic tensors have no
values here; `lightcc.tensorflow` takes them. A variable that is read gives a tensor. Ranks may use
different frameworks for one operation; dtype and shape are what must agree.

The asynchronous forms return a handle at once, a small integer for `poll()` and `synchronize()`.
The others are `synchronize(<asynchronous form>)`.

Operations are matched across ranks by `name`. Without one, they are numbered within their process
set, which is right only while all its ranks issue the same unnamed operations in the same order. A
name can be used again as soon as the operation that had it is done.

What the operations raise:
    ValueError: At the call, on this rank only, nothing having been started: lightcc is not
        initialized; the tensor is not contiguous, lies where lightcc cannot use it, or has a dtype
        that is not supported; the name is that of an operation in flight; the process set is not
        registered or this rank is not a member; or another argument is not allowed.
    TypeError: At the call: the argument is not a tensor, or another one is of a wrong type.
    RankMismatchError: When waiting, on all ranks: the ranks disagree about the operation.
    HorovodInternalError: When waiting, on all ranks: a rank failed, fell silent or shut down.
"""

from __future__ import annotations

from lightcc import _checkout  # isort: skip  # noqa: F401  it comes first

import sys
from typing import TYPE_CHECKING

from lightcc import exceptions, process_sets
from lightcc._ops import basics, exchanges, functions, reductions, waiting
from lightcc._ops.basics import *
from lightcc._ops.compression_state import load_compression_state, save_compression_state
from lightcc._ops.exchanges import *
from lightcc._ops.functions import *
from lightcc._ops.reductions import *
from lightcc._ops.reporting import report_stats
from lightcc._ops.waiting import *
from lightcc.compression import Compression
from lightcc.exceptions import *
from lightcc.process_sets import *
from lightcc.runner.running import run

from lightcc import elastic  # isort: skip  (it needs what is above)

__version__ = "0.1.0"

__all__ = [
    "Compression",
    "__version__",
    "elastic",
    "load_compression_state",
    "report_stats",
    "run",
    "save_compression_state",
    *basics.__all__,
    *exceptions.__all__,
    *exchanges.__all__,
    *functions.__all__,
    *process_sets.__all__,
    *reductions.__all__,
    *waiting.__all__,
]

_OF_FRAMEWORKS = {
    "broadcast_optimizer_state": "lightcc.torch",
    "broadcast_parameters": "lightcc.torch",
    "broadcast_variables": "lightcc.tensorflow",
    "DistributedGradientTape": "lightcc.tensorflow",
    "DistributedOptimizer": "lightcc.torch, lightcc.tensorflow and lightcc.keras",
    "SyncBatchNorm": "lightcc.torch",
}


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:  # A checker would take any name for one that is there.

    def __getattr__(name: str) -> object:
        msg = f"module {__name__!r} has no attribute {name!r}"
        if where := _OF_FRAMEWORKS.get(name):
            msg += f", which is in {where}, as it is for one framework"
        raise AttributeError(msg, name=name, obj=sys.modules[__name__])


del TYPE_CHECKING
