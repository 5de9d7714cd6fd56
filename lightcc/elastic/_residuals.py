"""Residuals of compression, from one world to the next.

A rank that has the same shard in the next world keeps its residuals, as they are where its world
ends. Everybody else begins at zero, and rank 0 logs one line that says so. Commits have no part in
this: a residual is an error of bounded size, not a part of the state.

Not handled: residuals of process sets, which end with their world.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from lightcc import _world
from lightcc._binding import _core
from lightcc._ops.functions import allgather_object
from lightcc.exceptions import HorovodInternalError

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger(__name__)


class Residuals:
    """Those of this rank, between two worlds."""

    def __init__(self) -> None:
        """Has none."""
        self._is_in_world = False
        self._position: tuple[int, int, int, int] | None = None
        self._states: dict[str, bytes] = {}

    def take(self) -> None:
        """Takes them out of a world that has ended. Local.

        Where training has not begun in it, those of the world before are still here.
        """
        if not self._is_in_world or not _world.exists():
            return
        world = _world.current()
        self._is_in_world = False
        self._position = world.compression_position(0)
        try:
            states = world.save_compression()
        except (HorovodInternalError, ValueError) as error:
            _log.warning("residuals of compression are lost on rank %d: %s", world.rank, error)
            states = {}
        self._states = {name: it for (process_set, name), it in states.items() if not process_set}

    def put(self) -> None:
        """Puts them into a world that begins, where this rank has the same shard. Collective.

        Raises:
            HorovodInternalError: A rank failed; on all ranks.
        """
        world = _world.current()
        position = world.compression_position(0)
        # The shard is member i of so many, whatever the number of hosts.
        is_same = position and self._position and position[2:] == self._position[2:]
        kept = self._states if is_same else {}
        counts = allgather_object((len(self._states), len(kept)), "lightcc.elastic.residuals")
        if world.rank == 0:
            tell(counts)
        for name, state in kept.items():
            if position and position != self._position:
                state = _core.regroup_compression(state, [state], *position)
            world.load_compression(0, name, state)
        self._states = {}
        self._is_in_world = True


def tell(counts: Sequence[tuple[int, int]]) -> None:
    """Says which ranks begin at zero.

    Args:
        counts: By rank, of how many tensors it had residuals, and of how many it has them now.
    """
    tensors = max(had for had, _ in counts)
    begin = [
        f"{tensors - kept} on rank {i}" for i, (_, kept) in enumerate(counts) if kept < tensors
    ]
    if begin:
        _log.warning("residuals of compression begin at zero, of tensors: %s", ", ".join(begin))
