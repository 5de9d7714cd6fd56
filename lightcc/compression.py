"""Compression of what one operation sends, by the names of Horovod's `Compression`.

A compressor is a class with two static methods. Others than these can be passed, too. Those here
take numpy arrays and torch tensors; torch records what they do for its gradients. Top-k is done by
the engine, between hosts only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from lightcc._core import TopkSpec


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


class TopKCompressor(Compressor):
    """Sends the elements of largest magnitude between hosts, and keeps the rest for the next time.

    What a step does not send is added to what the next one has to send (error feedback), so nothing
    is lost, only late. Within a host everything travels. Tensors that are small
    (`LIGHT_TOPK_THRESHOLD`) or not of a floating-point dtype travel as they are, and so does
    everything where all ranks share a host.

    What is kept back belongs to the name of the operation. See `save_compression_state()`.

    Sources: Stich et al., "Sparsified SGD with Memory" (2018); Lin et al., "Deep Gradient
    Compression" (2018).

    Args:
        ratio: Share of the elements that each host sends, above 0, at most 1.
        fp16: Whether values travel as float16. What the rounding takes away is kept back, too.
        warmup_steps: For so many steps the share falls from 25% to `ratio`, exponentially.
        momentum_correction: Whether momentum is applied to what is kept back instead of by the
            optimizer, as in Deep Gradient Compression. `True` takes the momentum of the optimizer
            (only DistributedOptimizer knows it); a number is the momentum.
        exact: Whether exactly `ratio` of the elements are sent, of equal ones the first; otherwise
            about as many, which is faster.

    Raises:
        ValueError: A number is out of its range.
    """

    def __init__(
        self,
        ratio: float = 0.01,
        fp16: bool = False,
        warmup_steps: int = 0,
        momentum_correction: bool | float = False,
        *,
        exact: bool = False,
    ) -> None:
        """Takes the arguments of the class."""
        self.ratio = ratio
        self.fp16 = fp16
        self.warmup_steps = warmup_steps
        self.momentum_correction = momentum_correction
        self.exact = exact
        self.spec(0.0 if isinstance(momentum_correction, bool) else None)  # Checks the rest.

    def spec(self, momentum: float | None = None) -> TopkSpec:
        """Returns what the engine is asked for.

        Args:
            momentum: The optimizer's, where `momentum_correction` is `True`.
        """
        # Not at the top: this module is imported where the engine is not.
        from lightcc._core import TopkSpec

        if isinstance(self.momentum_correction, bool):
            if self.momentum_correction and momentum is None:
                msg = (
                    "momentum_correction=True takes the momentum of an optimizer, and here is "
                    "none: give the momentum as a number, or use DistributedOptimizer."
                )
                raise ValueError(msg)
        else:
            momentum = self.momentum_correction
        if self.warmup_steps < 0:
            msg = f"warmup_steps is {self.warmup_steps}: expected a number of at least 0"
            raise ValueError(msg)
        return TopkSpec(self.ratio, self.fp16, self.exact, self.warmup_steps, momentum or 0.0)

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns `tensor` and `None`: the engine compresses what it sends itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:  # noqa: ARG004  the protocol's signature
        """Returns `tensor`."""
        return tensor


def find_topk(compression: Any) -> TopKCompressor | None:
    """Returns the top-k compressor that `compression` asks for, if it does."""
    if compression is TopKCompressor:
        return TopKCompressor()
    return compression if isinstance(compression, TopKCompressor) else None


def topk_spec(compression: Any) -> TopkSpec | None:
    """Returns what `compression` asks of the engine, if anything."""
    topk = find_topk(compression)
    return None if topk is None else topk.spec()


def check_compression(compression: Any) -> None:
    """Raises TypeError, with what is allowed, where `compression` is no compressor."""
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        msg = (
            f"compression is {compression!r}; allowed are Compression.none, Compression.fp16, "
            "Compression.topk(...), and what has their methods compress() and decompress()."
        )
        raise TypeError(msg)


def refuse_topk(compression: Any, operation: str) -> None:
    """Raises ValueError where `compression` is top-k."""
    if find_topk(compression) is not None:
        msg = f"{operation} cannot be top-k compressed: only an allreduce can."
        raise ValueError(msg)


class Compression:
    """The compressors that come with lightcc."""

    none = NoneCompressor
    fp16 = FP16Compressor
    topk = TopKCompressor
