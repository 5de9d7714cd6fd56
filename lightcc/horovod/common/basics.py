"""`horovod.common.basics`: the functions of `lightcc._ops.basics` as methods of an object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightcc._ops import basics
from lightcc.process_sets import (
    ProcessSet as ProcessSet,
    get_process_set_ids_and_ranks,
    global_process_set as global_process_set,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class HorovodBasics:
    """Has `init`, `rank`, `nccl_built` and what else is in `lightcc._ops.basics` as methods.

    All objects stand for the one world of the process.
    """

    def __init__(self, pkg_path: str = "", *args: str) -> None:
        """Makes the object; Horovod's arguments, which name a library to load, are not used."""
        del pkg_path, args

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Returns the function `name` of `lightcc._ops.basics`."""
        if name.startswith("_") or not callable(found := getattr(basics, name, None)):
            msg = f"'{type(self).__name__}' object has no attribute {name!r}"
            raise AttributeError(msg)
        function: Callable[..., Any] = found
        return function

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        """Returns the ranks of every registered process set by id."""
        return get_process_set_ids_and_ranks()
