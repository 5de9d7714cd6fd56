"""What compares Horovod's own results with ours leaves no line of them out."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[3] / "tools"
sys.path.insert(0, str(TOOLS))

import horovod_examples  # noqa: E402
import horovod_suite as suite  # noqa: E402
from suite_results import Result, read_reports, wrapped  # noqa: E402

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


def test_reasons_name_the_groups_unless_all_have_them() -> None:
    both, one = Result("failed", "why"), Result("failed", "other")
    groups = {
        "2 ranks": {"f::A::both": both, "f::A::one": Result("passed")},
        "3 ranks": {"f::A::both": both, "f::A::one": one},
    }
    assert suite.reasons(groups, "failed") == ["- `both`: why", "- `one` (3 ranks): other"]
    assert suite.reasons(groups, "skipped") == ["Nothing."]


def test_generated_pictures_have_the_format_of_mnist(tmp_path: Path) -> None:
    horovod_examples.write_mnist(tmp_path / "raw")
    pictures = (tmp_path / "raw" / "train-images-idx3-ubyte").read_bytes()
    labels = (tmp_path / "raw" / "train-labels-idx1-ubyte").read_bytes()
    magic, count, rows, columns = struct.unpack(">IIII", pictures[:16])
    assert (magic, rows, columns) == (2051, 28, 28)
    assert len(pictures) == 16 + count * rows * columns
    assert struct.unpack(">II", labels[:8]) == (2049, count)
    assert set(labels[8:]) <= set(range(10))


def test_a_page_has_short_lines_but_for_rows() -> None:
    row = f"| {'x ' * 60}|"
    assert wrapped(row) == row
    item = wrapped(f"- `test`: {'word ' * 30}").split("\n")
    assert len(item) == 2
    assert item[1].startswith("  word")
    assert all(len(line) <= 100 for line in item)
    assert wrapped("") == ""


def test_a_section_is_replaced_in_its_place() -> None:
    first, second = {"test_a.py::A::test_x": Result("passed")}, {"test_r.py::": Result("passed")}
    page = suite.with_group(suite.with_group("# Title\n", "interactive", first), "ray", second)
    changed = {"test_a.py::A::test_x": Result("failed", "a reason")}
    found = suite.with_group(page, "interactive", changed)
    assert found.split("\n") == [
        "# Title",
        "",
        f"## {suite.TITLES['interactive']}",
        "",
        "| file | passed | failed | skipped |",
        "|---|---|---|---|",
        "| `test_a.py` | 0 | 1 | 0 |",
        "",
        "What failed:",
        "",
        "- `test_x`: a reason",
        *page[page.index(f"\n## {suite.TITLES['ray']}") :].split("\n"),
    ]
    assert suite.with_group(found, "interactive", first) == page


def test_the_section_of_tensorflow_takes_the_place_of_the_one_before() -> None:
    page = "# Title\n\nText.\n"
    results = {
        "test_a.py::A::test_good": Result("passed"),
        "test_a.py::A::test_bad": Result("failed", "a reason"),
        "test_k.py::": Result("skipped", "no Keras"),
    }
    once = suite.with_section(page, "tensorflow", results, "TensorFlow 2.0")
    assert once.startswith(page.rstrip())
    assert "| `test_a.py` | 1 | 1 | 0 |" in once
    assert "- `test_bad`: a reason" in once
    assert "- `test_k.py`: no Keras" in once
    assert suite.with_section(once, "tensorflow", results, "TensorFlow 2.0") == once
