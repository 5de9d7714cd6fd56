"""`lightcc.run`: calls a function on the ranks of a new job, from a program."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

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
    """Calls `function(*args, **kwargs)` on every rank of a new job and returns what they return.

    The ranks are new processes, started as `lightccrun` starts them; `function` calls `init()`
    itself. What they print appears here, each line with its rank. When one fails, the others are
    ended.

    Args:
        function: What to call. It, its arguments and its results are pickled: by cloudpickle where
            it is installed, which also takes functions of a notebook, and lambdas.
        args: Its positional arguments.
        kwargs: Its named arguments.
        np: How many ranks; `None`: one for each slot of `hosts`.
        hosts: As `lightccrun --hosts` takes them, `"node-a:2,node-b:2"` or a list of such entries.
            `None`: this host, and `np` is needed.
        environment: Variables for the ranks, beside this process's own.
        start_timeout: Seconds for hosts and ranks to start; `None`: 30.

    Returns:
        The results, by rank.

    Raises:
        ValueError: An argument is not allowed; nothing was started.
        TypeError: The function or its arguments cannot be pickled.
        RuntimeError: A rank failed: a `lightcc.runner.call.CallError`, whose `rank` is the one to
            blame, and whose `__cause__` is what the function raised there.

    Example:
        >>> import lightcc
        >>> lightcc.run(divmod, (7, 2), np=2)
        [(3, 1), (3, 1)]
    """
    # Here, so that programs that start no ranks need not import the launcher.
    from lightcc.runner.arguments import ArgumentsError, LaunchOptions, checked, make_parser
    from lightcc.runner.call import call_on_ranks, rank_command

    asked = make_parser().parse_args([])
    asked.num_proc = np
    asked.hosts = hosts if hosts is None or isinstance(hosts, str) else ",".join(hosts)
    asked.start_timeout = start_timeout
    asked.command = rank_command(sys.executable)
    try:
        options = checked(asked)
    except ArgumentsError as error:
        raise ValueError(_in_words_of_python(str(error))) from None
    assert isinstance(options, LaunchOptions)  # noqa: S101 - there is a command
    options.environment.update(environment or {})
    return call_on_ranks(function, tuple(args), dict(kwargs or {}), options)


def _in_words_of_python(text: str) -> str:
    """Names arguments as `run()` does, where the launcher would name its flags."""
    for flag, name in (("-np", "np"), ("--hosts or --hostfile", "hosts"), ("--hosts", "hosts")):
        text = text.replace(flag, name)
    return text.replace("num_proc", "np")
