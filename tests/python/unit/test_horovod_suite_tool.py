"""What compares Horovod's own results with ours leaves no line of them out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import horovod_suite as suite
import pytest
from suite_results import Result, read_reports

if TYPE_CHECKING:
    from pathlib import Path

REPORT = """<testsuites><testsuite>
<testcase classname="test_x" name="test_function"/>
<testcase classname="test_x.Group" name="test_method">{}</testcase>
</testsuite></testsuites>"""


def test_every_line_of_the_baseline_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "baseline.txt"
    path.write_text(
        "# status  file::class::test\n"
        "passed   test_a.py::A::test_same\n"
        "passed   test_a.py::A::test_skipped\n"
        "skipped  test_a.py::A::test_better   # No GPU\n"
        "passed   test_unknown.py::B::test_of_a_file_that_did_not_run\n"
    )
    baseline = suite.read_baseline(path)
    assert len(baseline) == 4
    results = {
        "test_a.py::A::test_same": Result("passed"),
        "test_a.py::A::test_skipped": Result("skipped", "no reason"),
        "test_a.py::A::test_better": Result("passed"),
    }
    assert [line.split(": ", 1)[1] for line in suite.compare(results, baseline)] == [
        "passed under Horovod, skipped here: no reason",
        "passed under Horovod, failed here: did not run",
    ]


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


def test_a_section_is_replaced_in_its_place_and_counts_skips_by_reason() -> None:
    text = suite.with_group("# Page\n", "ray", {"a.py::::test_old": Result("passed")})
    text = suite.with_group(text, "tensorflow", {"b.py::::test_b": Result("failed", "wrong")})
    skipped = {f"a.py::::test_{i}": Result("skipped", "No GPUs available") for i in range(3)}
    text = suite.with_group(text, "ray", skipped)
    ray, tensorflow = text.split("\n## ")[1:]
    assert ray.endswith("\n| tests | reason |\n|---|---|\n| 3 | No GPUs available |\n")
    assert "test_old" not in ray
    assert tensorflow.endswith("What failed:\n\n- `test_b`: wrong\n")
