"""Tensors of torch on `cuda`, for `worker`, which loads this file from beside it.

Run by itself it says, as one line of JSON, what keeps this interpreter's torch from that, and what
keeps its process groups from NCCL: `{"torch": "", "nccl": "torch 2.13.0+cpu has no NCCL"}`.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import numpy as np


class CudaTensors:
    """Tensors on the GPU of a rank's local rank. Ranks share GPUs where there are fewer."""

    is_on_gpu = True

    def __init__(self, local_rank: int) -> None:
        """Makes that GPU the current one of this process."""
        self._torch: Any = importlib.import_module("torch")
        index = local_rank % self._torch.cuda.device_count()
        self._device = self._torch.device("cuda", index)
        self._torch.cuda.set_device(self._device)

    def ones(self, count: int, dtype: np.dtype[Any]) -> Any:
        """Returns a tensor of `count` ones."""
        return self._torch.ones(count, dtype=getattr(self._torch, dtype.name), device=self._device)

    def write(self, tensor: Any, values: np.ndarray[Any, Any]) -> None:
        """Copies `values` into a tensor."""
        tensor.copy_(self._torch.from_numpy(values))

    def read(self, tensor: Any) -> np.ndarray[Any, Any]:
        """Returns a copy in host memory."""
        return np.asarray(tensor.cpu().numpy())

    def copy(self, target: Any, source: Any) -> None:
        """Copies on the GPU."""
        target.copy_(source)

    def synchronize(self) -> None:
        """Waits until the GPU is idle."""
        self._torch.cuda.synchronize()


def objections() -> dict[str, str]:
    """Returns why torch has no tensors on `cuda`, and why no NCCL; empty where it has."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        why = f"torch cannot be imported: {error}"
        return {"torch": why, "nccl": why}
    name = f"torch {torch.__version__}"
    no_cuda = "" if torch.cuda.is_available() else f"{name} is built without CUDA, or finds no GPU"
    has_nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    return {"torch": no_cuda, "nccl": "" if has_nccl else f"{name} has no NCCL"}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(objections()) + "\n")
