"""Collectives on Python objects, which travel pickled.

Whoever shares the job's secret is trusted: unpickling runs code.
"""

from __future__ import annotations

import importlib.util
import pickle
from typing import TYPE_CHECKING, Any

from lightcc import _world
from lightcc._ops import exchanges
from lightcc.process_sets import ProcessSet, global_process_set

if TYPE_CHECKING:
    from lightcc._typing import Array

__all__ = ["allgather_object", "broadcast_object"]

_NONE = -1  # The size of what could not be pickled.
_NOT_PICKLED = "rank {} could not pickle its object; the error there says why"


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root's object on every rank.

    Collective: every rank of the process set must call it with the same `root_rank` and `name`.

    Args:
        obj: Anything that pickle can take, or cloudpickle where it is installed: lambdas, local
            classes. Ignored on other ranks than the root.
        root_rank: World rank of the root, a member of the process set.
        name: Matches this call across ranks, as for arrays.
        process_set: The ranks that take part.

    Returns:
        `obj` itself on the root, a copy elsewhere.

    Raises:
        ValueError: An argument is not allowed, or lightcc is not initialized; where that is so.
            Also where another rank could not pickle its object, which has pickle's error.
        HorovodInternalError: A rank failed or the roots differ; on all ranks.

    Example:
        >>> import lightcc as hvd
        >>> hvd.init()
        >>> hvd.broadcast_object({"epoch": 3})
        {'epoch': 3}
    """
    import numpy as np

    is_root = _world.current().rank == root_rank
    payload, failure = _pickled(obj) if is_root else (np.empty(0, np.uint8), None)
    size = np.array([payload.size if failure is None else _NONE], np.int64)
    count = exchanges.broadcast(size, root_rank, _part(name, "size"), process_set)
    if int(count[0]) == _NONE:
        raise failure or ValueError(_NOT_PICKLED.format(root_rank))
    if not is_root:
        payload = np.empty(int(count[0]), np.uint8)
    exchanges.broadcast_(payload, root_rank, _part(name, "data"), process_set)
    return obj if is_root else pickle.loads(payload.data)  # noqa: S301  from a rank of this job


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns the objects of all ranks on every rank.

    Collective: every rank of the process set must call it with the same `name`.

    Args:
        obj: As of `broadcast_object`.
        name: Matches this call across ranks, as for arrays.
        process_set: The ranks that take part.

    Returns:
        Copies of the objects, in the order of ranks.

    Raises:
        ValueError: An argument is not allowed, or lightcc is not initialized; where that is so.
            Also where another rank could not pickle its object, which has pickle's error.
        HorovodInternalError: A rank failed; on all ranks.

    Example:
        >>> import lightcc as hvd
        >>> hvd.init()
        >>> hvd.allgather_object("hello")
        ['hello']
    """
    import numpy as np

    payload, failure = _pickled(obj)
    size = np.array([payload.size if failure is None else _NONE], np.int64)
    sizes = exchanges.allgather(size, _part(name, "size"), process_set)
    if _NONE in sizes:
        ranks = process_set.ranks or range(len(sizes))
        who = [rank for rank, found in zip(ranks, sizes, strict=True) if found == _NONE]
        raise failure or ValueError(_NOT_PICKLED.format(", ".join(map(str, who))))
    data = exchanges.allgather(payload, _part(name, "data"), process_set)
    parts = np.split(data, np.cumsum(sizes)[:-1])
    return [pickle.loads(part.data) for part in parts]  # noqa: S301  from ranks of this job


def _pickled(obj: Any) -> tuple[Array, Exception | None]:
    """Returns an object pickled, or nothing and why it cannot be: other ranks have to hear of it.

    Where pickle fails, as for lambdas and local classes, cloudpickle is asked if it is there.
    """
    import numpy as np

    try:
        data = _dumps(obj)
    except Exception as error:  # noqa: BLE001  raised again when others know
        return np.empty(0, np.uint8), error
    return np.frombuffer(bytearray(data), np.uint8), None


def _dumps(obj: Any) -> bytes:
    try:
        return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        if importlib.util.find_spec("cloudpickle") is None:
            raise
        data: bytes = importlib.import_module("cloudpickle").dumps(obj, pickle.HIGHEST_PROTOCOL)
        return data


def _part(name: str | None, part: str) -> str | None:
    return None if name is None else f"{name}.{part}"
