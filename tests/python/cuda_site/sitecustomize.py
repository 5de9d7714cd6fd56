"""Gives programs that import torch a torch with a device `cuda` (cuda_torch.py), and a fake GPU.

Ranks share the GPUs that LIGHTCC_FAKE_CUDA says there are, where these are fewer. Python imports
this at its start, where the folder is in PYTHONPATH. Programs that do not use torch are left as
they are.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class _Finder:
    """Finds torch where others find it, and adds what comes before its import and after it."""

    _is_busy = False

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if name != "torch" or self._is_busy:
            return None
        self._is_busy = True
        try:
            _choose_gpu()
            import cuda_torch

            cuda_torch.load_guard(cuda_torch.build_guard())
            spec = importlib.util.find_spec(name)
        finally:
            self._is_busy = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_finish(module: ModuleType) -> None:
            execute(module)
            cuda_torch.finish(module)

        spec.loader.exec_module = execute_and_finish  # type: ignore[method-assign]
        return spec


@functools.cache
def _choose_gpu() -> None:
    """Gives a rank the GPU of its number; other programs leave that to those that they start."""
    asked = re.search(r"devices=(\d+)", os.environ.get("LIGHTCC_FAKE_CUDA", ""))
    devices = int(asked[1]) if asked else 1
    rank = os.environ.get("LIGHT_RANK")
    chosen = f"devices={devices}" if rank is None else f"bus={int(rank) % devices + 1}"
    os.environ["LIGHTCC_FAKE_CUDA"] = f"unified=1,{chosen}"


sys.meta_path.insert(0, _Finder())
