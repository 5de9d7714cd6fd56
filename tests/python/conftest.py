"""Every test starts without a world and without a job's variables, and leaves none behind."""

from __future__ import annotations

import os
import signal
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lightcc.testing import warm_up

if TYPE_CHECKING:
    from collections.abc import Iterator


# A shell that starts pytest in the background has it ignore Ctrl-C, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Ranks are forked from processes that have imported what takes long; `fresh=True` starts one anew.
# torch imports its compiler, which takes as long as all the rest, with the first optimizer.
_COMMON = ("numpy", "ml_dtypes", "pytest")
warm_up(*_COMMON)
warm_up(*_COMMON, "torch", "torch._dynamo", for_users_of="torch")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--not-again", metavar="REPORT", type=Path, help="leave out what passed in a JUnit report"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    report: Path | None = config.getoption("--not-again")
    if report is None:
        return
    # Written by our own run a moment ago: not hostile. A <testcase> without children has passed.
    cases = ET.parse(report).iter("testcase")
    passed = {f"{case.get('classname')}.{case.get('name')}" for case in cases if len(case) == 0}

    def has_passed(item: pytest.Item) -> bool:
        name, bracket, parameters = item.nodeid.partition("[")
        name = name.replace(".py::", ".").replace("::", ".").replace("/", ".")
        return f"{name}{bracket}{parameters}" in passed

    config.hook.pytest_deselected(items=[item for item in items if has_passed(item)])
    items[:] = [item for item in items if not has_passed(item)]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith(("LIGHT_", "HOROVOD_", "HARP_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HARP_PROFILE", "none")  # Not what harp-setup has written on this machine.
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
