"""Communication hooks for torch's DistributedDataParallel.

DDP keeps its buckets and its overlap with the backward pass; lightcc carries the gradients, on two
levels and compressed between hosts, quantised or top-k:

    import lightcc.torch as hvd
    from lightcc.torch import ddp_hooks

    dist.init_process_group("gloo")
    hvd.init()  # The same ranks: under torchrun it finds them.
    model = DistributedDataParallel(model)
    model.register_comm_hook(ddp_hooks.QuantizedState(model, bits=4), ddp_hooks.quantized_2d_hook)
"""

# Not `from __future__ import annotations`: DDP looks at the annotations of its hooks.

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # torch exports it

from lightcc import _world
from lightcc._binding import _core
from lightcc._ops.reductions import Average
from lightcc.compression import EngineCompressor, Int4Compressor, Int8Compressor, TopKCompressor
from lightcc.process_sets import ProcessSet, global_process_set
from lightcc.torch import mpi_ops

__all__ = ["QuantizedState", "TopKState", "quantized_2d_hook", "topk_2d_hook"]


class _CompressedState:
    """How to compress, and the parameters' names.

    Residuals belong to parameters, not to DDP's buckets, so DDP may rebuild
    those. Saved with `save_compression_state()`.
    """

    def __init__(
        self, module: torch.nn.Module, compressor: EngineCompressor, process_set: ProcessSet
    ) -> None:
        self._spec = compressor.spec()
        self._names: dict[torch.Tensor, str] = {
            parameter: f"ddp.{name.removeprefix('module.')}"
            for name, parameter in module.named_parameters()
        }
        self._process_set = process_set

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Starts the average of a bucket's gradients, in place."""
        handle = _world.current().allreduce_each(
            bucket.gradients(),
            [self._names[parameter] for parameter in bucket.parameters()],
            Average,
            1.0,
            1.0,
            self._process_set.process_set_id,
            False,
            0,
            0,
            self._spec,
        )
        buffer = bucket.buffer()
        devices: list[int | str | torch.device] | None = [buffer.device] if buffer.is_cuda else None
        done: torch.futures.Future[None] = torch.futures.Future(devices=devices)

        def outcome(_: object) -> torch.Tensor:
            mpi_ops.synchronize(handle)
            return buffer

        # DDP takes what set_exception() sets for the result. What a callback raises reaches it.
        future = done.then(outcome)
        _core.add_done_callback(handle, lambda _: done.set_result(None))
        return future


class TopKState(_CompressedState):
    """What `topk_2d_hook()` needs to know: how to compress, and the parameters' names.

    Residuals belong to parameters, not to DDP's buckets, so DDP may rebuild
    those. Saved with `save_compression_state()`.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        ratio: float = 0.01,
        fp16: bool = False,
        warmup_steps: int = 0,
        *,
        exact: bool = False,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Must be called on every rank of the process set, with the same arguments.

        Args:
            module: The model, wrapped by DDP or not yet.
            ratio: As of `Compression.topk`, and so are `fp16`, `warmup_steps` and `exact`.
            fp16: See there.
            warmup_steps: See there.
            exact: See there.
            process_set: The ranks whose gradients are averaged: those of DDP's process group.

        Raises:
            ValueError: A number is out of its range.
        """
        super().__init__(
            module, TopKCompressor(ratio, fp16, warmup_steps, exact=exact), process_set
        )


class QuantizedState(_CompressedState):
    """The same for `quantized_2d_hook()`."""

    def __init__(
        self,
        module: torch.nn.Module,
        bits: int = 8,
        *,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Must be called on every rank of the process set, with the same arguments.

        Args:
            module: The model, wrapped by DDP or not yet.
            bits: Of an element on its way: 8 or 4, as `Compression.int8` and `Compression.int4`.
            process_set: The ranks whose gradients are averaged: those of DDP's process group.

        Raises:
            ValueError: `bits` is neither 8 nor 4.
        """
        if bits not in (8, 4):
            msg = f"bits is {bits}: expected 8 or 4"
            raise ValueError(msg)
        compressor = Int8Compressor() if bits == 8 else Int4Compressor()
        super().__init__(module, compressor, process_set)


def topk_2d_hook(state: TopKState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket's gradients over all ranks, compressed between hosts.

    Args:
        state: Made for the model that DDP wraps.
        bucket: As DDP hands it over.

    Returns:
        The bucket's buffer, with the averages, when they are there. Where a rank failed, DDP raises
        a RuntimeError on all ranks, which says HorovodInternalError and names it.
    """
    return state.reduce(bucket)


def quantized_2d_hook(
    state: QuantizedState, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket's gradients over all ranks, in 8 or 4 bits between hosts.

    Args:
        state: Made for the model that DDP wraps.
        bucket: As DDP hands it over.

    Returns:
        The bucket's buffer, with the averages, when they are there. Where a rank failed, DDP raises
        a RuntimeError on all ranks, which says HorovodInternalError and names it.
    """
    return state.reduce(bucket)


def __getattr__(name: str) -> object:
    if name in ("PowerSGDState", "powersgd_2d_hook"):
        msg = (
            f"{name} is no longer in lightcc: use quantized_2d_hook with bits=4, topk_2d_hook, or"
            " torch's own powerSGD_hook"
        )
        raise AttributeError(msg)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
