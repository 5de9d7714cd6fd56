"""Compression of what one operation sends: Horovod's `none` and `fp16`, and others."""

from __future__ import annotations

from typing import Any

import torch

from lightcc.compression import (
    AdamCompressor,
    AutoCompressor,
    Compressor,
    Fp8Compressor,
    FP16Compressor,
    Int4Compressor,
    Int8Compressor,
    NamedCompressors,
    NoneCompressor,
    OneBitCompressor,
    TopKCompressor,
)

__all__ = [
    "AdamCompressor",
    "AutoCompressor",
    "BF16Compressor",
    "Compression",
    "Compressor",
    "FP16Compressor",
    "Fp8Compressor",
    "Int4Compressor",
    "Int8Compressor",
    "NoneCompressor",
    "OneBitCompressor",
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
    fp8 = Fp8Compressor
    int4 = Int4Compressor
    onebit = OneBitCompressor
    adam = AdamCompressor
    auto = AutoCompressor
