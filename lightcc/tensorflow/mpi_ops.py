"""Every operation, under the module name that Horovod gives it."""

from __future__ import annotations

from lightcc import process_sets
from lightcc._ops import basics
from lightcc._ops.basics import *
from lightcc._ops.reductions import Adasum, Average, Max, Min, Product, Sum
from lightcc.horovod.common.basics import HorovodBasics
from lightcc.horovod.common.util import (
    get_average_backwards_compatibility_fun,
    gpu_available,
    num_rank_is_power_2,
)
from lightcc.process_sets import *
from lightcc.tensorflow import _gradients, exchanges, standing
from lightcc.tensorflow._calls import (
    allreduce as _allreduce,
    grouped_allreduce as _grouped_allreduce,
    grouped_reducescatter as _grouped_reducescatter,
    reducescatter as _reducescatter,
)
from lightcc.tensorflow.exchanges import *
from lightcc.tensorflow.standing import *
from lightcc.tensorflow.util import _executing_eagerly, normalize_name as _normalize_name

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "_allreduce",
    "_executing_eagerly",
    "_grouped_allreduce",
    "_grouped_reducescatter",
    "_normalize_name",
    "_reducescatter",
    "check_num_rank_power_of_2",
    "gpu_available",
    "handle_average_backwards_compatibility",
    *basics.__all__,
    *process_sets.__all__,
    *exchanges.__all__,
    *standing.__all__,
]

handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(None)
check_num_rank_power_of_2 = num_rank_is_power_2

# Private, but programs written for Horovod reach for it all the same.
_basics = HorovodBasics(__file__)

_gradients.register()
