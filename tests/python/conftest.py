"""Every test starts without a world and without a job's variables, and leaves none behind."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


# A shell that starts pytest in the background has it ignore Ctrl-C, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith(("LIGHT_", "HOROVOD_")):
            monkeypatch.delenv(name)
    yield
    # Tests of the launcher need no engine, so lightcc is not imported for them.
    basics = sys.modules.get("lightcc.basics")
    if basics is not None:
        basics.shutdown()


@pytest.fixture
def world() -> None:
    """A world of this process alone."""
    import lightcc as hvd

    hvd.init()
