"""All-reduce, reduce and reduce-scatter of a process group."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from lightcc._world import GROUP, IN_PLACE, NEW, ONE
from lightcc.torch.distributed import _sparse
from lightcc.torch.distributed._calls import Calls, as_list, as_rows, check_elements, rooted
from lightcc.torch.distributed._reductions import numbers, reduction
from lightcc.torch.distributed._tensors import (
    check_like,
    one_row,
    overlap,
    readable,
    then_copy,
    writable,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightcc._core import CompressionSpec
    from lightcc.torch.distributed._reductions import Reduction
    from lightcc.torch.distributed._work import Work


class Reducing(Calls):
    """The collectives that compute."""

    # All-reduce, and what is made of it.

    def allreduce(self, tensors: Any, opts: Any = None, *args: Any, **kwargs: Any) -> Work | None:
        """Combines a tensor over all ranks, in place."""
        if type(tensors) is not list:
            tensors = list(as_list(tensors))
        (tensor,) = tensors
        op, waits, timeout_s = self._asked(opts, args, kwargs)
        if tensor.layout is torch.sparse_coo:
            return _sparse.allreduce(self, tensor, op, waits=waits)
        how = reduction(op, tensor.dtype)
        if how.bitwise is not None:
            return self._bitwise(tensor, tensor, how, waits)
        is_served = tensor.is_cpu or tensor.is_cuda
        if how.as_real or not tensor.is_contiguous() or tensor.is_neg() or not is_served:
            target = numbers(tensor, how, written=True)
            row, staged = writable(target, read=True)
            row = row.view(target.shape)  # As that of a rank whose tensor is contiguous.
            finish = then_copy([staged])
        else:
            row, finish = tensor, None
        handle = self._world.allreduce(
            row, ONE, IN_PLACE, None, how.op, how.factor, 1.0, 0, waits, None, self._sequence
        )
        return self._started(handle, tensors, waits, finish, timeout_s, "all_reduce")

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Work | None:
        """Combines several tensors of one dtype over all ranks, in place, as one operation."""
        op, waits, timeout_s = self._asked(opts, (), {})
        check_like(tensors, tensors[0], "all_reduce_coalesced")
        how = reduction(op, tensors[0].dtype)
        if how.bitwise is not None:
            return self._together([self._bitwise(t, t, how, False) for t in tensors], waits)
        pairs = [writable(numbers(t, how, written=True), read=True) for t in tensors]
        handle = self._world.allreduce(
            [row for row, _ in pairs],
            GROUP,
            IN_PLACE,
            None,
            how.op,
            how.factor,
            1.0,
            0,
            waits,
            None,
            self._sequence,
        )
        finish = then_copy([staged for _, staged in pairs])
        return self._started(handle, tensors, waits, finish, timeout_s, "all_reduce_coalesced")

    def reduce(self, tensors: Any, *args: Any, **kwargs: Any) -> Work | None:
        """Combines a tensor over all ranks into that of the root; others keep theirs."""
        (tensor,) = as_list(tensors)
        opts, root, rest = rooted(args, kwargs)
        op, waits, timeout_s = self._asked(opts, rest, kwargs)
        self._check_rank(root, "root")
        if self._rank == root:
            target = tensor
        else:
            target = tensor.detach().clone(memory_format=torch.contiguous_format)
        options = dist.AllreduceOptions()
        options.reduceOp = op
        options.asyncOp = True
        work = self.allreduce([target], options)
        return self._settled(work, [tensor], waits, timeout_s)

    def _bitwise(
        self, tensor: torch.Tensor, output: torch.Tensor, how: Reduction, waits: bool
    ) -> Work | None:
        """Gathers all contributions, and combines them here in rank order."""
        row = readable(tensor)

        def finish(everything: torch.Tensor) -> None:
            combined = reduce(how.bitwise, everything.view(self._size, -1).unbind())
            output.detach().copy_(combined.view(output.shape))

        handle = self._world.allgather(row, ONE, None, 0, waits, None, self._sequence)
        return self._started(handle, [output], waits, finish, None, "all_reduce")

    # Reduce-scatter.

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, *args: Any, **kwargs: Any
    ) -> Work | None:
        """Combines lists of tensors over all ranks; each rank gets its part."""
        (output,) = as_list(outputs)
        parts = as_rows(inputs)
        op, waits, timeout_s = self._asked(opts, args, kwargs)
        self._check_count(parts, "reduce_scatter: the input list")
        check_like(parts, output, "reduce_scatter")
        check_elements(parts[self._rank], output, "reduce_scatter")
        how = reduction(op, output.dtype)
        rows = [numbers(part, how) for part in parts]
        if any(row.numel() != rows[0].numel() for row in rows):
            # The engine cuts evenly. Uneven parts are combined whole.
            return self._reduce_and_cut(one_row(rows), rows, output, how, waits, timeout_s)
        return self._scatter_sum(one_row(rows), output, how, waits, timeout_s)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Work | None:  # noqa: A002
        """Combines a tensor over all ranks; each rank gets its equal part, in rank order."""
        op, waits, timeout_s = self._asked(opts, (), {})
        how = self._check_scatter(output, input, op)
        row = readable(numbers(input, how))
        compression = self._way_of(self._scatters, output)
        return self._scatter_sum(row, output, how, waits, timeout_s, compression)

    def reduce_scatter_single_coalesced(
        self, outputs: Any, inputs: Any, opts: Any = None
    ) -> Work | None:
        """Does the same for several tensors, as one operation."""
        op, waits, timeout_s = self._asked(opts, (), {})
        hows = [self._check_scatter(o, i, op) for o, i in zip(outputs, inputs, strict=True)]
        how = hows[0]
        check_like(outputs, outputs[0], "reduce_scatter_tensor_coalesced")
        rows = [readable(numbers(tensor, how)) for tensor in inputs]
        if not how.scatters:
            works = [
                self._scatter_sum(row, output, how, False, None)
                for row, output in zip(rows, outputs, strict=True)
            ]
            return self._together(works, waits)
        targets = [self._scatter_target(row, o, how) for row, o in zip(rows, outputs, strict=True)]
        handle = self._world.reducescatter(
            [row for row, _, _ in targets],
            GROUP,
            None,
            how.op,
            how.factor,
            1.0,
            0,
            waits,
            [into for _, into, _ in targets],
            self._sequence,
        )
        finish = then_copy([staged for _, _, staged in targets])
        return self._started(
            handle, outputs, waits, finish, timeout_s, "reduce_scatter_tensor_coalesced"
        )

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _check_scatter(self, output: torch.Tensor, tensor: torch.Tensor, op: Any) -> Reduction:
        check_like([output], tensor, "reduce_scatter_tensor")
        if tensor.numel() != output.numel() * self._size:
            msg = (
                f"reduce_scatter_tensor: the input has {tensor.numel()} elements; the output has "
                f"{output.numel()}, and there are {self._size} ranks."
            )
            raise ValueError(msg)
        return reduction(op, tensor.dtype)

    def _scatter_target(self, row: torch.Tensor, output: torch.Tensor, how: Reduction) -> Any:
        into, staged = writable(numbers(output, how, written=True))
        if staged is None and overlap(row, into):
            row = row.clone()
        return row, into, staged

    def _scatter_sum(
        self,
        row: torch.Tensor,
        output: torch.Tensor,
        how: Reduction,
        waits: bool,
        timeout_s: float | None,
        compression: CompressionSpec | None = None,
    ) -> Work | None:
        if not how.scatters:
            rows = list(row.chunk(self._size)) if row.numel() else [row] * self._size
            return self._reduce_and_cut(row, rows, output, how, waits, timeout_s)
        row, into, staged = self._scatter_target(row, output, how)
        handle = self._world.reducescatter(
            row, ONE, None, how.op, how.factor, 1.0, 0, waits, into, self._sequence, compression
        )
        finish = then_copy([staged])
        return self._started(handle, [output], waits, finish, timeout_s, "reduce_scatter")

    def _reduce_and_cut(
        self,
        row: torch.Tensor,
        parts: Sequence[torch.Tensor],
        output: torch.Tensor,
        how: Reduction,
        waits: bool,
        timeout_s: float | None,
    ) -> Work | None:
        """Combines everything on every rank, and takes this rank's part."""
        start = sum(part.numel() for part in parts[: self._rank])
        count = parts[self._rank].numel()

        def finish(everything: torch.Tensor) -> None:
            target = numbers(output, how, written=True)
            if how.bitwise is not None:
                everything = reduce(how.bitwise, everything.view(self._size, -1).unbind())
            target.detach().copy_(everything[start : start + count].view(target.shape))

        if how.bitwise is not None:
            handle = self._world.allgather(row, ONE, None, 0, waits, None, self._sequence)
        else:
            handle = self._world.allreduce(
                row, ONE, NEW, None, how.op, how.factor, 1.0, 0, waits, None, self._sequence
            )
        return self._started(handle, [output], waits, finish, timeout_s, "reduce_scatter")
