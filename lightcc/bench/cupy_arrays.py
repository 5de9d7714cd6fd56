"""Arrays of CuPy, for `worker`, which loads this file from beside it.

lightcc takes them by `__cuda_array_interface__`, as it takes those of any library that has it, and
gives arrays of CuPy back. Run by itself it says, as one line of JSON, what keeps this interpreter's
CuPy from that: `{"cupy": "CuPy cannot be imported: No module named 'cupy'"}`.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import numpy as np


class CupyArrays:
    """Arrays on the GPU of a rank's local rank. Ranks share GPUs where there are fewer."""

    is_on_gpu = True

    def __init__(self, local_rank: int) -> None:
        """Makes that GPU the current one of this thread."""
        self._cupy: Any = importlib.import_module("cupy")
        runtime = self._cupy.cuda.runtime
        self._device = self._cupy.cuda.Device(local_rank % runtime.getDeviceCount())
        self._device.use()

    def ones(self, count: int, dtype: np.dtype[Any]) -> Any:
        """Returns an array of `count` ones."""
        return self._cupy.ones(count, dtype)

    def write(self, tensor: Any, values: np.ndarray[Any, Any]) -> None:
        """Copies `values` into an array."""
        tensor.set(values)

    def read(self, tensor: Any) -> np.ndarray[Any, Any]:
        """Returns a copy in host memory."""
        return np.asarray(self._cupy.asnumpy(tensor))

    def copy(self, target: Any, source: Any) -> None:
        """Copies on the GPU."""
        self._cupy.copyto(target, source)

    def synchronize(self) -> None:
        """Waits until the GPU is idle."""
        self._device.synchronize()


def objections() -> dict[str, str]:
    """Returns why CuPy has no arrays on a GPU; empty where it has."""
    try:
        cupy: Any = importlib.import_module("cupy")
    except ImportError as error:
        return {"cupy": f"CuPy cannot be imported: {error}"}
    is_available = cupy.cuda.is_available()
    return {"cupy": "" if is_available else f"CuPy {cupy.__version__} finds no GPU"}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(objections()) + "\n")
