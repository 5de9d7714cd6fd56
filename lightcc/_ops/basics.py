"""Joining and leaving the world, and where this process stands in it."""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Literal

from lightcc import _discovery, _world, process_sets as _process_sets
from lightcc._binding import _core
from lightcc._discovery import Epoch
from lightcc._discovery.mpi_comm import agreed_sets, is_mpi_comm
from lightcc._nccl_file import nccl_file
from lightcc._ops import nccl_net
from lightcc._stats.stat_server import StatServer
from lightcc._stats.statistics import Statistics, make_statistics
from lightcc._warnings import programs_not_there, say_where_nothing_is_compressed, warn_caller
from lightcc.exceptions import HorovodInternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightcc._discovery.epoch import Standing
    from lightcc._discovery.mpi_comm import MpiComm
    from lightcc.process_sets import ProcessSet

__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stats",
    "stop_timeline",
]

_log = logging.getLogger(__name__)
_lifecycle = threading.RLock()


def _after_fork_in_child() -> None:
    # Another thread may have held the lock when this process was forked.
    global _lifecycle, _stat_server
    _lifecycle = threading.RLock()
    if _stat_server is not None:
        _stat_server.close_in_child()
        _stat_server = None


os.register_at_fork(after_in_child=_after_fork_in_child)

# How much of an exception's text others are told.
_ERROR_CHARACTERS = 1000

# Whether no world of this process ended with an error.
_all_went_well = True

# What other modules add to stats().
_statistics: dict[str, Callable[[], Any]] = {"fusion": list, "steps": lambda: _steps}

# Steps of optimizers in the current world.
_steps = 0

# Tells lightcc-top what this rank counts, while there is a world.
_stat_server: StatServer | None = None

# How the ranks of the current world found each other.
_joined: Epoch | None = None
# Whether `init()` was last told `process_sets="dynamic"`.
_is_dynamic = False


def init(
    comm: Sequence[int] | MpiComm | Sequence[MpiComm] | None = None,
    process_sets: Sequence[ProcessSet] | Literal["dynamic"] | None = None,
) -> None:
    """Joins the world of ranks. Does nothing where lightcc is already initialized.

    Who the ranks are is told by the environment: `lightccrun` sets it; without a launcher the world
    is this process alone. After `shutdown()`, `init()` makes a new world, as often as wanted.

    Collective: all ranks of `comm` must call it with the same arguments. It waits for them, at most
    `HOROVOD_START_TIMEOUT` seconds. A rank that comes to an elastic training later does not wait:
    until `elastic.run` joins the others, its world is itself alone, and `rank()`, `size()` and
    others say where it will probably stand.

    Args:
        comm: Ranks of the job that form the world; they are renumbered in this order. `None` is
            all. Or a communicator of mpi4py, whose ranks form the world, whatever started them. Or
            a list of communicators: those after the first become process sets.
        process_sets: Sets to register, which get the ids 1, 2, ...; or `"dynamic"` to allow
            `add_process_set()` later, as `HOROVOD_DYNAMIC_PROCESS_SETS=1` does. With a communicator
            as `comm`, sets may be communicators, too, and other ones on each rank, as after a
            split; then every rank registers all of them.

    Raises:
        TypeError: `comm` is none of these.
        ValueError: An argument or a variable of the environment has a value that is not allowed;
            the text names it, and, on ranks where the value is allowed, the rank where it is not.
            Or it was called inside a done callback, or by a process that a rank has started.
        HorovodInternalError: A rank did not appear or failed. On all ranks.
    """
    global _is_dynamic
    _check_not_in_callback("init()")
    with _lifecycle:
        _world.check_not_forked()
        if _world.exists():
            return
        _is_dynamic = process_sets == "dynamic"
        try:
            _join_job(comm, process_sets)
        except (ValueError, HorovodInternalError) as error:
            # The text says what was wrong. How we came to know helps nobody.
            raise error.with_traceback(None) from error.__cause__


def _join_job(comm: Any, process_sets: Sequence[ProcessSet] | Literal["dynamic"] | None) -> None:
    _discovery.check_not_child()
    world_comm, sets = _taken_apart(comm, process_sets)
    is_plain = comm is None and (not sets or sets == "dynamic")
    expected = _discovery.find_training() if is_plain else None
    if expected is not None:
        _join(Epoch(), sets, expected=expected)
        return
    _discovery.join(lambda epoch: _join(epoch, sets, world_comm), world_comm)


def join_world(epoch: Epoch) -> None:
    """Joins a world whose ranks have found each other in another way; else as `init()`.

    Args:
        epoch: Where this process stands. Its `group` belongs to this world alone.
    """
    with _lifecycle:
        _world.check_not_forked()
        _join(epoch, None)


def join_training() -> bool:
    """Joins the ranks that train, where `init()` has not.

    Collective: members of the training must be on their way to the next world.

    Returns:
        Whether `init()` had not, and this process stands elsewhere than it was told.

    Raises:
        HorovodInternalError, ShutDownError, SystemExit: As `init()`.
    """
    with _lifecycle:
        if not _world.is_outside():
            return False
        before = _world.standing()
        rejoin()
        return _world.standing() != before


def rejoin() -> None:
    """Leaves the world and joins the next one; process sets may be added as before.

    Collective, and raises: as `init()`.
    """
    with _lifecycle:
        shutdown()
        init(process_sets="dynamic" if _is_dynamic else None)


def current_epoch() -> Epoch:
    """Returns how the ranks of the current world found each other.

    Raises:
        ValueError: lightcc is not initialized.
    """
    _world.current()
    assert _joined is not None  # noqa: S101  there is a world
    return _joined


def _taken_apart(
    comm: Any, process_sets: Sequence[ProcessSet] | Literal["dynamic"] | None
) -> tuple[Any, Sequence[ProcessSet] | Literal["dynamic"] | None]:
    """Returns the communicator of a list of them, and process sets of the others."""
    if not isinstance(comm, (list, tuple)) or not comm or not all(map(is_mpi_comm, comm)):
        return comm, process_sets
    if process_sets == "dynamic":
        msg = "comm is a list of communicators: expected no process_sets, or a list of ProcessSet"
        raise ValueError(msg)
    return comm[0], [*map(_process_sets.ProcessSet, comm[1:]), *(process_sets or ())]


def _join(
    epoch: Epoch,
    process_sets: Sequence[ProcessSet] | Literal["dynamic"] | None,
    comm: Sequence[int] | MpiComm | None = None,
    *,
    expected: Standing | None = None,
) -> None:
    global _joined, _steps
    mpi_comm = comm if is_mpi_comm(comm) else None
    dynamic, static = _planned_sets(process_sets, epoch.size, mpi_comm)
    if epoch.rank == 0 and expected is None:
        _warn_about_variables()
    nccl_net.open_nccl()

    try:
        world = _core.World(
            rank=epoch.rank,
            size=epoch.size,
            rendezvous=epoch.rendezvous,
            key_prefix=epoch.prefix,
            secret=epoch.secret,
            process_sets=[process_set.ranks or [] for process_set in static],
            dynamic_process_sets=dynamic,
        )
    except BaseException:
        _note_failure()
        raise
    _joined = epoch
    _steps = 0
    _world.replace(world, expected)
    _discovery.mark(is_rank=epoch.size > 1 or expected is not None)
    _process_sets.register_static(static, expected.size if expected is not None else epoch.size)
    _process_sets.global_process_set.mpi_comm = mpi_comm
    if expected is None:
        _answer_questions(world, epoch, epoch.prefix)
    knobs = world.compression_knobs()
    if knobs["topk"] or knobs["quantize"]:
        say_where_nothing_is_compressed(world, 0)


def shutdown() -> None:
    """Leaves the world. Does nothing where lightcc is not initialized; runs at exit by itself.

    Operations still in flight fail with `ShutDownError` on all ranks.

    Collective: in good times it waits until all ranks have called it. After an error it is local.

    Raises:
        ValueError: It was called inside a done callback, for which it would wait.
        HorovodInternalError: An operation fails that was synchronized, and that a GPU had not
            finished; lightcc is shut down all the same.
    """
    _check_not_in_callback("shutdown()")
    with _lifecycle:
        world = _world.replace(None)
        if world is not None:
            _discovery.mark(is_rank=False)
            _stop_answering()
            _process_sets.forget_all()
            try:
                world.shutdown()
            finally:
                if world.failed:
                    _note_failure()


def _answer_questions(world: _core.World, member: Epoch, prefix: str) -> None:
    """Lets lightcc-top ask; a rank that cannot have a socket or a thread goes on without."""
    global _stat_server
    if not world.answers_questions:
        return
    job = f"{member.rendezvous or os.getpid()}/{prefix}/{member.secret}"
    facts = {
        "job": hashlib.sha256(job.encode()).hexdigest()[:8],
        "rank": world.rank,
        "size": world.size,
        "local_rank": world.local_rank,
        "local_size": world.local_size,
        "hostname": os.uname().nodename,
    }
    try:
        _stat_server = StatServer(facts, stats)
    except (OSError, RuntimeError) as error:
        _log.warning("lightcc-top cannot ask this rank: %s", error)


def _stop_answering() -> None:
    global _stat_server
    if _stat_server is not None:
        _stat_server.stop()
        _stat_server = None


def _check_not_in_callback(what: str) -> None:
    if _core.in_done_callback():
        msg = f"{what} is not possible inside a done callback, for which it would wait."
        raise ValueError(msg)


def _note_failure() -> None:
    global _all_went_well
    _all_went_well = False


def fail_others(world: _core.World, error: BaseException) -> None:
    """Has all other ranks fail because of an error of this one's program."""
    text = str(error).strip()
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    world.fail(f"rank {world.rank} ended with {what[:_ERROR_CHARACTERS]}")


def _at_exit() -> None:
    error = getattr(sys, "last_value", None)
    # Who types at a prompt goes on after an error, and leaves in good order.
    if error is not None and is_initialized() and not hasattr(sys, "ps1"):
        world = _world.current()
        if not world.failed:
            fail_others(world, error)
    shutdown()
    _discovery.leave(in_order=_all_went_well)


atexit.register(_at_exit)


def is_initialized() -> bool:
    """Returns whether this process is in a world: after `init()`, before `shutdown()`."""
    return _world.exists()


def rank() -> int:
    """Returns this process's rank, 0 <= rank < `size()`.

    Raises:
        ValueError: lightcc is not initialized.
    """
    return _world.rank()


def size() -> int:
    """Returns the number of ranks.

    Raises:
        ValueError: lightcc is not initialized.
    """
    return _world.size()


def local_rank() -> int:
    """Returns this process's rank among those of its host, 0 <= local_rank < `local_size()`.

    Raises:
        ValueError: lightcc is not initialized.
    """
    return _world.standing().local_rank


def local_size() -> int:
    """Returns the number of ranks on this host.

    Raises:
        ValueError: lightcc is not initialized.
    """
    return _world.standing().local_size


def cross_rank() -> int:
    """Returns the index of this host among those that have this process's local rank.

    Raises:
        ValueError: lightcc is not initialized.
    """
    return _world.standing().cross_rank


def cross_size() -> int:
    """Returns the number of hosts that have this process's local rank.

    Raises:
        ValueError: lightcc is not initialized.
    """
    return _world.standing().cross_size


def is_homogeneous() -> bool:
    """Returns whether every host has the same number of ranks.

    Raises:
        ValueError: lightcc is not initialized.
    """
    return _world.current().homogeneous


def stats() -> Statistics:
    """Returns this rank's counters since `init()`, and what fusion does.

    Returns:
        An object whose entries are attributes, and those of a dictionary as well.
        docs/running/watching.md has a table of its numbers. Its lists:

        - `compression`: what compression did for each tensor.
        - `allreduce_costs`: what buckets of all-reduces take, as lines fitted to all that ran.
        - `fusion`: for each DistributedOptimizer its `strategy`, the `plan` (names of gradients
          by bucket; those in none are fused as they become ready) and its `plan_bytes`.
        - On rank 0: `last_asked` counts by rank the operations that it was the last to ask for.
          `awaited_ranks` have not submitted what has waited longest, for `awaited_seconds`.
          `slow_ranks` keep the others waiting in every step. Elsewhere they are empty.

        The classes of `lightcc._stats.statistics` say what each entry of these has.

    Raises:
        ValueError: lightcc is not initialized.
    """
    counters = _world.current().stats()
    return make_statistics(counters, {name: report() for name, report in _statistics.items()})


def count_step() -> None:
    """Notes that an optimizer has ended a step."""
    global _steps
    _steps += 1


def add_statistics(name: str, report: Callable[[], Any]) -> None:
    """Makes `stats()` call `report` for its entry `name`."""
    _statistics[name] = report


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Records a timeline into a file from now on, in Chrome's trace format.

    The file is complete after `stop_timeline()`, `shutdown()` or an error, and replaces an older
    one. Another file that is being recorded ends; the same one goes on.

    Rank 0 records what all ranks asked for and when, and what it did itself. Other ranks record
    nothing, unless `LIGHT_TIMELINE` is set: then rank 1 writes `trace.rank1.json` beside
    `trace.json`, and so on. Local: ranks need not call it together.

    Args:
        file_path: The file.
        mark_cycles: Marks also when rank 0 announces what all ranks asked for.

    Raises:
        ValueError: lightcc is not initialized, neither `HOROVOD_TIMELINE` nor `LIGHT_TIMELINE` was
            set when it was (the value `DYNAMIC` asks for nothing before this call), or the file
            cannot be written.
    """
    _world.current().start_timeline(os.fspath(file_path), mark_cycles)


def stop_timeline() -> None:
    """Completes the file that is being recorded. Does nothing where there is none.

    Raises:
        ValueError: lightcc is not initialized.
    """
    _world.current().stop_timeline()


def mpi_threads_supported() -> bool:
    """Returns whether lightcc uses MPI beside other MPI code in other threads: `False`.

    Raises:
        ValueError: lightcc is not initialized.
    """
    _world.current()
    return False


def mpi_enabled() -> bool:
    """Returns whether MPI carries the data: `False`. lightcc does itself."""
    return False


def mpi_built() -> bool:
    """Returns whether there is an MPI data plane: `False`. mpirun may start the ranks."""
    return False


def gloo_enabled() -> bool:
    """Returns whether lightcc itself, in the place of Gloo, carries the data: `True`."""
    return True


def gloo_built() -> bool:
    """Returns whether lightcc's own data plane, in the place of Gloo, is there: `True`."""
    return True


def nccl_built() -> int:
    """Returns the version of NCCL that would carry tensors of GPUs: 22005 is 2.20.5.

    0 where there is none that can be used, or where it is too old. Loads NCCL, if nothing has yet.
    """
    try:
        return _core.find_nccl(nccl_file())
    except NotImplementedError:
        return 0


def ddl_built() -> bool:
    """Returns whether there is an IBM DDL data plane: `False`."""
    return False


def ccl_built() -> bool:
    """Returns whether there is a oneCCL data plane: `False`."""
    return False


def cuda_built() -> bool:
    """Returns whether tensors may lie in CUDA memory, given a GPU and its driver: `True`.

    They travel by way of host memory. `python -m lightcc.doctor` tells whether there is a GPU.
    """
    return True


def rocm_built() -> bool:
    """Returns whether tensors may lie in ROCm memory: `False`."""
    return False


def _planned_sets(
    process_sets: Sequence[ProcessSet] | str | None, world_size: int, mpi_comm: MpiComm | None
) -> tuple[bool, list[ProcessSet]]:
    """Checks init()'s argument: whether sets may be added later, and the sets to begin with."""
    if isinstance(process_sets, str) and process_sets != "dynamic":
        msg = f"process_sets is {process_sets!r}: expected a list of ProcessSet or 'dynamic'"
        raise ValueError(msg)
    static = [] if isinstance(process_sets, str) else list(process_sets or ())
    if mpi_comm is not None:
        static = _agreed_sets(mpi_comm, static)
    taken = [list(range(world_size))]
    for process_set in static:
        taken.append(_process_sets.check_new(process_set, taken, world_size))
    return process_sets == "dynamic", static


def _agreed_sets(mpi_comm: MpiComm, process_sets: list[ProcessSet]) -> list[ProcessSet]:
    """Returns the sets of all ranks, and tells this rank's their ranks."""
    given = [it.ranks if it.mpi_comm is None else it.mpi_comm for it in process_sets]
    sets = []
    for ranks, own in agreed_sets(mpi_comm, given):
        found = _process_sets.ProcessSet(ranks) if own is None else process_sets[own]
        found.ranks = ranks
        sets.append(found)
    return sets


def _warn_about_variables() -> None:
    for text in _core.knob_warnings(sorted(os.environ)) + programs_not_there(os.environ):
        warn_caller(text, RuntimeWarning)
