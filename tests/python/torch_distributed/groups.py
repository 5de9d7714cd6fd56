"""How ranks of these tests come to a process group."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist

import lightcc.torch.distributed  # noqa: F401  registers the backend


def start(store: str, **options: Any) -> tuple[int, int]:
    """Makes the default group of the ranks that `spawn_ranks` has started; returns rank, size."""
    rank, size = int(os.environ["LIGHT_RANK"]), int(os.environ["LIGHT_SIZE"])
    options.setdefault("timeout", timedelta(seconds=30))
    dist.init_process_group(
        "lightcc", init_method=f"file://{store}", rank=rank, world_size=size, **options
    )
    return rank, size
