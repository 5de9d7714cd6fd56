"""The backend `lightcc` of torch.distributed.

    import torch.distributed as dist

    dist.init_process_group("lightcc")

torch knows the backend where lightcc is installed, unless TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps it
from looking; then `import lightcc.torch.distributed` first. Everything above torch.distributed runs
on it as on gloo: DDP, FSDP2, tensor and pipeline parallelism, distributed checkpoints. See
docs/guides/torch-distributed.md.

The default group is lightcc's own world: after `init_process_group()`, `hvd.init()` is done, and
all of `lightcc.torch` can be used beside the group. A program that has called `hvd.init()` first
gets a group of that world.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

import _lightcc_torch
from lightcc.torch.distributed import _worlds
from lightcc.torch.distributed._barrier import monitored_barrier
from lightcc.torch.distributed._compressing import compress_group
from lightcc.torch.distributed._process_group import ProcessGroup
from lightcc.torch.distributed._splitting import split_group
from lightcc.torch.distributed._work import Work

if TYPE_CHECKING:
    from datetime import timedelta

__all__ = ["ProcessGroup", "Work", "compress_group", "create", "monitored_barrier", "split_group"]


def create(options: Any, backend_options: Any = None) -> ProcessGroup:
    """Makes a process group, as torch.distributed asks a backend to. Blocks: for its ranks.

    Args:
        options: torch's: store, rank, size, timeout, name, and global ranks (none: all).
        backend_options: There are none.

    Raises:
        ValueError: There are options, or lightcc is initialized with other ranks.
        CollectiveTimeoutError: A rank did not appear in `options.timeout`.
        HorovodInternalError: A rank failed.
    """
    if backend_options is not None:
        msg = f"The backend lightcc takes no pg_options; found {type(backend_options).__name__}."
        raise ValueError(msg)
    _list_devices()
    rank, size, store = options.group_rank, options.group_size, options.store
    timeout: timedelta = options.timeout
    if dist.is_initialized():
        # Ranks of the default group are named. Without names, the store is the group's own.
        members = options.global_ranks_in_group
        parent = _parent() if members else None
        members = members or range(size)
        lease = _worlds.join_group(parent, options.group_id, store, rank, members, timeout)
    else:
        lease = _worlds.join_default(store, rank, size, timeout)
    return ProcessGroup(lease, options.group_id, timeout)


def _list_devices() -> None:
    """Tells torch that groups take tensors on `cuda` only where there is a GPU.

    ShardedTensor, for one, puts its results on a device that is listed and is not the CPU. Asked
    here, because torch registers the backend in every program that imports it.
    """
    if not torch.cuda.device_count():
        dist.Backend.backend_capability["lightcc"] = ["cpu"]


def _parent() -> _worlds.Lease | None:
    group: Any = dist.group.WORLD
    return group._leased() if isinstance(group, ProcessGroup) else None  # noqa: SLF001  ours


_lightcc_torch.register()
