"""Messages between two ranks of a process group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightcc.torch.distributed._calls import SEQUENCE, Calls
from lightcc.torch.distributed._tensors import readable, then_copy, writable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from lightcc.torch.distributed._work import Work


class Messages(Calls):
    """Sending and receiving.

    Messages of one pair of ranks and one tag arrive in the order in which they were sent. Receives
    of one tag take them in the order in which they were called, whatever source they name.
    """

    def send(self, tensors: Sequence[torch.Tensor], destination: int, tag: int = 0) -> Work | None:
        """Sends a tensor to one rank."""
        self._leased()
        (tensor,) = tensors
        self._check_rank(destination, "destination")
        handle = self._world.send(readable(tensor), destination, None, 0, False, self._tagged(tag))
        return self._under_way(handle, tensors, None, f"send to rank {destination}")

    def recv(self, tensors: Sequence[torch.Tensor], source: int, tag: int = 0) -> Work | None:
        """Receives a tensor of the same dtype and number of elements from one rank."""
        self._leased()
        (tensor,) = tensors
        self._check_rank(source, "source")
        row, staged = writable(tensor)
        handle = self._world.recv(row, source, None, 0, False, self._tagged(tag))
        what = f"recv from rank {source}"
        return self._under_way(handle, tensors, then_copy([staged]), what, source)

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int = 0) -> Work | None:
        """Receives a tensor from whichever rank sends first.

        The work's `source_rank()` is that rank, once `wait()` has returned.
        """
        self._leased()
        (tensor,) = tensors
        row, staged = writable(tensor)
        handle = self._world.recv_any(row, 0, self._tagged(tag))
        copy = then_copy([staged])

        def finish(received: tuple[object, int]) -> int:
            if copy is not None:
                copy(received)
            return received[1]

        return self._under_way(handle, tensors, finish, "recv from any rank")

    def _under_way(
        self,
        handle: int,
        tensors: Sequence[torch.Tensor],
        finish: Callable[[Any], int | None] | None,
        what: str,
        source: int = -1,
    ) -> Work | None:
        return self._started(
            handle, tensors, False, finish, None, what, source, is_collective=False
        )

    def _tagged(self, tag: int) -> str:
        return f"{SEQUENCE}t{tag}" if tag else SEQUENCE  # Wherever it is started.
