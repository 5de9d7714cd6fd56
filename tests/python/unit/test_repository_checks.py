"""What decides that a run of tests has passed, and which suites run, decides rightly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import check_skips
import pytest
from processes import run_to_end
from suites import BUDGET_SECONDS, INTERFACES, SUITES, Choice, suite_of
from tracked_files import tracked_files

TOOLS = Path(__file__).resolve().parents[3] / "tools"


def run_check_skips(tmp_path: Path, cases: str) -> subprocess.CompletedProcess[str]:
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuite>{cases}</testsuite>")
    command = [sys.executable, str(TOOLS / "check_skips.py"), str(report)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_an_unlisted_skip_fails_and_is_named(tmp_path: Path) -> None:
    skipped = '<testcase classname="a" name="b"><skipped/></testcase>'
    ran = run_check_skips(tmp_path, skipped + '<testcase classname="a" name="c"/>')
    assert ran.returncode == 1
    assert "a::b" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "1 passed, 0 failed, 1 skipped"


def test_a_failure_is_named_and_fails(tmp_path: Path) -> None:
    ran = run_check_skips(tmp_path, '<testcase classname="a" name="b"><failure/></testcase>')
    assert ran.returncode == 1
    assert ran.stdout.splitlines() == ["FAILED a::b", "0 passed, 1 failed, 0 skipped"]


def test_what_failed_first_and_passed_alone_is_listed_and_has_not_failed(tmp_path: Path) -> None:
    def case(name: str, inner: str = "") -> str:
        return f'<testcase classname="a" name="{name}">{inner}</testcase>'

    alone = case("busy") + case("broken", "<failure/>")
    (tmp_path / "report-alone.xml").write_text(f"<testsuite>{alone}</testsuite>")
    first = case("good") + case("busy", "<failure/>") + case("broken", "<failure/>")
    ran = run_check_skips(tmp_path, first)
    assert ran.returncode == 1
    assert ran.stdout.splitlines() == [
        "PASSED ALONE, failed beside other tests: a::busy",
        "FAILED a::broken",
        "2 passed, 1 failed, 0 skipped",
    ]


#: A test that fails the first time only, beside one that passes.
CROWDED = """
import pathlib

def test_passes():
    pass

def test_is_crowded():
    mark = pathlib.Path(r"{mark}")
    first = not mark.exists()
    mark.touch()
    assert not first
"""
#: Tests that fail together, as those that share their ranks do.
BROKEN = """
import pytest

@pytest.mark.parametrize("i", range({count}))
def test_is_broken(i):
    assert False
"""


@pytest.mark.slow
def test_what_failed_runs_once_more_alone_and_is_named(tmp_path: Path) -> None:
    broken = 5
    (tmp_path / "test_suite.py").write_text(CROWDED.format(mark=tmp_path / "mark"))
    (tmp_path / "test_zz_broken.py").write_text(BROKEN.format(count=broken))
    report = tmp_path / "report.xml"
    pytest_here = Path(sys.executable).with_name("pytest")
    command = [str(TOOLS / "run_python_tests.sh"), str(pytest_here), "2", str(report)]
    done = run_to_end(
        [*command, "-q", "-p", "no:randomly", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert (tmp_path / "report-alone.xml").exists()
    totals = check_skips.read_reports([report])
    assert totals.passed_alone == {"test_suite::test_is_crowded"}
    assert len(totals.failed) == broken  # Those after the third did not run again, and have failed.


def test_suites_are_known_by_what_they_are_about() -> None:
    files = [str(path) for path in tracked_files()]
    for suite in SUITES:
        for begin in suite.tests + suite.sources + INTERFACES:
            assert any(name.startswith(begin) for name in files), begin
        for begin in suite.tests:
            assert suite_of(next(name for name in files if name.startswith(begin))) == suite
    assert suite_of("tests/python/parallel/test_compressed.py") is None


def test_a_suite_runs_whole_where_it_or_its_interface_changed() -> None:
    everything = [Choice(None, 0), Choice(["lightcc/_adapter/groups.py"], 0)]
    assert all(choice.why[suite] for choice in everything for suite in SUITES)
    ray = Choice(["README.md", "lightcc/ray/runner.py"], 0)
    assert [suite.name for suite, why in ray.why.items() if why] == ["Ray"]
    assert "Ray: whole, as lightcc/ray/runner.py changed" in ray.lines()
    assert all(ray.has("tests/python/programs/test_ray.py", f"a test {i}") for i in range(20))


def test_parts_of_suites_fit_the_budget_and_add_up_to_the_whole() -> None:
    parts = Choice([], 0).parts
    assert sum(suite.seconds for suite in SUITES) <= parts * BUDGET_SECONDS
    file = "tests/python/programs/test_spark.py"
    names = [f"{file}::test_{n}" for n in range(1000)]
    chosen = [
        {name for name in names if Choice([], seed).has(file, name)}
        for seed in range(11, 11 + parts)
    ]
    assert sum(map(len, chosen)) == len(set().union(*chosen)) == len(names)
    assert Choice([], 1).has("tests/python/parallel/test_compressed.py", "any")
