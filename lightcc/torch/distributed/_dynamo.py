"""Keeps torch.compile out of the methods that torch's C++ calls while compiled code runs."""

from __future__ import annotations

import types
from typing import Any

import torch


def keep_out(*classes: type) -> None:
    """Marks the methods of classes, and of lightcc's classes below them, as no program's code.

    A compiled DDP broadcasts its buffers through the group, and a compiled collective reaches the
    group from C++: torch.compile would look into the methods as if they were the program's.
    `torch.compiler.disable` would load the compiler in programs that do not use it.
    """
    frames: Any = torch._C._dynamo.eval_frame  # noqa: SLF001  what torch.compiler.disable uses
    for each in {base for cls in classes for base in cls.__mro__}:
        if each.__module__.partition(".")[0] != "lightcc":
            continue
        for member in vars(each).values():
            if isinstance(member, types.FunctionType):
                _skip(frames, member.__code__)


def _skip(frames: Any, code: types.CodeType) -> None:
    """Makes the compiler run a function, and what it calls, as they are."""
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP  # noqa: SLF001
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))  # noqa: SLF001
    else:  # torch before 2.7
        frames.skip_code(code)
