"""Calls a function on every rank of a new job and returns what it returned, by rank.

Three processes take part. The caller (`call_on_ranks`) pickles the function into a private folder
and starts `call_job`, which is the launcher, and puts every rank's result into the same folder. A
rank (`call_rank`) gets the function on its standard input and sends its result through its agent,
so that nothing but ssh is needed to reach another host.

The launcher is a process of its own because it needs a main thread, signal handlers and standard
streams, none of which a caller in a notebook or a test can give it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing  # noqa: F401  gives the main module the name that it has in the ranks
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightcc.runner.arguments import LaunchOptions

# Files in the private folder.
OPTIONS, INPUT, FAILURE, RESULT = "options", "input", "failure", "result.{}"


@dataclass(frozen=True)
class Outcome:
    """What one rank sends back."""

    value: Any = None
    error: BaseException | None = None  # What the function raised, if it did.


class CallError(RuntimeError):
    """The function did not return on every rank. `__cause__` is a rank's exception, if it sent one.

    Attributes:
        rank: The rank to blame, or `None` where it is not known.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        """Makes the error."""
        super().__init__(message)
        self.rank = rank


def dumps(thing: Any) -> bytes:
    """Pickles with cloudpickle where it is installed, which also takes local functions.

    Raises:
        TypeError: It cannot be pickled.
    """
    cloudpickle = _cloudpickle()
    advice = "" if cloudpickle else "; with cloudpickle installed, local functions can be"
    try:
        data: bytes = (cloudpickle or pickle).dumps(thing)
    except Exception as error:  # Whatever a __reduce__ raises.
        msg = f"cannot be pickled: {error}{advice}"
        raise TypeError(msg) from error
    return data


def call_on_ranks(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: LaunchOptions,
    streams: tuple[TextIO, TextIO] | None = None,
    on_start: Callable[[subprocess.Popen[bytes]], None] = lambda _: None,
) -> list[Any]:
    """Runs a job whose ranks call `function(*args, **kwargs)`; returns the results by rank.

    Args:
        function: What to call. It, its arguments and its results are pickled.
        args: Its positional arguments.
        kwargs: Its named arguments.
        options: Where to run; the command is that of `rank_command`.
        streams: Get what ranks and the launcher print; `None`: this process's own.
        on_start: Called with the launcher, which it may end.

    Raises:
        TypeError: The function or its arguments cannot be pickled.
        CallError: A rank failed; the others have been ended.
    """
    with tempfile.TemporaryDirectory(prefix="lightcc-call-") as name:
        folder = Path(name)
        (folder / INPUT).write_bytes(rank_input(function, args, kwargs))
        (folder / OPTIONS).write_bytes(pickle.dumps(options))
        code = _run_launcher(folder, streams or (sys.stdout, sys.stderr), on_start)
        size = options.elastic.settings.min_np if options.elastic else len(options.slots)
        return _collect(folder, size, code)


def rank_command(executable: str) -> list[str]:
    """Returns the command of a rank."""
    return [executable, "-m", "lightcc.runner.call_rank"]


def _cloudpickle() -> Any:
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return None


def rank_input(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bytes:
    """Returns what `call_rank` reads on its standard input.

    Raises:
        TypeError: The function or its arguments cannot be pickled.
    """
    try:
        call = dumps((function, args, kwargs))
    except TypeError as error:
        msg = f"the function or its arguments: {error}"
        raise TypeError(msg) from error
    return pickle.dumps({"path": sys.path, "main": _main_module(), "call": call})


def _main_module() -> dict[str, str]:
    """Returns what `multiprocessing.spawn.prepare` imports the main module by.

    That is nothing with cloudpickle, which sends what the main module defines.
    """
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if _cloudpickle() is not None or path is None:
        return {}
    if main.__spec__ is not None:  # python -m NAME
        return {"init_main_from_name": main.__spec__.name}
    return {"init_main_from_path": str(Path(path).resolve())}


def _run_launcher(
    folder: Path,
    streams: tuple[TextIO, TextIO],
    on_start: Callable[[subprocess.Popen[bytes]], None],
) -> int:
    process = subprocess.Popen(
        [sys.executable, "-m", "lightcc.runner.call_job", str(folder), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    pumps = [
        threading.Thread(target=_pump, args=pair, daemon=True)
        for pair in zip((process.stdout, process.stderr), streams, strict=True)
    ]
    for pump in pumps:
        pump.start()
    try:
        on_start(process)
        return process.wait()
    except BaseException:  # Ctrl-C. The launcher may have had it, too, and is asked to hurry.
        process.terminate()
        process.wait()
        raise
    finally:
        for pump in pumps:
            pump.join()


def _pump(source: IO[bytes], target: TextIO) -> None:
    """Copies lines to the caller's own stream, which in a notebook is not a descriptor."""
    with source:
        # Should the stream be closed, the rest is read all the same: the ranks must not wait.
        with contextlib.suppress(OSError, ValueError):
            for line in source:
                target.write(line.decode(errors="replace"))
                target.flush()
        for _ in source:
            pass


def _collect(folder: Path, size: int, code: int) -> list[Any]:
    """Returns the ranks' values, or raises what stands in the way."""
    outcomes: dict[int, Outcome] = {}
    for rank in range(size):
        path = folder / RESULT.format(rank)
        if not path.is_file():
            continue
        try:
            outcomes[rank] = pickle.loads(path.read_bytes())  # noqa: S301 - from our own ranks.
        except Exception as error:  # Whatever a class of the result raises.
            msg = f"the result of rank {rank} cannot be unpickled here: {error}"
            raise CallError(msg, rank) from error
    errors = {rank: it.error for rank, it in outcomes.items() if it.error is not None}
    if code != 0 or errors or len(outcomes) < size:
        _fail(folder, code, outcomes, errors)
    return [outcomes[rank].value for rank in range(size)]


def _fail(
    folder: Path, code: int, outcomes: dict[int, Outcome], errors: dict[int, BaseException]
) -> NoReturn:
    text, rank = f"the launcher ended with code {code}", None
    if (folder / FAILURE).is_file():
        report: tuple[str, int | None] = json.loads((folder / FAILURE).read_text(encoding="utf-8"))
        text, rank = report[0] or text, report[1]
    if code == 0:
        rank = next(rank for rank in range(len(outcomes) + 1) if rank not in outcomes)
        text = f"rank {rank} ended before the function had returned"
    cause = errors.get(rank if rank is not None else min(errors, default=-1))
    if cause is not None:
        text += f": {type(cause).__name__}: {cause}"
    raise CallError(text, rank) from cause
