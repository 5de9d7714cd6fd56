"""The world that this process belongs to, if any: the only mutable state of the package.

Nothing else keeps a reference to it, so that `shutdown()` ends it. A forked child inherits the
memory of a world but none of its threads: there, the world is dropped and every call says so.
"""

from __future__ import annotations

import os

from lightcc._binding import _core
from lightcc._discovery.epoch import Standing
from lightcc.exceptions import ShutDownError

_NOT_INITIALIZED = "lightcc has not been initialized; use hvd.init()."
_FORKED = (
    "lightcc was initialized in the process that forked this one and cannot be used in a forked "
    "child: start workers with the 'spawn' or 'forkserver' method, or keep collectives out of them."
)

# Arguments of a world's operations, which take them by position: names cost a microsecond.
ONE, GROUP = False, True  # A tensor, or several that travel all or none.
NEW, IN_PLACE = False, True  # Where the result is.
WAITS = True  # The caller waits for it at once.

_current: _core.World | None = None
# The standing that a process will have that is not yet among the ranks, as far as is known.
_expected: Standing | None = None
# The current world's, as integers that torch's compiler reads in all its versions.
_rank = 0
_size = 1
_forked = False
_epoch = 0
_counting_epoch = 0


def current() -> _core.World:
    """Returns the world of this process.

    Raises:
        ValueError: There is none.
        ShutDownError: It belongs to the process that forked this one.
    """
    if _current is None:
        check_not_forked()
        raise ValueError(_NOT_INITIALIZED)
    return _current


def rank() -> int:
    """Returns this process's rank; raises as `current()` does."""
    current()
    return _rank


def size() -> int:
    """Returns the number of ranks; raises as `current()` does."""
    current()
    return _size


def standing() -> Standing:
    """Returns where this process stands; raises as `current()` does."""
    world = current()
    if _expected is not None:
        return _expected
    return Standing(
        world.rank,
        world.size,
        world.local_rank,
        world.local_size,
        world.cross_rank,
        world.cross_size,
    )


def is_outside() -> bool:
    """Returns whether the world is this process alone, until it joins others that train."""
    return _expected is not None


def exists() -> bool:
    """Returns whether this process has a world."""
    return _current is not None


def finish() -> None:
    """Waits until GPUs have finished what operations of this process have given them, if any.

    Raises:
        HorovodInternalError: A rank failed meanwhile, so results may be wrong.
    """
    if _current is not None:
        _current.finish()


def replace(world: _core.World | None, expected: Standing | None = None) -> _core.World | None:
    """Makes `world` the current one and returns the one before.

    Args:
        world: The world; `None`: there is none.
        expected: What `standing()`, `rank()` and `size()` return instead of the world's.
    """
    global _current, _expected, _epoch, _rank, _size
    _epoch += 1
    begin_counting()
    _expected = expected
    if expected is not None:
        _rank, _size = expected.rank, expected.size
    elif world is not None:
        _rank, _size = world.rank, world.size
    before, _current = _current, world
    _core.set_current(world)
    return before


def epoch() -> int:
    """Returns a number that changes with the world, also where there is none any more."""
    return _epoch


def counting_epoch() -> int:
    """Returns a number that changes where all ranks begin anew to count what they do together."""
    return _counting_epoch


def begin_counting() -> None:
    """Changes `counting_epoch()`, for another world or when ranks join that have done less."""
    global _counting_epoch
    _counting_epoch += 1


def check_not_forked() -> None:
    """Raises ShutDownError in a child that was forked while lightcc was initialized."""
    if _forked:
        raise ShutDownError(_FORKED)


def _after_fork_in_child() -> None:
    global _forked
    inherited = replace(None)
    if inherited is not None:
        _forked = True
        inherited.shutdown()


os.register_at_fork(after_in_child=_after_fork_in_child)
