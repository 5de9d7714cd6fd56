"""Compression of what one operation sends, by the names of Horovod's `Compression`.

A compressor is a class with two static methods. Others than these can be passed, too. Those here
take numpy arrays and torch tensors; torch records what they do for its gradients. Top-k, int8
and int4 are done by the engine.
"""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lightcc._core import CompressionSpec


#: What takes the place of compressors that lightcc no longer has (docs/lab/tried.md).
_INSTEAD = {
    "adam": "Compression.int4",
    "fp8": "Compression.int8",
    "onebit": "Compression.int4",
    "powersgd": "Compression.int4, Compression.topk(...) under SGD, or torch's own powerSGD_hook",
}


class CompressionWarning(UserWarning):
    """A way of compressing costs accuracy where it is used."""


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


def _check_numbers(**given: Any) -> None:
    for name, value in given.items():
        if not isinstance(value, Real):
            msg = f"{name} is {value!r}: expected a number"
            raise TypeError(msg)


class EngineCompressor(Compressor):
    """Leaves tensors to the engine, which compresses what it sends between hosts itself.

    What a step does not send, or rounds away, is added to what the next one has to send (error
    feedback), so nothing is lost, only late. Within a host everything travels. Tensors that are not
    of a floating-point dtype travel as they are, and so does everything where all ranks share a
    host. So do all-reduces of small tensors (`LIGHT_TOPK_THRESHOLD`).

    A residual belongs to the name of the operation. See `save_compression_state()`.
    """

    #: As messages call it.
    label = ""

    def __repr__(self) -> str:
        """Returns class and settings."""
        settings = (f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({', '.join(settings)})"

    def spec(self, momentum: float | None = None) -> CompressionSpec:
        """Returns what the engine is asked for.

        Args:
            momentum: The optimizer's, where the compressor applies it.
        """
        raise NotImplementedError

    def describe(self) -> str:
        """Returns what it does, as messages say it."""
        return self.label

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns `tensor` and `None`: the engine compresses what it sends itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:  # noqa: ARG004  the protocol's signature
        """Returns `tensor`."""
        return tensor


class _QuantizedCompressor(EngineCompressor):
    """Sends all elements between hosts in few bits, with a scale for each 128 of them."""

    _bits = 0

    def spec(self, momentum: float | None = None) -> CompressionSpec:  # noqa: ARG002
        """Returns what the engine is asked for; no momentum is applied."""
        # Not at the top: this module is imported where the engine is not.
        from lightcc._core import CompressionSpec

        return CompressionSpec.quantized(self._bits)


class Int8Compressor(_QuantizedCompressor):
    """Sends elements as int8 between hosts: 25.4% of the bytes of float32, for any optimizer.

    Each 128 elements share a scale of 2 bytes. What rounding takes away is added to what the next
    step has to send (error feedback). Which tensors travel so, and what else is common to
    compressors of the engine: see `EngineCompressor`.

    Sources: Alistarh et al., "QSGD" (2017), without its random rounding; Karimireddy et al., "Error
    Feedback Fixes SignSGD" (2019).
    """

    label = "int8"
    _bits = 8


class Int4Compressor(_QuantizedCompressor):
    """Sends elements in 4 bits between hosts: 12.9% of the bytes of float32, for any optimizer.

    As `Int8Compressor` otherwise. docs/convergence.md has what it does to training.
    """

    label = "int4"
    _bits = 4


class TopKCompressor(EngineCompressor):
    """Sends the elements of largest magnitude between hosts, and keeps the rest for the next time.

    Right for SGD. Under Adam and its like it costs accuracy (docs/convergence.md); there, use
    `Int4Compressor`. Which tensors are compressed: see `EngineCompressor`.

    Sources: Stich et al., "Sparsified SGD with Memory" (2018); Lin et al., "Deep Gradient
    Compression" (2018).

    Args:
        ratio: Share of the elements that each host sends, above 0, at most 1.
        fp16: Another spelling of `values="fp16"`.
        warmup_steps: For so many steps the share falls from 25% to `ratio`, exponentially.
        momentum_correction: Whether momentum is applied to the residual instead of by the
            optimizer, as in Deep Gradient Compression. `True` takes the momentum of the optimizer
            (only DistributedOptimizer knows it); a number is the momentum.
        exact: Whether exactly `ratio` of the elements are sent, of equal ones the first; otherwise
            about as many, which is faster.
        values: How values travel. "fp32": as they are. "fp16": as float16. "2bit": as a sign and
            one of two magnitudes of 4,096 elements, 1.75 bytes an element with its place, where
            "fp32" takes 6; float16 and float64 travel as they are then. What rounding takes away
            stays in the residual. `None`: "fp16" or "fp32", as `fp16` says.

    Raises:
        ValueError: A number is out of its range, or `values` is another word.
    """

    label = "top-k"

    def __init__(
        self,
        ratio: float = 0.01,
        fp16: bool = False,
        warmup_steps: int = 0,
        momentum_correction: bool | float = False,
        *,
        exact: bool = False,
        values: str | None = None,
    ) -> None:
        """Takes the arguments of the class."""
        if values not in (None, "fp32", "fp16", "2bit") or (fp16 and values not in (None, "fp16")):
            msg = f"values is {values!r} and fp16 {fp16}; allowed are 'fp32', 'fp16' and '2bit'"
            raise ValueError(msg)
        _check_numbers(ratio=ratio, warmup_steps=warmup_steps)
        self.ratio = ratio
        self.values = values or ("fp16" if fp16 else "fp32")
        self.fp16 = self.values == "fp16"
        self.warmup_steps = warmup_steps
        self.momentum_correction = momentum_correction
        self.exact = exact
        self.spec(0.0 if isinstance(momentum_correction, bool) else None)  # Checks the rest.

    def describe(self) -> str:
        """Returns what it does, as messages say it."""
        correction = ", with momentum correction" if self.momentum_correction else ""
        warmup = f", after {self.warmup_steps} steps of warm-up" if self.warmup_steps else ""
        values = " in 2 bits" if self.values == "2bit" else ""
        return f"{self.label} at {self.ratio:.3g}{values}{warmup}{correction}"

    def spec(self, momentum: float | None = None) -> CompressionSpec:
        """Returns what the engine is asked for.

        Args:
            momentum: The optimizer's, where `momentum_correction` is `True`.
        """
        # Not at the top: this module is imported where the engine is not.
        from lightcc._core import CompressionSpec

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
        return CompressionSpec(
            self.ratio,
            self.fp16,
            self.exact,
            self.warmup_steps,
            momentum or 0.0,
            self.values == "2bit",
        )


class AutoCompressor(EngineCompressor):
    """Finds out how gradients should travel, for each of them, while it trains.

    For `DistributedOptimizer` of torch, TensorFlow and Keras, and for `DistributedGradientTape`.
    After a warm-up, each way of compressing has a few steps: none, int8, int4, and top-k at 5% and
    1%. The mildest one stays that makes steps about as short as the fastest does. So nothing is
    compressed where the network is not what limits. Before top-k there are 2100 steps of int4, and
    1000 in which its share falls, since shorter trainings lose accuracy by it. Optimizers that
    divide by squares of gradients, as Adam does, get no top-k, nor do tapes, which do not know
    their optimizer.

    From then on, a gradient whose residual is too large takes the next milder way. That is seen
    in `stats().compression`. `optimizer.compression_choices()` returns the ways, and Python's
    logger "lightcc" tells of changes at level INFO. What each way does to training is in
    docs/convergence.md.

    Args:
        budget: What a step may send between hosts at most, as a share of the bytes of float32.
            Above 0, at most 1. The least is 0.015 (top-k), or 0.129 (int4) where there is no
            top-k. The warm-up, and gradients that take a milder way, may send more.
        error: Limit of `kept_ratio`: the residual over what a step brings. `None`: 8,
            or 0.5 where the optimizer divides by squares of what arrives. Above 0.
        warmup_steps: For so many steps everything travels as int8, at least 0.

    Raises:
        ValueError: A number is out of its range.
    """

    label = "auto"

    def __init__(
        self, budget: float = 1.0, error: float | None = None, warmup_steps: int = 100
    ) -> None:
        """Takes the arguments of the class."""
        _check_numbers(budget=budget, warmup_steps=warmup_steps)
        if not 0.0 < budget <= 1.0:
            msg = f"budget is {budget}: expected a share above 0, at most 1"
            raise ValueError(msg)
        if error is not None and not 0.0 < error < float("inf"):
            msg = f"error is {error}: expected a finite number above 0, or None"
            raise ValueError(msg)
        if warmup_steps < 0:
            msg = f"warmup_steps is {warmup_steps}: expected a number of at least 0"
            raise ValueError(msg)
        self.budget = budget
        self.error = error
        self.warmup_steps = warmup_steps

    def spec(self, momentum: float | None = None) -> CompressionSpec:  # noqa: ARG002
        """Raises ValueError: only DistributedOptimizer knows when a step is over."""
        msg = (
            "auto compression is for DistributedOptimizer and DistributedGradientTape, which know"
            " their steps; use Compression.int8 elsewhere."
        )
        raise ValueError(msg)


def find_engine_compressor(compression: Any) -> EngineCompressor | None:
    """Returns the compressor that `compression` asks of the engine, if it does."""
    if isinstance(compression, type):
        # issubclass() of a protocol takes a microsecond.
        asks = EngineCompressor in compression.__mro__ and compression is not EngineCompressor
        return compression() if asks else None
    return compression if isinstance(compression, EngineCompressor) else None


def engine_spec(compression: Any) -> CompressionSpec | None:
    """Returns what `compression` asks of the engine, if anything."""
    compressor = find_engine_compressor(compression)
    return None if compressor is None else compressor.spec()


def compress_one(compression: type[Compressor] | Compressor, tensor: Any) -> tuple[Any, Any]:
    """Returns what to send for a tensor, and what makes a result of what comes back."""
    check_compression(compression)
    return compression.compress(tensor)


def compress_each(
    compression: type[Compressor] | Compressor, tensors: Iterable[Any]
) -> tuple[list[Any], Callable[[Iterable[Any]], list[Any]]]:
    """Returns what to send for several tensors, and what makes results of what comes back."""
    check_compression(compression)
    compressed = [compression.compress(tensor) for tensor in tensors]

    def restore(outputs: Iterable[Any]) -> list[Any]:
        return [
            compression.decompress(output, context)
            for output, (_, context) in zip(outputs, compressed, strict=True)
        ]

    return [sent for sent, _ in compressed], restore


def check_compression(compression: Any) -> None:
    """Raises TypeError, with what is allowed, where `compression` is no compressor."""
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        msg = (
            f"compression is {compression!r}; allowed are Compression.none, Compression.fp16, "
            "Compression.topk(...), Compression.int8, Compression.int4, "
            "Compression.auto(...), and what has their methods compress() and decompress()."
        )
        raise TypeError(msg)


def refuse_engine_compressor(compression: Any, operation: str) -> None:
    """Raises ValueError where TensorFlow would have the engine compress what is no allreduce."""
    compressor = find_engine_compressor(compression)
    if compressor is not None:
        msg = (
            f"{operation} cannot be {compressor.label} compressed: in TensorFlow only an allreduce"
            " can."
        )
        raise ValueError(msg)


class NamedCompressors(type):
    """Says of compressors that lightcc no longer has what takes their place."""

    def __getattr__(cls, name: str) -> Any:
        """Raises AttributeError."""
        instead = _INSTEAD.get(name)
        if instead is None:
            msg = f"Compression has no {name!r}"
        else:
            msg = f"Compression.{name} is no longer in lightcc: use {instead}"
        raise AttributeError(msg)


class Compression(metaclass=NamedCompressors):
    """The compressors that come with lightcc."""

    none = NoneCompressor
    fp16 = FP16Compressor
    topk = TopKCompressor
    int8 = Int8Compressor
    int4 = Int4Compressor
    auto = AutoCompressor
