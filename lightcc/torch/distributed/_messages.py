"""Messages between two ranks of a process group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightcc.torch.distributed._calls import Calls
from lightcc.torch.distributed._tensors import readable, then_copy, writable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from lightcc.torch.distributed._work import Work


class Messages(Calls):
    """Sending and receiving.

    Messages of one pair of ranks and one tag arrive in the order in which they were sent.
    """

    def send(self, tensors: Sequence[torch.Tensor], destination: int, tag: int = 0) -> Work | None:
        """Sends a tensor to one rank."""
        self._leased()
        (tensor,) = tensors
        self._check_rank(destination, "destination")
        handle = self._world.send(readable(tensor), destination, None, 0, False, self._tagged(tag))
        return self._started(handle, tensors, False, None, None, f"send to rank {destination}")

    def recv(self, tensors: Sequence[torch.Tensor], source: int, tag: int = 0) -> Work | None:
        """Receives a tensor of the same dtype and number of elements from one rank."""
        self._leased()
        (tensor,) = tensors
        self._check_rank(source, "source")
        row, staged = writable(tensor)
        handle = self._world.recv(row, source, None, 0, False, self._tagged(tag))
        what = f"recv from rank {source}"
        return self._started(handle, tensors, False, then_copy([staged]), None, what, source)

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int = 0) -> Work | None:
        """Is not possible.

        Raises:
            NotImplementedError: Always. A receiver names the rank that sends.
        """
        del tensors, tag
        msg = (
            "The backend lightcc does not receive from any rank: ranks agree on a message before "
            "it travels. Give recv() and irecv() the source."
        )
        raise NotImplementedError(msg)

    def _tagged(self, tag: int) -> str:
        return f"{self._sequence}t{tag}" if tag else self._sequence
