"""Rows: several tensors that travel as one. Blocks that share a scale are of one tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

_BLOCK = 128  # Elements that share a scale.


def join(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns tensors of one dtype as a row, each from a new block on."""
    zeros = parts[0].new_zeros(_BLOCK)
    return torch.cat([it for p in parts for it in (p.flatten(), zeros[: -p.numel() % _BLOCK])])


def parts_of(row: torch.Tensor, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns views of a row like `join(parts)`: what it has in the place of each part."""
    cuts = row.split([p.numel() + -p.numel() % _BLOCK for p in parts])
    return [it[: p.numel()].view(p.shape) for it, p in zip(cuts, parts, strict=True)]
