"""Every operation, under the module name that Horovod gives it."""

from __future__ import annotations

from lightcc import process_sets
from lightcc._ops import basics, waiting
from lightcc._ops.basics import *
from lightcc._ops.waiting import *
from lightcc.exceptions import HorovodInternalError
from lightcc.horovod.common.basics import HorovodBasics
from lightcc.horovod.common.util import (
    check_installed_version,
    get_average_backwards_compatibility_fun,
    gpu_available,
    num_rank_is_power_2,
)
from lightcc.process_sets import *
from lightcc.torch import autograd, exchanges, reductions
from lightcc.torch.autograd import *
from lightcc.torch.compression import Compression
from lightcc.torch.exchanges import *
from lightcc.torch.reductions import *
from lightcc.torch.sparse import sparse_allreduce_async

__all__ = [
    "Compression",
    "HorovodInternalError",
    "check_installed_version",
    "get_average_backwards_compatibility_fun",
    "gpu_available",
    "num_rank_is_power_2",
    "sparse_allreduce_async",
    *basics.__all__,
    *process_sets.__all__,
    *waiting.__all__,
    *autograd.__all__,
    *exchanges.__all__,
    *reductions.__all__,
]

handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(None)

# Private, but programs written for Horovod reach for it all the same.
_basics = HorovodBasics(__file__)
