"""Compression of what one operation sends: Horovod's `none` and `fp16`, and others."""

from __future__ import annotations

from typing import Any

import torch

from lightcc.compression import (
    AutoCompressor,
    Compressor,
    FP16Compressor,
    Int4Compressor,
    Int8Compressor,
    NamedCompressors,
    NoneCompressor,
    TopKCompressor,
    find_engine_compressor,
)

__all__ = [
    "AutoCompressor",
    "BF16Compressor",
    "Compression",
    "Compressor",
    "FP16Compressor",
    "Int4Compressor",
    "Int8Compressor",
    "NoneCompressor",
    "TopKCompressor",
]


class BF16Compressor(Compressor):
    """Sends floating-point tensors as bfloat16: the range of float32, 8 bits of precision."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns `tensor` as bfloat16, and its dtype; other dtypes as they are."""
        if not tensor.is_floating_point():
            return tensor, None
        return tensor.to(torch.bfloat16), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns `tensor` in the dtype that `compress()` found."""
        return tensor if ctx is None else tensor.to(ctx)


class Compression(metaclass=NamedCompressors):
    """The compressors that come with lightcc, for torch tensors."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    topk = TopKCompressor
    int8 = Int8Compressor
    int4 = Int4Compressor
    auto = AutoCompressor


def by_engine(compression: Any) -> Any:
    """Returns the part of `compression` that is not done in Python."""
    return find_engine_compressor(compression) or Compression.none


def refuse_gradients(compression: Any) -> None:
    """Raises ValueError where the engine would compress what requires a gradient."""
    compressor = find_engine_compressor(compression)
    if compressor is not None:
        msg = (
            f"A tensor that requires a gradient cannot be {compressor.label} compressed: what is "
            "not sent is not in the result. Call it under torch.no_grad()."
        )
        raise ValueError(msg)
