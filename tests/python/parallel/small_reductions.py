"""What tests of small all-reduces combine, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

import lightcc as hvd

if TYPE_CHECKING:
    from arrays import Array

DTYPES = ("float32", "bfloat16", "int32", "bool")
COUNTS = (1, 60)
LARGE = 100_000  # In bytes, more than is ever inline.


def draw(dtype: str, count: int, rank: int) -> Array:
    """Returns values whose sum depends on the order of additions."""
    values = np.random.default_rng(rank).standard_normal(count) * 10.0 ** (rank % 3)
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    return (values > 0) if dtype == "bool" else (values * 100).astype(kind)


def operators(dtype: str) -> list[dict[str, Any]]:
    bounds = [{"op": hvd.Min}, {"op": hvd.Max}, {"op": hvd.Product}]
    if dtype == "bool":
        return bounds
    scaled = {"op": hvd.Sum, "prescale_factor": 0.3, "postscale_factor": 1.7}
    return [{"op": hvd.Sum}, {"op": hvd.Average}, scaled, *bounds]
