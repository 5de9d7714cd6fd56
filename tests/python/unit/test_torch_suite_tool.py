"""What runs torch's own tests finds the reason of a failure, and hides none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch_suite as suite
from suite_results import Result

if TYPE_CHECKING:
    import pytest


def test_a_failure_on_lightcc_alone_needs_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(suite.EXPLAINED, "test_known", "it asks for the name gloo")
    results = {
        "test_a.py::A::test_fine": Result("passed"),
        "test_a.py::A::test_known": Result("failed", "AssertionError: x"),
        "test_a.py::A::test_both": Result("failed", f"{suite.ON_GLOO}ValueError: y"),
        "test_a.py::A::test_new": Result("failed", "ValueError: z"),
    }
    assert suite.unexplained(results) == ["test_a.py::A::test_new"]
