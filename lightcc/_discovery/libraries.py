"""Libraries of process managers, opened where one has started this process."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def open_library(names: Sequence[str], mode: str, otherwise: str) -> ctypes.CDLL:
    """Opens the first of `names` that is there.

    Args:
        names: File names of the library, the one that a message names first.
        mode: Of `srun --mpi`, which needs it.
        otherwise: What else than the library helps.

    Raises:
        ValueError: None of them can be opened; it says why.
    """
    reasons = []
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:  # noqa: PERF203  a few attempts, once
            reasons.append(str(error))
    msg = (
        f"srun --mpi={mode} started this process, but {names[0]} was not found "
        f"({'; '.join(reasons)}); name its directory in LD_LIBRARY_PATH, or {otherwise}"
    )
    raise ValueError(msg)
