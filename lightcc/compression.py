"""Compression of what one operation sends, by the names of Horovod's `Compression`.

A compressor is a class with two static methods. Others than these can be passed, too. Those here
take numpy arrays and torch tensors; torch records what they do for its gradients.
"""

from __future__ import annotations

from typing import Any, Protocol


class Compressor(Protocol):
    """Turns a tensor into what is sent, and back."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns what to send for `tensor`, and what `decompress()` needs to know."""

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the result in the form of the input."""


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns `tensor` and `None`."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:  # noqa: ARG004  the protocol's signature
        """Returns `tensor`."""
        return tensor


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16: half the bytes, 11 bits of precision."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns `tensor` as float16, and its dtype; other dtypes as they are."""
        if hasattr(tensor, "is_floating_point"):  # A torch.Tensor.
            return (tensor.half(), tensor.dtype) if tensor.is_floating_point() else (tensor, None)
        if tensor.dtype.kind != "f":
            return tensor, None
        return tensor.astype("float16", copy=False), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns `tensor` in the dtype that `compress()` found."""
        if ctx is None:
            return tensor
        return tensor.to(ctx) if hasattr(tensor, "to") else tensor.astype(ctx, copy=False)


class Compression:
    """The compressors that come with lightcc."""

    none = NoneCompressor
    fp16 = FP16Compressor
