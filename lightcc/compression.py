"""Compression of what one operation sends, by the names of Horovod's `Compression`.

A compressor is a class with two static methods. Others than these can be passed, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from lightcc._typing import Array, ArrayOrScalar


class Compressor(Protocol):
    """Turns an array into what is sent, and back."""

    @staticmethod
    def compress(tensor: ArrayOrScalar) -> tuple[ArrayOrScalar, Any]:
        """Returns what to send for `tensor`, and what `decompress()` needs to know."""

    @staticmethod
    def decompress(tensor: Array, ctx: Any) -> Array:
        """Returns the result in the form of the input."""


class NoneCompressor:
    """Sends arrays as they are."""

    @staticmethod
    def compress(tensor: ArrayOrScalar) -> tuple[ArrayOrScalar, Any]:
        """Returns `tensor` and `None`."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Array, ctx: Any) -> Array:  # noqa: ARG004  the protocol's signature
        """Returns `tensor`."""
        return tensor


class FP16Compressor:
    """Sends floating-point arrays as float16: half the bytes, 11 bits of precision."""

    @staticmethod
    def compress(tensor: ArrayOrScalar) -> tuple[ArrayOrScalar, Any]:
        """Returns `tensor` as float16, and its dtype; other dtypes as they are."""
        if tensor.dtype.kind != "f":
            return tensor, None
        return tensor.astype("float16", copy=False), tensor.dtype

    @staticmethod
    def decompress(tensor: Array, ctx: Any) -> Array:
        """Returns `tensor` in the dtype that `compress()` found."""
        return tensor if ctx is None else tensor.astype(ctx, copy=False)


class Compression:
    """The compressors that come with lightcc."""

    none = NoneCompressor
    fp16 = FP16Compressor
