"""An elastic job: who decides what its workers do, and who carries it out."""

from __future__ import annotations

from lightcc.runner.driver.actions import (
    Action,
    Awaits,
    Begin,
    CallOff,
    End,
    FoundSlow,
    LeftOut,
    RunsShort,
    Start,
    Stop,
)
from lightcc.runner.driver.driver import RESET_LIMIT_EXCEEDED_MESSAGE, Driver
from lightcc.runner.driver.settings import Settings

__all__ = [
    "RESET_LIMIT_EXCEEDED_MESSAGE",
    "Action",
    "Awaits",
    "Begin",
    "CallOff",
    "Driver",
    "End",
    "FoundSlow",
    "LeftOut",
    "RunsShort",
    "Settings",
    "Start",
    "Stop",
]
