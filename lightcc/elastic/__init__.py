"""Training that goes on when ranks fail, leave or come: Horovod's `horovod.common.elastic`.

A training function takes a `State`, in which everything lies that ranks must have in common, and
commits it now and then. `run` calls the function; when the world fails, it restores the last
commit, joins the next world and calls the function again. Nothing here knows a framework:
`lightcc.torch.elastic` has the state of models and optimizers.

Example:
    >>> import lightcc as hvd
    >>> hvd.init()
    >>> state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0)
    >>> @hvd.elastic.run
    ... def train(state):
    ...     while state.step < 3:
    ...         state.step += 1  # after a step of training
    ...         state.commit()
    ...     return state.step
    >>> train(state)
    3
"""

from __future__ import annotations

from lightcc.elastic._notices import (
    HostUpdateResult,
    WorkerNotificationManager,
    notification_manager,
)
from lightcc.elastic._run import run, run_fn
from lightcc.elastic._state import ObjectState, State

__all__ = [
    "HostUpdateResult",
    "ObjectState",
    "State",
    "WorkerNotificationManager",
    "notification_manager",
    "run",
    "run_fn",
]
