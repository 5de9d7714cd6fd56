"""Batch normalization over the batches of all ranks together.

In training, each rank reduces its batch to a count, and per channel a mean and a sum of squared
deviations; one allgather brings all of them to all ranks, which merge them in the order of ranks
(Chan et al. 1983: no squares of means are subtracted, so nothing cancels), in float64. The backward
pass needs two more sums per channel, which one allreduce combines. Gradients of weight and bias
stay this rank's own: DistributedOptimizer combines those of all parameters.

A rank may have an empty batch. Where the number of values per channel is one in all, torch's error
is raised on all ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's custom
from torch.nn.modules.batchnorm import _BatchNorm

from lightcc._ops.basics import size
from lightcc._ops.reductions import Sum
from lightcc.torch import mpi_ops

if TYPE_CHECKING:
    from torch import Tensor


class SyncBatchNorm(_BatchNorm):
    """Applies batch normalization with the statistics of the batches of all ranks.

    A drop-in for `torch.nn.BatchNorm1d`, `2d` and `3d`: in training, forward and backward are those
    of one process with the joined batch. In evaluation, and in a job of one rank, it is the local
    layer. Input: shape (N, C, ...), floating point; N may differ between ranks.

    Collective: in training, all ranks must run the same layers in the same order, forward and
    backward.

    Args:
        num_features: C.
        eps: Added to the variance.
        momentum: Weight of a batch in the running statistics; `None`: their plain average.
        affine: Whether there are weight and bias, shape (C,).
        track_running_stats: Whether evaluation uses running statistics, not those of its batch.

    Raises:
        ValueError: The input has fewer than two dimensions, on this rank; or there is only one
            value per channel, on all ranks.
        HorovodInternalError: A rank failed. On all ranks.

    Example:
        >>> import torch, lightcc.torch as hvd
        >>> hvd.init()
        >>> hvd.SyncBatchNorm(2)(torch.tensor([[1.0, 2.0], [3.0, 2.0]])).round().tolist()
        [[-1.0, 0.0], [1.0, 0.0]]
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002  torch's name
        if input.dim() < 2:
            msg = f"expected at least 2D input (got {input.dim()}D input)"
            raise ValueError(msg)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  torch's name
        """Returns the normalized input, a new tensor of the same shape and dtype."""
        if not self.training or size() == 1:
            return super().forward(input)
        self._check_input_dim(input)
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        output: Tensor = _SyncBatchNorm.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, self.running_mean, self.running_var, self.eps, momentum
        )
        return output


class _SyncBatchNorm(torch.autograd.Function):
    """Forward and backward of SyncBatchNorm in training."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,  # noqa: A002  torch's name
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        eps: float,
        momentum: float,
    ) -> Tensor:
        """Normalizes with the statistics of all ranks and updates the running ones in place."""
        count, mean, var = _statistics_of_all(input)
        if running_mean is not None and running_var is not None:
            unbiased = var * (count / (count - 1))
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
        # Statistics and parameters have one type, at least float32, in torch's kernels.
        wide = _wide(input.dtype) if weight is None else weight.dtype
        mean32, var32 = mean.to(wide), var.to(wide)
        ctx.save_for_backward(input, weight, mean32, torch.rsqrt(var + eps).to(wide))
        ctx.count = count
        return F.batch_norm(input, mean32, var32, weight, bias, training=False, eps=eps)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Returns gradients: of input (all ranks' losses), of weight and bias (this one's)."""
        (grad_output,) = grad_outputs
        input, weight, mean, invstd = ctx.saved_tensors  # noqa: A001  torch's name
        dims = _other_dims(input)
        wide = _wide(input.dtype)
        grad = grad_output.to(wide)
        deviation = input.to(wide) - _per_channel(mean.to(wide), input)
        sums = torch.stack([grad.sum(dims), (grad * deviation).sum(dims)]).double()

        grad_weight = grad_bias = grad_input = None
        if weight is not None and ctx.needs_input_grad[1]:
            grad_weight = (sums[1] * invstd).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            grad_bias = sums[0].to(mean.dtype)
        if ctx.needs_input_grad[0]:
            # Not in place: the gradients above may lie in `sums`. And without a name, as all
            # backward collectives: LIGHT_TOPK_ALLREDUCE may compress those that have one.
            total = mpi_ops.allreduce(sums, op=Sum) / ctx.count
            scale = invstd.double() if weight is None else invstd.double() * weight.double()
            slope = total[1] * invstd.double().square()
            grad_input = grad - _per_channel(total[0].to(wide), input)
            grad_input -= deviation * _per_channel(slope.to(wide), input)
            grad_input = (grad_input * _per_channel(scale.to(wide), input)).to(input.dtype)
        return grad_input, grad_weight, grad_bias, None, None, None, None


def _statistics_of_all(input: Tensor) -> tuple[float, Tensor, Tensor]:  # noqa: A002
    """Returns count, mean and biased variance per channel over all ranks, the latter in float64."""
    channels = input.size(1)
    count = input.numel() // channels if channels else 0
    own = torch.zeros(1, 2 * channels + 1, dtype=torch.float64, device=input.device)
    own[0, 0] = count
    if count > 0:
        var, mean = torch.var_mean(input.to(_wide(input.dtype)), _other_dims(input), correction=0)
        own[0, 1 : channels + 1] = mean
        own[0, channels + 1 :] = var
    every = mpi_ops.allgather(own, name="sync_batch_norm.statistics")
    counts, means, variances = every[:, :1], every[:, 1 : channels + 1], every[:, channels + 1 :]
    total = float(counts.sum())
    if total <= 1:
        msg = (
            "Expected more than 1 value per channel when training, got "
            f"{total:.0f} on all ranks together"
        )
        raise ValueError(msg)
    mean = (counts * means).sum(0) / total
    var = (counts * (variances + (means - mean).square())).sum(0) / total
    return total, mean, var


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _other_dims(input: Tensor) -> list[int]:  # noqa: A002
    return [0, *range(2, input.dim())]


def _per_channel(values: Tensor, input: Tensor) -> Tensor:  # noqa: A002
    """Returns values (C,) in a shape that fits input (N, C, ...)."""
    return values.view(1, -1, *[1] * (input.dim() - 2))
