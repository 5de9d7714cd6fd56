"""`horovod.runner.elastic.constants`: texts of errors."""

from __future__ import annotations

from lightcc.runner.driver import RESET_LIMIT_EXCEEDED_MESSAGE

__all__ = ["RESET_LIMIT_EXCEEDED_MESSAGE"]
