"""Communication hooks for torch's DistributedDataParallel.

DDP keeps its buckets and its overlap with the backward pass; lightcc carries the gradients, on two
levels and top-k compressed between hosts:

    import lightcc.torch as hvd
    from lightcc.torch import ddp_hooks

    dist.init_process_group("gloo")
    hvd.init()  # The same ranks: under torchrun it finds them.
    model = DistributedDataParallel(model)
    model.register_comm_hook(ddp_hooks.TopKState(model, ratio=0.01), ddp_hooks.topk_2d_hook)
"""

# Not `from __future__ import annotations`: DDP looks at the annotations of its hooks.

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # torch exports it

from lightcc import _core, _world
from lightcc.compression import TopKCompressor
from lightcc.process_sets import ProcessSet, global_process_set
from lightcc.reductions import Average
from lightcc.torch import mpi_ops

__all__ = ["TopKState", "topk_2d_hook"]


class TopKState:
    """What `topk_2d_hook()` needs to know: how to compress, and the parameters' names.

    What compression keeps back belongs to parameters, not to DDP's buckets, so DDP may rebuild
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
        """Every rank of the process set must make it, with the same arguments.

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
        self._spec = TopKCompressor(ratio, fp16, warmup_steps, exact=exact).spec()
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
            topk=self._spec,
        )
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        buffer = bucket.buffer()

        def finish(done: int) -> None:
            try:
                mpi_ops.synchronize(done)
            except Exception as error:  # noqa: BLE001  whatever it is belongs to who waits
                future.set_exception(error)  # type: ignore[arg-type]  # torch has it wrong
            else:
                future.set_result(buffer)

        _core.add_done_callback(handle, finish)
        return future


def topk_2d_hook(state: TopKState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket's gradients over all ranks, compressed between hosts.

    Args:
        state: Made for the model that DDP wraps.
        bucket: As DDP hands it over.

    Returns:
        The bucket's buffer, with the averages, when they are there. HorovodInternalError, on all
        ranks, where a rank failed.
    """
    return state.reduce(bucket)
