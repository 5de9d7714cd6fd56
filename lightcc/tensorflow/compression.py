"""Compression of what one operation sends: Horovod's `none` and `fp16`, and others."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lightcc.compression import (
    AutoCompressor,
    Compressor,
    Int4Compressor,
    Int8Compressor,
    NamedCompressors,
    NoneCompressor,
    TopKCompressor,
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


class _Narrow(Compressor):
    """Sends floating-point tensors in a narrower dtype."""

    _dtype: Any

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Returns `tensor` in the narrow dtype, and its own; other dtypes as they are."""
        if not tensor.dtype.is_floating:
            return tensor, None
        return tf.cast(tensor, cls._dtype), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns `tensor` in the dtype that `compress()` found."""
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(_Narrow):
    """Sends floating-point tensors as float16: half the bytes, 11 bits of precision."""

    _dtype = tf.float16


class BF16Compressor(_Narrow):
    """Sends floating-point tensors as bfloat16: the range of float32, 8 bits of precision."""

    _dtype = tf.bfloat16


class Compression(metaclass=NamedCompressors):
    """The compressors that come with lightcc, for TensorFlow's tensors."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    topk = TopKCompressor
    int8 = Int8Compressor
    int4 = Int4Compressor
    auto = AutoCompressor
