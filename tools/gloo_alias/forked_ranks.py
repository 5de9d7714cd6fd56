"""A plugin of pytest: ranks of tests are forked, which spares each the import of torch."""

from __future__ import annotations

import multiprocessing
from typing import Any


def pytest_configure() -> None:
    """Gives `MultiProcessTestCase` another way to start ranks."""
    from torch.testing._internal import common_distributed

    fork = multiprocessing.get_context("fork")
    case: Any = common_distributed.MultiProcessTestCase
    case._spawn_processes = lambda self: self._start_processes(fork.Process)  # noqa: SLF001
