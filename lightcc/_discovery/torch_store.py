"""A channel through a store of torch.distributed. This module does not import torch."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from lightcc.exceptions import PeerFailedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import timedelta


class TorchStoreChannel:
    """Talks through keys of a torch store; a Channel of `meeting`."""

    def __init__(
        self, store: Any, where: str, rank: int, size: int, timeout: timedelta | None = None
    ) -> None:
        """Takes a store.

        Args:
            store: torch's, of which nobody else uses keys that begin with broadcast and gather.
            where: What errors call it.
            rank: Of this process.
            size: Number of ranks.
            timeout: For each text of another rank; `None` is the store's own.
        """
        self._store = store
        self._where = where
        self._rank = rank
        self._size = size
        self._timeout = timeout
        self._broadcasts = 0
        self._gathers = 0

    def broadcast(self, text: str) -> str:
        """Returns rank 0's `text` on every rank.

        Whoever reaches the store may read what is in it, so the last reader takes the text out.
        """
        key = f"broadcast/{self._broadcasts}"
        self._broadcasts += 1
        with explained(self._rank, self._size, self._where):
            if self._rank == 0:
                self._store.set(key, text)
                return text
            found = self._get(key)
            if self._store.add(f"{key}/read", 1) == self._size - 1:
                with contextlib.suppress(RuntimeError):  # Stores of files keep what they have.
                    self._store.delete_key(key)
            return found

    def gather(self, text: str) -> list[str]:
        """Returns every rank's `text`, in rank order, on rank 0; nothing on the others."""
        prefix = f"gather/{self._gathers}"
        self._gathers += 1
        with explained(self._rank, self._size, self._where):
            self._store.set(f"{prefix}/{self._rank}", text)
            if self._rank != 0:
                return []
            return [self._get(f"{prefix}/{rank}") for rank in range(self._size)]

    def _get(self, key: str) -> str:
        if self._timeout is not None:
            self._store.wait([key], self._timeout)
        return str(self._store.get(key).decode())


def prefix_of_start(env: Mapping[str, str]) -> str:
    """Returns what our keys begin with in a store that outlives the ranks, as torchrun's does.

    Ranks that torchrun has started anew do not read what their predecessors left.
    """
    return f"lightcc/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}/"


@contextlib.contextmanager
def explained(rank: int, size: int, where: str) -> Iterator[None]:
    """Turns what torch's stores raise into PeerFailedError; `where` names the store."""
    try:
        yield
    except RuntimeError as error:  # torch's DistError is one.
        msg = (
            f"rank {rank} of {size} did not find all ranks through {where}: "
            f"{str(error).splitlines()[0]}"
        )
        raise PeerFailedError(msg) from error
