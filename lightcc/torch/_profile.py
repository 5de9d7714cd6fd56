"""Names under which torch.profiler shows collectives: `lightcc::allreduce weight`, `lightcc::wait`.

A region covers what this thread does: it starts an operation, or waits for it. When the engine ran
it, and which rank was late, is in the timeline (docs/running/timeline.md).
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_Function = TypeVar("_Function", bound="Callable[..., Any]")

_NOTHING = nullcontext()


def is_active() -> bool:
    """Returns whether a profiler records this thread; costs less than a microsecond."""
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]  # noqa: SLF001


def region(what: str, name: str | None = None) -> AbstractContextManager[Any]:
    """Returns a region for the profiler, if one is active.

    Args:
        what: What is done, for instance "wait".
        name: Of the operation, where it has one.
    """
    if not is_active():
        return _NOTHING
    text = f"lightcc::{what}"
    return torch.profiler.record_function(text if name is None else f"{text} {name}")


def profiled(function: _Function) -> _Function:
    """Makes `function` a region of its own name, with that of its argument `name`."""

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        if torch.compiler.is_compiling() or not is_active():
            return function(*args, **keywords)
        with region(function.__name__, keywords.get("name")):
            return function(*args, **keywords)

    return call  # type: ignore[return-value]
