"""The collectives of a process group that move tensors and compute nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lightcc._world import GROUP, IN_PLACE, ONE
from lightcc.torch.distributed._calls import Calls, as_list, as_rows, check_elements, rooted
from lightcc.torch.distributed._tensors import (
    check_like,
    one_row,
    overlap,
    readable,
    scatter_row,
    then_copy,
    writable,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightcc.torch.distributed._work import Work


class Moving(Calls):
    """Broadcast, scatter, gather, all-gather and all-to-all."""

    # One rank to all.

    def broadcast(self, tensors: Any, *args: Any, **kwargs: Any) -> Work | None:
        """Copies the root's tensor to all ranks, in place."""
        tensors = as_list(tensors)
        (tensor,) = tensors
        opts, root, rest = rooted(args, kwargs)
        _, waits, timeout_s = self._asked(opts, (None, *rest), kwargs)
        self._check_rank(root, "root")
        row, staged = writable(tensor, read=self._rank == root)
        handle = self._world.broadcast(row, IN_PLACE, root, None, 0, waits, self._sequence)
        finish = then_copy([staged])
        return self._started(handle, tensors, waits, finish, timeout_s, "broadcast")

    def scatter(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Work | None:
        """Sends each rank its tensor of the root's list, which others leave empty."""
        (output,) = as_list(outputs)
        opts, root, rest = rooted(args, kwargs)
        _, waits, timeout_s = self._asked(opts, (None, *rest), kwargs)
        self._check_rank(root, "root")
        parts = as_rows(inputs)
        if self._rank == root:
            self._check_count(parts, "scatter: the root's input list")
            check_like(parts, output, "scatter")
            for part in parts:
                check_elements(part, output, "scatter")
            row, counts = one_row(parts), [readable(part).numel() for part in parts]
        else:
            if parts:
                msg = f"scatter: rank {self._rank} is not the root, {root}, and has an input list."
                raise ValueError(msg)
            row, counts = readable(output)[:0], [0] * self._size
        return self._exchange(row, counts, output, waits, timeout_s, "scatter")

    # All ranks to all, or to one.

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, **kwargs: Any) -> Work | None:
        """Gathers the tensors of all ranks into a list of tensors."""
        (tensor,) = as_list(inputs)
        results = as_rows(outputs)
        _, waits, timeout_s = self._asked(opts, (), kwargs)
        self._check_count(results, "all_gather: the output list")
        check_like(results, tensor, "all_gather")
        check_elements(results[self._rank], tensor, "all_gather")
        row = readable(tensor)

        def finish(everything: torch.Tensor) -> None:
            scatter_row(everything, results)

        handle = self._world.allgather(row, ONE, None, 0, waits, None, self._sequence)
        work = self._started(handle, results, waits, finish, timeout_s, "all_gather")
        if work is not None:
            # torch's hooks expect one tensor in the future, as NCCL has it.
            work.show(results, lambda: [torch.stack(results)])
        return work

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work | None:
        """Gathers several tensors of all ranks, as one operation: `outputs[rank][i]`."""
        _, waits, timeout_s = self._asked(opts, (), {})
        self._check_count(outputs, "all_gather_coalesced: the list of output lists")
        if any(len(row) != len(inputs) for row in outputs):
            msg = f"all_gather_coalesced: every output list needs {len(inputs)} tensors."
            raise ValueError(msg)
        lists = [list(row) for row in zip(*outputs, strict=True)]
        results = [tensor for row in lists for tensor in row]

        def finish(gathered: list[torch.Tensor]) -> None:
            for everything, row in zip(gathered, lists, strict=True):
                scatter_row(everything, row)

        rows = [readable(tensor) for tensor in inputs]
        handle = self._world.allgather(rows, GROUP, None, 0, waits, None, self._sequence)
        return self._started(handle, results, waits, finish, timeout_s, "all_gather_coalesced")

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Work | None:  # noqa: A002
        """Gathers the tensors of all ranks into one, in rank order."""
        _, waits, timeout_s = self._asked(opts, (), {})
        row, into, staged = self._gather_rows(output, input)
        compression = self._way_of(self._gathers, row)
        handle = self._world.allgather(row, ONE, None, 0, waits, into, self._sequence, compression)
        finish = then_copy([staged])
        return self._started(handle, [output], waits, finish, timeout_s, "all_gather_into_tensor")

    def all_gather_single_coalesced(
        self, outputs: Any, inputs: Any, opts: Any = None
    ) -> Work | None:
        """Does the same for several tensors, as one operation."""
        _, waits, timeout_s = self._asked(opts, (), {})
        rows = [self._gather_rows(out, tensor) for out, tensor in zip(outputs, inputs, strict=True)]
        handle = self._world.allgather(
            [row for row, _, _ in rows],
            GROUP,
            None,
            0,
            waits,
            [into for _, into, _ in rows],
            self._sequence,
        )
        finish = then_copy([staged for _, _, staged in rows])
        return self._started(
            handle, outputs, waits, finish, timeout_s, "all_gather_into_tensor_coalesced"
        )

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _gather_rows(self, output: torch.Tensor, tensor: torch.Tensor) -> Any:
        check_like([output], tensor, "all_gather_into_tensor")
        if output.numel() != tensor.numel() * self._size:
            msg = (
                f"all_gather_into_tensor: the output has {output.numel()} elements; the input has "
                f"{tensor.numel()}, and there are {self._size} ranks."
            )
            raise ValueError(msg)
        row = readable(tensor)
        into, staged = writable(output)
        own = into.data_ptr() + self._rank * row.nbytes
        if staged is None and overlap(row, into) and row.data_ptr() != own:
            row = row.clone()
        return row, into, staged

    def gather(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Work | None:
        """Gathers the tensors of all ranks into the root's list, which others leave empty."""
        (tensor,) = as_list(inputs)
        opts, root, rest = rooted(args, kwargs)
        _, waits, timeout_s = self._asked(opts, (None, *rest), kwargs)
        self._check_rank(root, "root")
        results = as_rows(outputs)
        row = readable(tensor)
        counts = [0] * self._size
        counts[root] = row.numel()
        if self._rank == root:
            self._check_count(results, "gather: the root's output list")
            check_like(results, tensor, "gather")
            for result in results:
                check_elements(result, tensor, "gather")
        elif results:
            msg = f"gather: rank {self._rank} is not the root, {root}, and has an output list."
            raise ValueError(msg)
        return self._exchange_lists(row, counts, results, waits, timeout_s, "gather")

    # All to all.

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None, **kwargs: Any) -> Work | None:
        """Sends each rank its tensor of the input list; the output list is what ranks sent."""
        _, waits, timeout_s = self._asked(opts, (), kwargs)
        self._check_count(inputs, "all_to_all: the input list")
        self._check_count(outputs, "all_to_all: the output list")
        check_like([*inputs, *outputs], inputs[0], "all_to_all")
        counts = [readable(tensor).numel() for tensor in inputs]
        row = one_row(inputs)
        return self._exchange_lists(row, counts, list(outputs), waits, timeout_s, "all_to_all")

    def all_to_all_single(
        self,
        output: Any,
        input: Any,  # noqa: A002  torch's name
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
        **kwargs: Any,
    ) -> Work | None:
        """Sends each rank its rows of the input; the output has the rows that ranks sent."""
        _, waits, timeout_s = self._asked(opts, (), kwargs)
        check_like([output], input, "all_to_all_single")
        self._check_splits(output_split_sizes, output, "output")
        splits = self._check_splits(input_split_sizes, input, "input")
        row = readable(input)
        per_row = row.numel() // input.size(0) if input.size(0) else 0
        counts = [split * per_row for split in splits]
        return self._exchange(row, counts, output, waits, timeout_s, "all_to_all_single")

    alltoall_base = all_to_all_single

    def _check_splits(self, splits: Sequence[int], tensor: torch.Tensor, what: str) -> list[int]:
        if tensor.dim() == 0:
            msg = f"all_to_all_single: the {what} is 0-dimensional; it needs rows."
            raise ValueError(msg)
        rows = tensor.size(0)
        if not splits:
            if rows % self._size:
                msg = (
                    f"all_to_all_single: the {what} has {rows} rows, which {self._size} ranks "
                    "cannot share evenly; give split sizes."
                )
                raise ValueError(msg)
            return [rows // self._size] * self._size
        if len(splits) != self._size or sum(splits) != rows or min(splits) < 0:
            msg = (
                f"all_to_all_single: the {what} split sizes {list(splits)} must be {self._size} "
                f"numbers, none negative, with the sum {rows}: the rows of the {what}."
            )
            raise ValueError(msg)
        return list(splits)

    def _exchange(
        self,
        row: torch.Tensor,
        counts: list[int],
        output: torch.Tensor,
        waits: bool,
        timeout_s: float | None,
        what: str,
    ) -> Work | None:
        """Sends consecutive parts of `row` to the ranks; what comes is the output."""
        into, staged = writable(output)
        if staged is None and overlap(row, into):
            row = row.clone()
        handle = self._world.alltoall(row, counts, None, 0, waits, into, self._sequence)
        return self._started(handle, [output], waits, then_copy([staged]), timeout_s, what)

    def _exchange_lists(
        self,
        row: torch.Tensor,
        counts: list[int],
        outputs: list[torch.Tensor],
        waits: bool,
        timeout_s: float | None,
        what: str,
    ) -> Work | None:
        def finish(received: tuple[torch.Tensor, torch.Tensor]) -> None:
            scatter_row(received[0], outputs)

        handle = self._world.alltoall(row, counts, None, 0, waits, None, self._sequence)
        return self._started(handle, outputs, waits, finish, timeout_s, what)
