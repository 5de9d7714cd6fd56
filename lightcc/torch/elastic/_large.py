"""Tensors of a state that travel by themselves, from where they lie, and those that need not."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from lightcc.torch.functions import as_bytes

#: Smaller tensors are copied, and travel with everything else that is small.
MIN_BYTES = 16 << 10


class Large(NamedTuple):
    """What a large tensor is."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    def target(self, own: Any) -> torch.Tensor:
        """Returns a contiguous tensor in CPU memory for it: `own`, where that is one like it."""
        if isinstance(own, torch.Tensor):
            tensor = own.detach()
            is_like = tensor.dtype == self.dtype and tuple(tensor.shape) == self.shape
            is_plain = tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()
            if is_like and is_plain and tensor.device.type == "cpu":
                return tensor
        return torch.empty(self.shape, dtype=self.dtype)


class Small(NamedTuple):
    """A small tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    data: bytes


def is_large(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor travels by itself."""
    return tensor.numel() * tensor.element_size() >= MIN_BYTES


def describe(obj: Any) -> Large | Small | None:
    """Returns what `make` needs; `None`: it is no tensor whose elements lie side by side."""
    if not isinstance(obj, torch.Tensor) or obj.layout != torch.strided or obj.is_quantized:
        return None
    if is_large(obj):
        return Large(obj.dtype, tuple(obj.shape))
    return Small(obj.dtype, tuple(obj.shape), as_bytes(obj).numpy().tobytes())


def make(description: Large | Small) -> torch.Tensor:
    """Returns a small tensor, or the place for a large one."""
    if isinstance(description, Large):
        return description.target(None)
    found = torch.empty(description.shape, dtype=description.dtype)
    if description.data:
        as_bytes(found).copy_(torch.frombuffer(bytearray(description.data), dtype=torch.uint8))
    return found
