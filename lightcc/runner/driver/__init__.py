"""An elastic job: who decides what its workers do, and who carries it out."""

from __future__ import annotations

from lightcc.runner.driver.actions import (
    Action,
    Begin,
    CallOff,
    End,
    FoundSlow,
    LeftOut,
    Start,
    Stop,
)
from lightcc.runner.driver.driver import RESET_LIMIT_EXCEEDED_MESSAGE, Driver
from lightcc.runner.driver.settings import Settings

__all__ = [
    "RESET_LIMIT_EXCEEDED_MESSAGE",
    "Action",
    "Begin",
    "CallOff",
    "Driver",
    "End",
    "FoundSlow",
    "LeftOut",
    "Settings",
    "Start",
    "Stop",
]
