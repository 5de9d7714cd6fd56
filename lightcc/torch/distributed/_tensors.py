"""Tensors of any layout and dtype, as the engine takes them: one-dimensional and contiguous.

A tensor that is contiguous already is used where it lies. Another one travels as a copy, and
results are copied back when the operation is done. A dtype that the engine does not know travels as
bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: What the engine computes with.
NUMBERS = frozenset(
    {
        torch.uint8,
        torch.int8,
        torch.uint16,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.float32,
        torch.float64,
        torch.bool,
        torch.bfloat16,
    }
)

#: Where tensors may be. What no GPU here serves, the engine refuses, and says why.
DEVICE_TYPES = ("cpu", "cuda")

#: A caller's tensor, and what its result is staged in.
CopyBack = tuple[torch.Tensor, torch.Tensor]


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the elements of `tensor` in one row: a view, or a copy where that is not possible."""
    check_dense(tensor)
    tensor = tensor.detach()
    if tensor.is_neg() or tensor.is_conj():
        tensor = tensor.resolve_conj().resolve_neg()
    return row_of(tensor.contiguous())


def writable(tensor: torch.Tensor, read: bool = False) -> tuple[torch.Tensor, CopyBack | None]:
    """Returns a row that receives the elements of `tensor`.

    Args:
        tensor: The caller's output.
        read: Whether it holds an input as well.

    Returns:
        The row, and, where it is not the memory of `tensor`, the two that `then_copy()` needs.
    """
    check_dense(tensor)
    tensor = tensor.detach()
    if tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj():
        return row_of(tensor), None
    staged = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    if read:
        staged.copy_(tensor)
    return row_of(staged), (tensor, staged)


def row_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a contiguous tensor in one row, as bytes where the engine does not know its dtype."""
    row = tensor if tensor.dim() == 1 else tensor.view(-1)
    return row if tensor.dtype in NUMBERS else row.view(torch.uint8)


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether two contiguous tensors share memory."""
    first, second = a.data_ptr(), b.data_ptr()
    return first < second + b.nbytes and second < first + a.nbytes


def check_dense(tensor: torch.Tensor) -> None:
    """Raises ValueError unless `tensor` is a dense tensor in memory that the backend takes."""
    if tensor.device.type not in DEVICE_TYPES:
        msg = f"Tensor is on device {tensor.device}; the backend lightcc takes cpu and cuda."
        raise ValueError(msg)
    if tensor.layout is not torch.strided:
        msg = f"Tensor has layout {tensor.layout}; this operation takes dense tensors."
        raise ValueError(msg)


def check_like(tensors: Sequence[torch.Tensor], model: torch.Tensor, what: str) -> None:
    """Raises ValueError unless all `tensors` have the dtype of `model`, and are where it is."""
    for tensor in tensors:
        if tensor.dtype != model.dtype:
            msg = f"{what}: tensors are of {tensor.dtype} and of {model.dtype}, not of one dtype."
            raise ValueError(msg)
        if tensor.device != model.device:
            msg = f"{what}: tensors are on {tensor.device} and {model.device}, not on one device."
            raise ValueError(msg)


def one_row(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the elements of all tensors, one after the other, in a new row."""
    rows = [readable(tensor) for tensor in tensors]
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def scatter_row(row: torch.Tensor, outputs: Sequence[torch.Tensor]) -> None:
    """Copies consecutive parts of `row` into `outputs`."""
    start = 0
    for output in outputs:
        count = length(output)
        part = row[start : start + count]
        output.detach().copy_(part.view(output.dtype).view(output.shape))
        start += count


def length(tensor: torch.Tensor) -> int:
    """Returns how many elements `row_of(tensor)` has."""
    known = tensor.dtype in NUMBERS
    return tensor.numel() if known else tensor.numel() * tensor.element_size()


def then_copy(pairs: Sequence[CopyBack | None]) -> Callable[[object], None] | None:
    """Returns what copies all staged results, or nothing where there are none."""
    staged = [pair for pair in pairs if pair is not None]
    if not staged:
        return None

    def finish(_: object) -> None:
        for tensor, row in staged:
            tensor.copy_(row)

    return finish
