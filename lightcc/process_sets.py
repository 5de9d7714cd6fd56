"""Process sets: collectives among some of the ranks.

A set is named on all ranks, members or not, in the same order: at `init(process_sets=[...])`, or
later with `add_process_set()` where the environment has `HOROVOD_DYNAMIC_PROCESS_SETS=1` or `init`
was told `process_sets="dynamic"`. Sets may overlap. Set 0, `global_process_set`, has all ranks.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lightcc import _world
from lightcc._binding import _core
from lightcc._discovery.mpi_comm import is_mpi_comm

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lightcc._discovery.mpi_comm import MpiComm

__all__ = [
    "ProcessSet",
    "add_process_set",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "process_set_ids",
    "remove_process_set",
]


class ProcessSet:
    """Some of the ranks, for which collectives can be called.

    Attributes:
        process_set_id: The engine's number of the set; `None` until it is registered, and again
            after it was removed or lightcc was shut down.
        ranks: World ranks of the members, ascending; `None` where a communicator was given, until
            `init()` has found them out.
        mpi_comm: The communicator that the set was made from, if one was given.

    Example:
        >>> ProcessSet([2, 0]).ranks
        [0, 2]
    """

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: MpiComm | None = None

    def __init__(self, ranks_or_comm: Iterable[int] | MpiComm) -> None:
        """Describes a set; no rank hears of it before it is registered.

        Args:
            ranks_or_comm: World ranks, each once, in any order. Or a communicator of mpi4py, for
                `init(comm=..., process_sets=...)` with the communicator of the world.

        Raises:
            TypeError: It is neither.
            ValueError: A rank is negative or there twice.
        """
        if is_mpi_comm(ranks_or_comm):
            self.mpi_comm = ranks_or_comm
            return
        try:
            self.ranks = sorted(int(rank) for rank in ranks_or_comm)  # type: ignore[union-attr]
        except (TypeError, ValueError):
            msg = (
                f"ranks are {ranks_or_comm!r}; allowed is a list of ranks, such as [0, 2], or a "
                "communicator of mpi4py."
            )
            raise TypeError(msg) from None
        if len(set(self.ranks)) != len(self.ranks) or any(rank < 0 for rank in self.ranks):
            msg = f"A process set needs different ranks, none negative; found {self.ranks}."
            raise ValueError(msg)

    def size(self) -> int | None:
        """Returns the number of members, or `None` where the set is not registered."""
        return None if self.process_set_id is None else len(self.ranks or ())

    def rank(self) -> int | None:
        """Returns this process's rank within the set, or `None` where the set is not registered.

        Raises:
            ValueError: On ranks that are not members.
        """
        if self.process_set_id is None:
            return None
        world_rank = _world.rank()
        if self.ranks is None or world_rank not in self.ranks:
            msg = f"Rank {world_rank} is not a member of {self}."
            raise ValueError(msg)
        return self.ranks.index(world_rank)

    def included(self) -> bool | None:
        """Returns whether this process is a member, or `None` where the set is not registered."""
        if self.process_set_id is None:
            return None
        return _world.rank() in (self.ranks or ())

    def __str__(self) -> str:
        """Returns the set's id and ranks, in Horovod's form."""
        number, ranks = self.process_set_id, self.ranks
        return f"ProcessSet(process_set_id={number}, ranks={ranks}, mpi_comm={self.mpi_comm})"

    def __repr__(self) -> str:
        """Returns the same; the set of all ranks has a name, which signatures show."""
        return "global_process_set" if self.process_set_id == 0 else str(self)


class HostProcessSet(ProcessSet):
    """The ranks of this rank's host, in whichever world there is.

    It is registered when a world's first operation asks for its id. So a rank that is new in an
    elastic job can describe it before it has joined the others.

    Collective: all ranks must use it first at the same point, in the same order with other
    additions.
    """

    def __init__(self) -> None:
        """Describes it; no rank hears of it before it is used."""
        self._epoch = -1
        self._id: int | None = None

    @property
    def process_set_id(self) -> int | None:  # type: ignore[override]
        """The engine's number of the set in this world.

        Raises:
            ValueError: There is no world.
            HorovodInternalError: A rank failed. On all ranks.
        """
        if self._epoch != _world.epoch():
            self._id = one_process_set_of(_world.current().hosts).process_set_id
            self._epoch = _world.epoch()
        return self._id

    @property
    def ranks(self) -> list[int]:  # type: ignore[override]
        """World ranks of the members, ascending."""
        world = _world.current()
        return next(sorted(ranks) for ranks in world.hosts if world.rank in ranks)

    def size(self) -> int:
        """Returns the number of members."""
        return len(self.ranks)

    def rank(self) -> int:
        """Returns this process's rank within the set."""
        return self.ranks.index(_world.current().rank)

    def included(self) -> bool:
        """Returns True: this process is on its host."""
        return True

    def __str__(self) -> str:
        """Returns the ranks."""
        return f"HostProcessSet(ranks={self.ranks})"

    __repr__ = __str__


#: All ranks. Its id is 0 always; its `ranks` are known while lightcc is initialized.
global_process_set = ProcessSet([])
global_process_set.process_set_id = 0

_registered: dict[int, ProcessSet] = {}
# The engine knows additions by one name, so a process has one in flight at a time.
_change = threading.Lock()


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a process set after `init()`.

    Collective: all ranks, members or not, must call it with the same ranks and in the same order.

    Args:
        process_set: A set, or world ranks.

    Returns:
        The set, registered: its own object, or a new one where ranks were given.

    Raises:
        ValueError: The set exists already, has no or unknown ranks, or dynamic process sets are not
            enabled. On the ranks that made the call.
        HorovodInternalError: The ranks disagree, or a rank failed. On all ranks.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    world = _world.current()
    _check_dynamic(world, "adding")
    with _change:
        ranks = check_new(process_set, world.process_sets().values(), world.size)
        _register(process_set, _core.wait(world.add_process_set(ranks)))
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Unregisters a process set, which must have no operations in flight.

    Collective: all ranks, members or not, must call it in the same order.

    Args:
        process_set: A registered set.

    Returns:
        Whether it was removed: `False` for the global set and for one that is not registered.

    Raises:
        ValueError: Dynamic process sets are not enabled. On the ranks that made the call.
        HorovodInternalError: The ranks disagree, or a rank failed. On all ranks.
    """
    world = _world.current()
    number = set_id(process_set)
    if not number:
        return False
    _check_dynamic(world, "removing")
    with _change:
        _core.wait(world.remove_process_set(number))
        _registered.pop(number, None)
        process_set.process_set_id = None
    return True


def one_process_set_of(rows: Iterable[Sequence[int]]) -> ProcessSet:
    """Returns the set of the row that has this rank; registers those of all rows if need be.

    It does not ask whether dynamic process sets are enabled, as it is not the user who adds them.

    Collective: all ranks must call it with the same rows, in the same order with other additions.

    Args:
        rows: Ranks, ascending; each rank is in one row.

    Raises:
        HorovodInternalError: A rank failed. On all ranks.
    """
    world = _world.current()
    own = global_process_set
    with _change:
        for ranks in map(list, rows):
            existing = {tuple(sorted(r)): number for number, r in world.process_sets().items()}
            number = existing.get(tuple(ranks))
            if number is None:
                number = _core.wait(world.add_process_set(ranks))
                _register(ProcessSet(ranks), number)
            if world.rank in ranks:
                own = by_id(number)
    return own


def process_set_ids() -> list[int]:
    """Returns the ids of all registered sets, ascending; 0 is the global one."""
    return sorted(_world.current().process_sets())


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Returns the members, as world ranks, of all registered sets by id."""
    return _world.current().process_sets()


def set_id(process_set: ProcessSet) -> int | None:
    """Returns the engine's number of a set, for an operation.

    Raises:
        TypeError: It is no ProcessSet.
    """
    try:
        return process_set.process_set_id
    except AttributeError:
        msg = f"process_set is {process_set!r}: expected a ProcessSet, as add_process_set() returns"
        raise TypeError(msg) from None


def by_id(process_set_id: int) -> ProcessSet:
    """Returns the registered set with an id.

    Raises:
        ValueError: There is none.
    """
    if process_set_id == 0:
        return global_process_set
    if process_set_id not in _registered:
        msg = f"There is no process set {process_set_id}."
        raise ValueError(msg)
    return _registered[process_set_id]


def check_new(process_set: ProcessSet, existing: Iterable[Sequence[int]], size: int) -> list[int]:
    """Returns the ranks of a set that is to be registered.

    Args:
        process_set: The set.
        existing: Ranks of the sets that exist already.
        size: Number of ranks of the world.

    Raises:
        ValueError: It has no ranks, ranks >= `size`, or the ranks of an existing set.
    """
    ranks = process_set.ranks or []
    if process_set.mpi_comm is not None and not ranks:
        msg = (
            "A process set of an MPI communicator is registered by init(comm=..., "
            "process_sets=...), where comm is the communicator of all ranks."
        )
        raise ValueError(msg)
    if not ranks or ranks[-1] >= size:
        msg = f"A process set needs ranks from 0 to {size - 1}, at least one; found {ranks}."
        raise ValueError(msg)
    if process_set.process_set_id is not None or ranks in [sorted(other) for other in existing]:
        msg = f"Attempted to add a duplicate process set: {process_set}"
        raise ValueError(msg)
    return ranks


def register_static(process_sets: Sequence[ProcessSet], size: int) -> None:
    """Takes up the sets that `init()` has given to the engine, which numbered them from 1."""
    global_process_set.ranks = list(range(size))
    for process_set_id, process_set in enumerate(process_sets, start=1):
        _register(process_set, process_set_id)


def forget_all() -> None:
    """Marks all sets as not registered: the world is over."""
    for process_set in _registered.values():
        process_set.process_set_id = None
    _registered.clear()
    global_process_set.ranks = []
    global_process_set.mpi_comm = None


def _check_dynamic(world: _core.World, what: str) -> None:
    if not world.dynamic_process_sets:
        msg = (
            "Set HOROVOD_DYNAMIC_PROCESS_SETS=1, or call hvd.init(process_sets='dynamic'), to "
            f"allow {what} process sets after initialization."
        )
        raise ValueError(msg)


def _register(process_set: ProcessSet, process_set_id: int) -> None:
    process_set.process_set_id = process_set_id
    _registered[process_set_id] = process_set
