"""What torch.compile is given in the place of an operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lightcc.compression import Compression, find_engine_compressor
from lightcc.process_sets import set_id

if TYPE_CHECKING:
    from lightcc.process_sets import ProcessSet


def operators(process_set: ProcessSet, compression: Any = Compression.none) -> Any:
    """Returns the module of operators where the compiler looks at a call, else `None`.

    Top-k compression, and a process set that is not registered, have no operator. The compiler
    leaves its graph for such a call.
    """
    if not torch.compiler.is_compiling():
        return None
    if set_id(process_set) is None or find_engine_compressor(compression) is not None:
        return None
    from lightcc.torch import _operators

    return _operators
