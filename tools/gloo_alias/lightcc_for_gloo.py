"""Gives torch's tests lightcc's process groups where they ask for gloo's.

torch calls `register()` in every process that imports it and has this folder on its path. So all
ranks that a test starts have it, too. Nothing of torch's tests is changed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def register() -> None:
    """Makes groups of lightcc where gloo's are asked for, if LIGHTCC_FOR_GLOO is set.

    It names a folder. Of each group that is made, one byte goes into a file there, which has the
    name of the package whose class the group is.
    """
    if "LIGHTCC_FOR_GLOO" not in os.environ:
        return
    from torch.distributed import distributed_c10d as c10d

    made_by_torch: Any = c10d._new_process_group_helper  # noqa: SLF001  all groups come from it
    seen = Path(os.environ["LIGHTCC_FOR_GLOO"])

    def make(size: int, rank: int, ranks: list[int], backend: str, *rest: Any, **named: Any) -> Any:
        asked = "gloo" if backend == c10d.Backend.UNDEFINED else backend
        ours = asked.replace("gloo", "lightcc")
        made = made_by_torch(size, rank, ranks, ours, *rest, **named)
        with (seen / type(made[0]).__module__.partition(".")[0]).open("a") as file:
            file.write("x")
        return made

    setattr(c10d, made_by_torch.__name__, make)
