"""Collectives on Python objects, which travel pickled.

Whoever shares the job's secret is trusted: unpickling runs code.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from lightcc import _world
from lightcc._ops import exchanges
from lightcc.process_sets import ProcessSet, global_process_set

if TYPE_CHECKING:
    from lightcc._typing import Array

__all__ = [
    "allgather_object",
    "broadcast_object",
]


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root's object on every rank.

    Collective: every rank of the process set must call it with the same `root_rank` and `name`.

    Args:
        obj: Anything that can be pickled. Ignored on other ranks than the root.
        root_rank: World rank of the root, a member of the process set.
        name: Matches this call across ranks, as for arrays.
        process_set: The ranks that take part.

    Returns:
        `obj` itself on the root, a copy elsewhere.

    Raises:
        ValueError: An argument is not allowed, or lightcc is not initialized; where that is so.
        HorovodInternalError: A rank failed or the roots differ; on all ranks.

    Example:
        >>> import lightcc as hvd
        >>> hvd.init()
        >>> hvd.broadcast_object({"epoch": 3})
        {'epoch': 3}
    """
    import numpy as np

    is_root = _world.current().rank == root_rank
    payload = _pickled(obj) if is_root else np.empty(0, np.uint8)
    count = exchanges.broadcast(
        np.array([payload.size], np.int64), root_rank, _part(name, "size"), process_set
    )
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
        obj: Anything that can be pickled.
        name: Matches this call across ranks, as for arrays.
        process_set: The ranks that take part.

    Returns:
        Copies of the objects, in the order of ranks.

    Raises:
        ValueError: An argument is not allowed, or lightcc is not initialized; where that is so.
        HorovodInternalError: A rank failed; on all ranks.

    Example:
        >>> import lightcc as hvd
        >>> hvd.init()
        >>> hvd.allgather_object("hello")
        ['hello']
    """
    import numpy as np

    payload = _pickled(obj)
    sizes = exchanges.allgather(
        np.array([payload.size], np.int64), _part(name, "size"), process_set
    )
    data = exchanges.allgather(payload, _part(name, "data"), process_set)
    parts = np.split(data, np.cumsum(sizes)[:-1])
    return [pickle.loads(part.data) for part in parts]  # noqa: S301  from ranks of this job


def _pickled(obj: Any) -> Array:
    import numpy as np

    return np.frombuffer(bytearray(pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)), np.uint8)


def _part(name: str | None, part: str) -> str | None:
    return None if name is None else f"{name}.{part}"
