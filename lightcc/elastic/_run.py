"""The loop around a training function."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, overload

from lightcc._binding import _core
from lightcc._discovery import elastic
from lightcc._ops import basics
from lightcc.elastic._notices import notification_manager
from lightcc.elastic._residuals import Residuals
from lightcc.exceptions import HorovodInternalError, HostsUpdatedInterrupt, RankMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from lightcc.elastic._state import State

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="State")


ROLLBACK, FORWARD = "rollback", "forward"


@overload
def run(
    func: Callable[Concatenate[S, P], R],
    *,
    recovery: str = ROLLBACK,
    check_replicas: int = 0,
    keep_commits: int = 0,
) -> Callable[Concatenate[S, P], R]: ...


@overload
def run(
    func: None = None, *, recovery: str = ROLLBACK, check_replicas: int = 0, keep_commits: int = 0
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], R]]: ...


def run(
    func: Callable[Concatenate[S, P], R] | None = None,
    *,
    recovery: str = ROLLBACK,
    check_replicas: int = 0,
    keep_commits: int = 0,
) -> Any:
    """Makes a training function go on in another world when its own is over.

    The function takes a `State` first, and returns when training has finished. Before each call the
    state is synchronised from rank 0. Between the start of a rank and this call no collective
    should run: a rank that comes later joins the others here, and would run it alone.

    - HorovodInternalError leaves the function: the state is restored to the last commit, the next
      world is joined, and the function is called again.
    - HostsUpdatedInterrupt leaves it: the same, without restoring.
    - RankMismatchError, which would come again, and all else leave `run`, too.

    Under `lightccrun --min-np` the next world has the ranks that the launcher says. Elsewhere it
    has the same ranks as before.

    Args:
        func: The training function; without it, `run` returns a decorator.
        recovery: "rollback", as with Horovod, or "forward", which all ranks must give. The function
            then commits after each step, right after `optimizer.step()`, and commits copy nothing.
            After a failure, ranks go on from the one with most commits. Parameters move only when
            all gradients are there, so at most the step that failed is made again.
        check_replicas: Every so many commits, ranks compare a sample of what their replicas have;
            0: never. All ranks must give the same. A rank that differs from more than half of them
            leaves with RuntimeError, and the others go on without it, as after any failure.
        keep_commits: Every so many commits of the training, the agent of each host keeps a copy in
            its memory, and before the first one; 0: never. All ranks must give the same. Where all
            ranks fail that have the state, new ones begin from the newest copy.

    Returns:
        The function, to be called with the state and the other arguments.

    Raises:
        ValueError: There is no such recovery, or `check_replicas` or `keep_commits` is negative;
            from the function: the state cannot roll forward, has nothing to compare, or cannot be
            kept.
    """
    if recovery not in (ROLLBACK, FORWARD):
        msg = f"recovery={recovery!r}: must be '{ROLLBACK}' or '{FORWARD}'"
        raise ValueError(msg)
    for name, commits in (("check_replicas", check_replicas), ("keep_commits", keep_commits)):
        if commits < 0:
            msg = f"{name}={commits}: must be a number of commits, or 0"
            raise ValueError(msg)

    def decorate(function: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
        return run_fn(
            function,
            basics.rejoin,
            recovery=recovery,
            check_replicas=check_replicas,
            keep_commits=keep_commits,
        )

    return decorate if func is None else decorate(func)


def run_fn(
    func: Callable[Concatenate[S, P], R],
    reset: Callable[[], object],
    *,
    recovery: str = ROLLBACK,
    check_replicas: int = 0,
    keep_commits: int = 0,
) -> Callable[Concatenate[S, P], R]:
    """Does what `run` does, with a function that leaves a world and joins the next one."""

    @functools.wraps(func)
    def wrapper(state: S, *args: P.args, **kwargs: P.kwargs) -> R:
        notification_manager.init()
        notification_manager.register_listener(state)
        worker = elastic.worker()
        skip_sync = False
        residuals = Residuals()
        if recovery == FORWARD:
            state.roll_forward()
        if check_replicas:
            state.check_replicas_every(check_replicas)
        if keep_commits:
            state.keep_commits_every(keep_commits)
        # Where it rolls forward, no parameter moves before all gradients have come.
        waited_on_host = _core.wait_on_host(recovery == FORWARD)
        try:
            stands_elsewhere = basics.join_training()
            if worker is not None:
                worker.enter_run(keeps=keep_commits > 0 and worker.kept is not None)
            if stands_elsewhere:
                state.on_reset()
            while True:
                restored = False
                try:
                    synchronized = False
                    if not skip_sync:
                        if worker is not None and worker.newcomers and state.can_pass_on():
                            state.pass_on(worker.newcomers)
                        else:
                            _synchronize(state, recovery, keeps=keep_commits > 0)
                            synchronized = True
                    if worker is not None:
                        worker.take_state()
                    residuals.put()
                    if keep_commits and synchronized:
                        state.keep_beginning()
                    state.begin_training()
                    result = func(state, *args, **kwargs)
                    state.end_training(failed=False)
                except RankMismatchError:
                    raise
                except HorovodInternalError as error:
                    state.end_training(failed=True)
                    if worker is not None:
                        worker.fault = str(error)
                    if recovery == FORWARD:
                        state.resume()
                    else:
                        state.restore()
                    restored, skip_sync = True, False
                except HostsUpdatedInterrupt as interrupt:
                    state.end_training(failed=True)
                    skip_sync = interrupt.skip_sync
                else:
                    if worker is not None:
                        worker.finish()
                    return result
                if worker is not None:
                    worker.restored = restored or not skip_sync
                    worker.level = state.is_level and not restored
                residuals.take()
                reset()
                if worker is not None:
                    skip_sync = not worker.needs_sync
                state.on_reset()
                notification_manager.repeat()
        finally:
            _core.wait_on_host(waited_on_host)
            notification_manager.remove_listener(state)

    return wrapper  # type: ignore[return-value]  # but for the name of the first parameter


def _synchronize(state: State, recovery: str, *, keeps: bool) -> None:
    if keeps:
        state.begin_from_kept()
    if recovery == FORWARD:
        state.take_over()
    else:
        state.sync()
