"""Warnings: how they point at the line of the user's program, and what is said of variables."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightcc._core import World

_log = logging.getLogger(__name__)
_said: set[str] = set()
_HUGE_BYTES = 1 << 40  # More than any threshold of compression.
_PACKAGE = str(Path(__file__).parent) + os.sep
# What has no effect: other programs than these, which Horovod would negotiate and exchange data by.
# lightcc is what it calls gloo.
_PROGRAMS = {
    "HOROVOD_CONTROLLER": ({"", "gloo"}, "lightcc negotiates itself, and never over MPI."),
    "HOROVOD_CPU_OPERATIONS": (
        {"", "gloo"},
        "lightcc, which Horovod calls gloo, carries the data itself. A fabric that only MPI knew "
        "is reached by its net plugin (LIGHT_NET).",
    ),
}


def warn_caller(text: str, category: type[Warning]) -> None:
    """Warns in the name of the first caller that is not of this package.

    Args:
        text: What is wrong, and what to write instead.
        category: For instance `DeprecationWarning`.
    """
    level = 1
    frame = sys._getframe()  # noqa: SLF001  As `warnings` itself does from Python 3.12 on.
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(text, category, stacklevel=level)


def say_once(text: str) -> None:
    """Writes a line to the log that this process has not written yet."""
    if text not in _said:
        _said.add(text)
        _log.warning("%s", text)


def say_where_nothing_is_compressed(world: World, process_set_id: int | None) -> None:
    """Says so once, on rank 0, where all ranks of the process set share a host."""
    if process_set_id is None or world.rank != 0 or world.size == 1:
        return
    if not world.compresses(process_set_id, _HUGE_BYTES):
        say_once(
            "compression has no effect: all ranks share a host, and only what travels between "
            "hosts is compressed"
        )


def programs_not_there(env: Mapping[str, str]) -> list[str]:
    """Returns a sentence for each variable that asks for a program that is not used so."""
    return [
        f'{name}="{env[name]}" has no effect: {why}'
        for name, (effective, why) in _PROGRAMS.items()
        if env.get(name, "").lower() not in effective
    ]
