"""The sum of sparse tensors over a process group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lightcc._world import GROUP
from lightcc.torch.distributed._tensors import readable

if TYPE_CHECKING:
    from lightcc.torch.distributed._calls import Calls
    from lightcc.torch.distributed._work import Work


def allreduce(group: Calls, tensor: torch.Tensor, op: Any, *, waits: bool) -> Work | None:
    """Adds up sparse tensors in coordinate layout, in place. Ranks may have different entries.

    Raises:
        ValueError: The reduction is not the sum.
    """
    kind = getattr(op, "op", op)
    if kind.name != "SUM":
        msg = f"ReduceOp.{kind.name} is not possible with sparse tensors; SUM is."
        raise ValueError(msg)
    # An entry is a row, so that ranks may have different numbers of them.
    entries = tensor._indices().t().contiguous()  # noqa: SLF001  torch's name for what need not be
    values = tensor._values().detach().contiguous()  # noqa: SLF001  coalesced
    shape, width = tensor.shape, tensor.sparse_dim()

    def finish(gathered: list[torch.Tensor]) -> None:
        indices = gathered[0].view(-1, width).t()
        numbers = gathered[1].view(values.dtype).view(-1, *values.shape[1:])
        total = torch.sparse_coo_tensor(indices, numbers, shape).coalesce()
        tensor.copy_(total)

    handle = group._world.allgather(  # noqa: SLF001  its own package
        [readable(entries), readable(values)],
        GROUP,
        None,
        0,
        waits,
        None,
        group._sequence,  # noqa: SLF001
    )
    return group._started(handle, [tensor], waits, finish, None, "all_reduce")  # noqa: SLF001
