"""Ranks for the functions of a notebook.

A function of a cell is in no file that a rank could import, so it travels with cloudpickle (`pip
install 'lightcc[notebook]'`). What ranks print appears below the cell, while it runs, and
interrupting the kernel ends them.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from lightcc.runner import running

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def run(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    np: int | None = None,
    hosts: str | Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
    start_timeout: float | None = None,
) -> list[Any]:
    """Calls a function of a cell on every rank of a new job; else as `lightcc.run()`.

    Args:
        function: As there. It may use other functions and variables of the notebook: they travel
            with it, as they are now.
        args: As there.
        kwargs: As there.
        np: As there.
        hosts: As there.
        environment: As there.
        start_timeout: As there.

    Returns:
        The results, by rank.

    Raises:
        ImportError: cloudpickle is not installed.
        ValueError: As `lightcc.run()`.
        TypeError: As `lightcc.run()`.
        RuntimeError: As `lightcc.run()`.

    Example:
        >>> import lightcc.notebook
        >>> lightcc.notebook.run(lambda: 6 * 7, np=2)
        [42, 42]
    """
    if importlib.util.find_spec("cloudpickle") is None:
        msg = "functions of a notebook need cloudpickle: pip install 'lightcc[notebook]'"
        raise ImportError(msg, name="cloudpickle")
    return running.run(
        function,
        args,
        kwargs,
        np=np,
        hosts=hosts,
        environment=environment,
        start_timeout=start_timeout,
    )
