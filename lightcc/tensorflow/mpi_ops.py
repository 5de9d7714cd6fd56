"""Every operation, under the module name that Horovod gives it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightcc import _not_yet
from lightcc.basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
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
    stop_timeline,
)
from lightcc.horovod.common.basics import HorovodBasics
from lightcc.horovod.common.util import (
    get_average_backwards_compatibility_fun,
    gpu_available,
    num_rank_is_power_2,
)
from lightcc.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from lightcc.reductions import Adasum, Average, Max, Min, Product, Sum
from lightcc.tensorflow import _gradients
from lightcc.tensorflow._calls import (
    allreduce as _allreduce,
    grouped_allreduce as _grouped_allreduce,
    grouped_reducescatter as _grouped_reducescatter,
    reducescatter as _reducescatter,
)
from lightcc.tensorflow.exchanges import (
    allgather,
    alltoall,
    broadcast,
    broadcast_,
    grouped_allgather,
)
from lightcc.tensorflow.standing import (
    barrier,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from lightcc.tensorflow.util import _executing_eagerly, normalize_name as _normalize_name

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "_allreduce",
    "_executing_eagerly",
    "_grouped_allreduce",
    "_grouped_reducescatter",
    "_normalize_name",
    "_reducescatter",
    "add_process_set",
    "allgather",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "ccl_built",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]

handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(None)
check_num_rank_power_of_2 = num_rank_is_power_2

# Private, but programs written for Horovod reach for it all the same.
_basics = HorovodBasics(__file__)

_gradients.register()


if not TYPE_CHECKING:  # A checker would take any name for one that is there.

    def __getattr__(name: str) -> Any:
        raise _not_yet.absent(name, __name__)
