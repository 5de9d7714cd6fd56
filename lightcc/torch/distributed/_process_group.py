"""The process group of torch.distributed that lightcc carries out."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from lightcc._ops.reductions import Sum
from lightcc._world import IN_PLACE, ONE
from lightcc.torch.distributed import _worlds
from lightcc.torch.distributed._barrier import MonitoredBarrier
from lightcc.torch.distributed._dynamo import keep_out
from lightcc.torch.distributed._moving import Moving
from lightcc.torch.distributed._reducing import Reducing
from lightcc.torch.distributed._tensors import DEVICE_TYPES
from lightcc.torch.distributed._work import Together, Work

# torch's types have forms of the methods that torch itself does not use.
_TorchGroup: Any = dist.ProcessGroup


class ProcessGroup(Reducing, Moving, MonitoredBarrier, _TorchGroup):  # type: ignore[misc]
    """A group of ranks whose collectives lightcc carries out.

    Made by `torch.distributed.init_process_group("lightcc")` and `new_group()`. Tensors are in CPU
    or CUDA memory, of any shape and layout; contiguous ones are used where they lie. Ranks are
    those of the group. Methods have torch's names, take what torch's own groups take, and return a
    `Work`; with `opts.asyncOp = False` they wait and return nothing.

    Attributes:
        splits: How often each part was split off, by its name.

    All methods raise, on this rank alone and before anything has started:
        ValueError: An argument is not possible, or the group has been destroyed.
    """

    def __init__(self, lease: _worlds.Lease, name: str, timeout: timedelta) -> None:
        """Takes the world that the group runs on."""
        _TorchGroup.__init__(self, lease.world.rank, lease.world.size)
        title = f"the default group {name!r}" if lease.is_default else f"group {name!r}"
        Reducing.__init__(self, lease, name, title, timeout)
        self._group_name = name
        self._group_desc = "undefined"
        self.splits: dict[str, int] = {}

    # What torch asks a group about itself.

    def getBackendName(self) -> str:  # noqa: N802  torch's name
        """Returns "lightcc"."""
        return "lightcc"

    name = _get_backend_name = getBackendName

    def rank(self) -> int:
        """Returns this process's rank in the group."""
        return self._rank

    def size(self) -> int:
        """Returns the number of ranks in the group."""
        return self._size

    def getGroupName(self) -> str:  # noqa: N802  torch's C++ asks for it so
        """Returns the group's name, which torch gives it."""
        return self._group_name

    @property
    def group_name(self) -> str:
        """The group's name."""
        return self._group_name

    def _set_group_name(self, name: str) -> None:
        self._group_name = name

    @property
    def group_desc(self) -> str:
        """A text for people, which torch gives the group."""
        return self._group_desc

    def _set_group_desc(self, text: str) -> None:
        self._group_desc = text

    supports_splitting: ClassVar[bool] = False
    supports_coalescing: ClassVar[bool] = True

    @property
    def _device_types(self) -> list[torch.device]:
        has_gpu = torch.cuda.is_available()
        return [torch.device(name) for name in DEVICE_TYPES if has_gpu or name != "cuda"]

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        if torch.device(device).type not in DEVICE_TYPES:
            known = " and ".join(DEVICE_TYPES)
            msg = f"{self._title} of the backend lightcc takes tensors on {known}, not on {device}."
            raise RuntimeError(msg)
        return self

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self._operations

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets how long `Work.wait()` waits at most."""
        self._timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    # The end.

    def shutdown(self) -> None:
        """Leaves the group, as `destroy_process_group()` does.

        It waits until the other ranks have come so far, unless an exception is being handled. A
        group other than the default one is left in the background.
        """
        lease, self._lease = self._lease, None
        if lease is None:
            return
        if lease.is_default:
            lease.leave(self._timeout_s)
        else:
            lease.leave_aside(self._timeout_s)

    def abort(self) -> None:
        """Leaves the group at once; operations in flight fail with ShutDownError on all ranks."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.hurry(0.0)

    def split_group(
        self,
        new_ranks: list[int],
        timeout: timedelta | None = None,
        opts: Any = None,  # noqa: ARG002  torch passes it
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,  # noqa: ARG002
    ) -> ProcessGroup | None:
        """Makes a group of some of this group's ranks. Collective among `new_ranks`.

        Args:
            new_ranks: Ranks of this group, in the order of their new ranks.
            timeout: Of the new group; as of this one by default.
            opts: Not used.
            group_name: The same on all its ranks; made from the ranks by default.
            group_desc: A text for people.
            device_types: Not used.

        Returns:
            The group; `None` where this rank is not in `new_ranks`.
        """
        lease = self._leased()
        if len(set(new_ranks)) != len(new_ranks) or not set(new_ranks) <= set(range(self._size)):
            msg = f"new_ranks is {new_ranks}: expected different ranks from 0 to {self._size - 1}."
            raise ValueError(msg)
        if self._rank not in new_ranks:
            return None
        name = group_name or f"split:{','.join(map(str, new_ranks))}"
        limit = timeout or timedelta(seconds=self._timeout_s)
        position = new_ranks.index(self._rank)
        made = _worlds.join_group(lease, name, None, position, new_ranks, limit)
        group = ProcessGroup(made, name, limit)
        group._set_group_name(name)
        group._set_group_desc(group_desc or "undefined")
        return group

    # Barrier.

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Work | None:
        """Is done when all ranks have called it, and their GPUs have finished what came before."""
        if isinstance(opts, timedelta):
            opts, timeout = None, opts
        _, waits, timeout_s = self._asked(opts, (), {"timeout": timeout})
        self._world.finish()
        token = torch.zeros(1, dtype=torch.uint8)
        handle = self._world.allreduce(
            token, ONE, IN_PLACE, None, Sum, 1.0, 1.0, 0, waits, None, self._sequence
        )
        return self._started(handle, [token], waits, None, timeout_s, "barrier")

    # Several operations as one.

    def _start_coalescing(self, device: torch.device) -> None:
        self._get_backend(device)
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> Work:
        self._get_backend(device)
        works, self._coalesced = self._coalesced or [], None
        return Together(works)


keep_out(ProcessGroup, Together)
