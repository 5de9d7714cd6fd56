"""What runs torch's own tests finds the reason of a failure, and hides none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

TOOLS = Path(__file__).resolve().parents[3] / "tools"
sys.path.insert(0, str(TOOLS))

import torch_suite as suite  # noqa: E402
from suite_results import Result  # noqa: E402

if TYPE_CHECKING:
    import pytest

MESSAGE = """RuntimeError: Process 0 exited with error code 10 and exception:
Traceback (most recent call last):
[+15 more lines; full report in element text]
E       RuntimeError: Process 0 exited with error code 10 and exception:
E       Traceback (most recent call last):
E         File "x.py", line 1, in test
E       package.OddError: the rank's own words

E       To execute this test, run the following: ValueError: not this
"""


def test_the_reason_is_that_of_the_rank() -> None:
    assert suite.reason_of(MESSAGE) == "OddError: the rank's own words"
    assert suite.reason_of("Skipped: no GPU\nmore") == "Skipped: no GPU"
    assert suite.reason_of("") == ""


def test_a_failure_on_lightcc_alone_needs_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(suite.EXPLAINED, "test_known", "it asks for the name gloo")
    results = {
        "test_a.py::A::test_fine": Result("passed"),
        "test_a.py::A::test_known": Result("failed", "AssertionError: x"),
        "test_a.py::A::test_both": Result("failed", f"{suite.ON_GLOO}ValueError: y"),
        "test_a.py::A::test_new": Result("failed", "ValueError: z"),
    }
    assert suite.unexplained(results) == ["test_a.py::A::test_new"]


def test_the_page_has_every_test(tmp_path: Path) -> None:
    (tmp_path / "version.txt").write_text("9.9\n")
    results = {
        "test_a.py::A::test_fine": Result("passed"),
        "test_a.py::A::test_new": Result("failed", "ValueError: z"),
        "test_a.py::A::test_both": Result("failed", f"{suite.ON_GLOO}ValueError: y"),
        "test_a.py::A::test_skipped": Result("skipped", "no GPU"),
    }
    parts = {"2 test_a.py": (results, 7), "3 test_a.py": (results, 8)}
    text = suite.page(tmp_path, parts, {"lightcc": "1", "torch": "2"})
    assert "| 2 | `test_a.py` | 1 | 2 | 1 | 7 |" in text
    assert "| | all | 2 | 4 | 2 | 15 |" in text
    assert "- `test_a.py`, ranks 2, 3: `test_new`: ValueError: z" in text
    assert "- `test_a.py`, ranks 2, 3: `test_both`: ValueError: y" in text
    assert "| 2 | no GPU |" in text
    assert "torch 9.9, unmodified" in text
