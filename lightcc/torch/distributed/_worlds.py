"""The engine's worlds behind process groups: how they are made, and how they end.

The default group is lightcc's own world: `hvd.init()` has made it, or it is made here as
`hvd.init()` would, its ranks meeting in torch's store. Every other group is a world of its own. So
two groups of the same ranks do not wait for each other, and a group's ranks may have any order. A
group with a store of its own meets there. Some of its ranks may have no default group yet, and it
is their first: both kinds of world have the same keys, and number their operations alike.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import multiprocessing.util
import os
import secrets
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from lightcc import _world
from lightcc._binding import _core
from lightcc._discovery.epoch import Epoch
from lightcc._discovery.meeting import Party, meet, this_machine
from lightcc._discovery.torch_store import TorchStoreChannel, prefix_of_start
from lightcc._ops import basics, nccl_net
from lightcc.exceptions import HorovodInternalError
from lightcc.torch.distributed._work import is_pending

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import timedelta

# How long one look for the others takes while a group is left.
_SLICE_S = 0.1
# How long the end of the program waits for them where no group was destroyed.
_FAREWELL_S = 5.0
# How often this process joined one group: ranks count alike.
_joined: dict[str, int] = {}
# Worlds of groups that have not ended.
_open: list[Lease] = []


class Lease:
    """A process group's hold on a world.

    Attributes:
        world: The engine's world, whose ranks are the group's.
        member: How it was found, from which worlds of its subgroups are made.
        prefix: Of the world's keys in the store.
        is_default: Whether the world is lightcc's own, which others use, too.
    """

    def __init__(
        self,
        world: _core.World,
        member: Epoch,
        prefix: str,
        *,
        is_default: bool = False,
        ends_world: bool = True,
    ) -> None:
        """Takes the world.

        Args:
            world: See the attributes, and so for the next two.
            member: See there.
            prefix: See there.
            is_default: See there.
            ends_world: Whether it ends with the group.
        """
        self.world = world
        self.member = member
        self.prefix = prefix
        self.is_default = is_default
        self._ends_world = ends_world
        self._barrier: int | None = None
        self._ending = threading.Lock()
        self._deadline = math.inf
        _open.append(self)

    def loss(self, members: Sequence[int]) -> HorovodInternalError | None:
        """Returns the error that ended the world, unless it is about a rank beside `members`."""
        if not self.world.failed:
            return None
        try:
            _core.wait(self.world.barrier(0))
        except HorovodInternalError as error:
            return error if error.rank is None or error.rank in members else None
        return None

    def fail(self, error: BaseException) -> None:
        """Has all other ranks fail because of an error of this one's program."""
        basics.fail_others(self.world, error)

    def start_leaving(self) -> None:
        """Tells the others that this rank is through, unless something has gone wrong."""
        if self._barrier is None and not self.world.failed and _all_is_well():
            with contextlib.suppress(HorovodInternalError, ValueError):
                self._barrier = self.world.barrier(0)

    def leave(self, timeout_s: float) -> None:
        """Ends the world, or the use of it, once all ranks have come so far. Blocks."""
        self.start_leaving()
        self._end(timeout_s)

    def leave_aside(self, timeout_s: float) -> None:
        """Does what `leave()` does, without waiting: other groups go on meanwhile."""
        self.start_leaving()
        threading.Thread(target=self._end, args=(timeout_s,), daemon=True).start()

    def hurry(self, deadline: float) -> None:
        """Ends the world by a time of `time.monotonic()`, whether others have come so far or not.

        What is in flight then fails with ShutDownError on all ranks.
        """
        self._deadline = deadline
        self._end(math.inf)

    def _end(self, timeout_s: float) -> None:
        with self._ending:
            if self not in _open:
                return
            limit = time.monotonic() + timeout_s
            while self._barrier is not None and time.monotonic() < min(limit, self._deadline):
                with contextlib.suppress(HorovodInternalError):
                    _core.wait(self._barrier, _SLICE_S)
                if not is_pending(self._barrier):
                    break
            if self._ends_world:
                self._end_world()
            _open.remove(self)

    def _end_world(self) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, Exception) and not self.world.failed:
            self.fail(error)
        if self.is_default and _world.exists() and _world.current() is self.world:
            basics.shutdown()
        else:
            self.world.shutdown()


def join_default(store: Any, rank: int, size: int, timeout: timedelta) -> Lease:
    """Returns the world of all ranks. Blocks: for all of them.

    Raises:
        ValueError: lightcc is initialized with another rank or size.
        PeerFailedError: The ranks did not find each other.
    """
    found = basics.is_initialized()
    if not found:
        basics.join_world(_meet(store, rank, size, timeout))
    world = _world.current()
    if (world.rank, world.size) != (rank, size):
        msg = (
            f"lightcc is initialized as rank {world.rank} of {world.size}, but the process "
            f"group is to be rank {rank} of {size}; call hvd.shutdown() first."
        )
        raise ValueError(msg)
    epoch = basics.current_epoch()
    return Lease(world, epoch, epoch.prefix, is_default=True, ends_world=not found)


def join_group(
    parent: Lease | None,
    name: str,
    store: Any,
    rank: int,
    members: Sequence[int],
    timeout: timedelta,
) -> Lease:
    """Returns a new world of some ranks. Blocks: for them.

    Args:
        parent: Of a group whose ranks these are; `None`: they meet in `store`.
        name: The group's, the same on its ranks.
        store: torch's, for ranks without a parent.
        rank: In the group.
        members: Ranks of the group, as ranks of the parent.
        timeout: How long others may take to come.

    Raises:
        CollectiveTimeoutError: A rank did not come in time.
        HorovodInternalError: A rank is gone, or failed.
    """
    size = len(members)
    if parent is None:
        member = _meet(store, rank, size, timeout)
        prefix = member.prefix
    else:
        # Not below the parent's keys, which rank 0 removes when all have read them.
        base = f"c10d/{parent.prefix}{name}/"
        prefix = f"{base}{_count(_joined, base)}/"
        member = replace(parent.member, rank=rank, size=size)
    nccl_net.open_nccl()
    with _stopped_by_losses(parent, members, member, prefix):
        world = _core.World(
            rank=rank,
            size=size,
            rendezvous=member.rendezvous if size > 1 else "",
            key_prefix=prefix,
            secret=member.secret,
            group_timeout_s=timeout.total_seconds(),
        )
    return Lease(world, member, prefix)


@contextlib.contextmanager
def _stopped_by_losses(
    parent: Lease | None, members: Sequence[int], member: Epoch, prefix: str
) -> Iterator[None]:
    """Has ranks that join fail where the parent's world learns that one of them is gone."""
    if parent is None or len(members) == 1:
        yield
        return
    if (loss := parent.loss(members)) is not None:
        raise loss
    joined = threading.Event()

    def watch() -> None:
        while not joined.wait(_SLICE_S):
            if (loss := parent.loss(members)) is not None:
                client = _core.StoreClient(member.rendezvous, member.secret)
                with contextlib.suppress(HorovodInternalError):
                    client.fail(prefix, str(loss), _FAREWELL_S)
                client.close()
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    except HorovodInternalError:
        if (loss := parent.loss(members)) is not None:
            raise loss from None
        raise
    finally:
        joined.set()
        watcher.join()


def _count(counts: dict[str, int], key: str) -> int:
    counts[key] = counts.get(key, 0) + 1
    return counts[key]


def _all_is_well() -> bool:
    """Returns whether this rank leaves of its own accord, and not because of an exception."""
    return sys.exc_info()[0] is None


def _meet(store: Any, rank: int, size: int, timeout: timedelta) -> Epoch:
    if size == 1:
        return Epoch(group=f"c10d-{secrets.token_hex(8)}")
    prefix = prefix_of_start(os.environ)
    # Nobody comes a second time before all have come once.
    meeting = (store.add(f"{prefix}arrivals", 1) - 1) // size
    own = dist.PrefixStore(f"{prefix}{meeting}/", store)  # type: ignore[attr-defined]  # is exported
    where = "the store of torch.distributed"
    channel = TorchStoreChannel(own, where, rank, size, timeout)
    group = channel.broadcast(f"c10d-{secrets.token_hex(8)}")
    machines = channel.gather(this_machine())
    verdict = channel.broadcast("one" if len(set(machines)) == 1 else "many")
    party = Party(rank, size, one_machine=verdict == "one")
    return replace(meet(channel, party, os.environ), group=group)


def _at_exit() -> None:
    # Whether the program ends because of an error is told of an exception, not of sys.exit(1).
    leases = tuple(_open)
    error = getattr(sys, "last_value", None)
    for lease in leases:
        if error is None:
            lease.start_leaving()
        else:
            lease.fail(error)
    deadline = time.monotonic() + _FAREWELL_S
    for lease in leases:
        lease.hurry(deadline)


def _at_exit_of_child() -> None:
    # A process of multiprocessing ends in here while its exception goes up, perhaps as the context
    # of a SystemExit that torch's spawn() has put in its place.
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        error = error.__context__
    if error is not None:
        for lease in tuple(_open):
            lease.fail(error)
            lease.hurry(time.monotonic())


atexit.register(_at_exit)
if multiprocessing.parent_process() is not None:
    multiprocessing.util.Finalize(None, _at_exit_of_child, exitpriority=0)
