"""The sum of sparse tensors: the entries of all ranks, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lightcc import _world
from lightcc._ops.reductions import Average, ReduceOp, Sum
from lightcc._ops.waiting import synchronize
from lightcc._world import GROUP
from lightcc.process_sets import ProcessSet, global_process_set, set_id

if TYPE_CHECKING:
    from collections.abc import Callable


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Starts to combine a sparse tensor over all ranks.

    Indices and values travel as a group of allgathers, so ranks may have different numbers of
    entries. It has the name of a dense allreduce, so that ranks with one and the other do not wait.

    Collective: every rank of the process set must call it with the same `name`, dtype, shape and
    `op`.

    Args:
        tensor: Sparse, in coordinate layout; need not be coalesced. Read.
        name: Matches this call across ranks; see `lightcc`.
        op: `Average` or `Sum`.
        process_set: The ranks that take part.

    Returns:
        A function in the place of a handle: it waits, and returns a new sparse tensor, which is not
        coalesced, the same on every rank. It may be called again.

    Raises:
        ValueError: This rank's call is wrong; see `lightcc`.
        NotImplementedError: `op` is another.
        HorovodInternalError: By the returned function, on all ranks; see `lightcc`.
    """
    if op not in (Average, Sum):
        found = ReduceOp(op).name.capitalize() if op in list(ReduceOp) else op
        msg = f"op is {found}; sparse tensors have Average and Sum only."
        raise NotImplementedError(msg)
    if tensor.layout != torch.sparse_coo:
        msg = f"Tensor is required to be sparse, in coordinate layout; found {tensor.layout}."
        raise ValueError(msg)
    shape = tensor.shape
    # An entry is a row: indices have shape (entries, sparse dimensions).
    rows = tensor._indices().t().contiguous()  # noqa: SLF001  torch's name for what need not be
    values = tensor._values().detach().contiguous()  # noqa: SLF001  coalesced
    handle = _world.current().allgather(
        [rows, values], GROUP, name, set_id(process_set), sequence="allreduce" if name else ""
    )
    results: list[torch.Tensor] = []

    def wait() -> torch.Tensor:
        if not results:
            all_rows, all_values = synchronize(handle)
            if op == Average:
                exact = all_values.is_floating_point()
                all_values = torch.div(
                    all_values, process_set.size() or 1, rounding_mode=None if exact else "trunc"
                )
            results.append(torch.sparse_coo_tensor(all_rows.t(), all_values, shape))
        return results[0]

    return wait
