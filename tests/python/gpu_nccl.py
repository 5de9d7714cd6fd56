"""The environments of ranks that have a GPU each, and NCCL: of a real GPU, or of the fakes."""

from __future__ import annotations

import os

from lightcc import _core
from lightcc._nccl_file import nccl_file


def visible_gpus() -> list[str]:
    """Returns the GPUs as CUDA_VISIBLE_DEVICES names them.

    Raises:
        NotImplementedError: There is none, or no NCCL; the text says why.
    """
    count = len(_core.find_gpus()["gpus"])
    _core.find_nccl(nccl_file())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[:count] if visible else [str(index) for index in range(count)]


def with_nccl(gpus: list[str], size: int, **more: str) -> list[dict[str, str]]:
    """Returns the environments of ranks, each with a GPU that NCCL lets it have."""
    environments = []
    for rank in range(size):
        own = {"HOROVOD_GPU_OPERATIONS": "NCCL", "CUDA_VISIBLE_DEVICES": gpus[0], **more}
        if size <= len(gpus):
            own["CUDA_VISIBLE_DEVICES"] = gpus[rank]
        elif size > 1:  # By sockets: a network card might not reach itself.
            own |= {"NCCL_HOSTID": f"rank-{rank}", "NCCL_IB_DISABLE": "1"}
        environments.append(own)
    return environments
