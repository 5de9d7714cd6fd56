"""What compares Horovod's own results with ours leaves no line of them out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import horovod_suite as suite
import pytest
from suite_results import Result, read_reports

if TYPE_CHECKING:
    from pathlib import Path

MISSING = "test_b.py::B::test_what_is_missing"
REPORT = """<testsuites><testsuite>
<testcase classname="test_x" name="test_function"/>
<testcase classname="test_x.Group" name="test_method">{}</testcase>
</testsuite></testsuites>"""


def test_every_line_of_the_baseline_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(suite.NOT_THERE_YET, MISSING, "not there yet")
    path = tmp_path / "baseline.txt"
    path.write_text(
        "# status  file::class::test\n"
        "passed   test_a.py::A::test_same\n"
        "passed   test_a.py::A::test_skipped\n"
        "skipped  test_a.py::A::test_better   # No GPU\n"
        "passed   test_unknown.py::B::test_of_a_file_that_did_not_run\n"
        f"passed   {MISSING}\n"
    )
    baseline = suite.read_baseline(path)
    assert len(baseline) == 5
    results = {
        "test_a.py::A::test_same": Result("passed"),
        "test_a.py::A::test_skipped": Result("skipped", "no reason"),
        "test_a.py::A::test_better": Result("passed"),
        MISSING: Result("failed", "no file"),
    }
    expected, unexpected = suite.compare(results, baseline)
    assert [line.split("`")[1] for line in expected] == [MISSING]
    assert [line.split(": ", 1)[1] for line in unexpected] == [
        "passed under Horovod, skipped here: no reason",
        "passed under Horovod, failed here: did not run",
    ]


def test_what_is_there_must_leave_the_list_of_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(suite.NOT_THERE_YET, MISSING, "not there yet")
    results = {MISSING: Result("passed")}
    expected, unexpected = suite.compare(results, {MISSING: "passed"})
    assert expected == []
    assert "must leave NOT_THERE_YET" in unexpected[0]


@pytest.mark.parametrize(
    ("outcome", "status", "reason"),
    [
        ("", "passed", ""),
        ("<failure message='broken'>text</failure>", "failed", "broken"),
        ("<skipped message='No GPUs available'/>", "skipped", "No GPUs available"),
    ],
)
def test_the_worst_rank_counts(tmp_path: Path, outcome: str, status: str, reason: str) -> None:
    reports = [tmp_path / "0.xml", tmp_path / "1.xml"]
    reports[0].write_text(REPORT.format(""))
    reports[1].write_text(REPORT.format(outcome))
    assert read_reports("test_x.py", reports) == {
        "test_x.py::::test_function": Result("passed"),
        "test_x.py::Group::test_method": Result(status, reason),
    }


def test_a_rank_that_waited_says_less_than_the_one_that_failed() -> None:
    waited, wrong = Result("failed", "Failed: Timeout >120.0s"), Result("failed", "wrong")
    assert waited.worse(wrong) == wrong.worse(waited) == wrong
