"""`make test-gpu` on the fake driver: what it counts, what it calls passed, and how it ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_arrays import FAKE_CUDA, needs_fake_cuda

TOOLS = Path(__file__).resolve().parents[3] / "tools"
sys.path.insert(0, str(TOOLS))

import test_gpu as gpu_tool  # noqa: E402

needs_kernel_tests = pytest.mark.skipif(
    not gpu_tool.KERNEL_TESTS.exists(), reason="the tests of kernels are not built"
)


# The third one passes, and fails when it is over.
SOME_TESTS = """
import os, signal
import pytest
pytestmark = getattr(pytest.mark, "gpu")

@pytest.fixture
def fails_at_last():
    yield
    raise AssertionError

def test_that_passes(): pass
def test_that_fails(): assert False
def test_that_fails_late(fails_at_last): pass
def test_that_is_skipped(): pytest.skip("a reason")
def test_that_is_ended(): os.kill(os.getpid(), signal.SIGKILL)
"""


RUN_UNTIL_A_CASE_HAS_PASSED = """
import os, subprocess, sys, time
from pathlib import Path
program = subprocess.Popen(sys.argv[1:])
record = Path(os.environ["LIGHTCC_TEST_RECORD"])
while program.poll() is None:
    if record.exists() and '"passed"' in record.read_text():
        program.kill()
    time.sleep(0.01)
sys.exit(9)
"""


def run_tool(*flags: str) -> tuple[int, list[str]]:
    """Runs the tool on the fake driver; returns its exit status and its lines."""
    done = subprocess.run(
        [sys.executable, str(TOOLS / "test_gpu.py"), *flags],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"LD_LIBRARY_PATH": str(FAKE_CUDA.parent)},
    )
    return done.returncode, (done.stdout + done.stderr).splitlines()


@needs_fake_cuda
@needs_kernel_tests
def test_cases_of_kernels_pass_on_a_gpu_and_the_table_is_last() -> None:
    status, lines = run_tool("--steps", "kernels", "--few-cases")
    assert status == 0, lines
    assert any("Simulated GPU" in line for line in lines)
    assert [line.split()[0] for line in lines[-3:]] == ["step", "cases", "all"]
    assert lines[-1].split()[1] == "passed"


@needs_fake_cuda
@needs_kernel_tests
def test_kernels_that_do_nothing_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(FAKE_CUDA.parent))
    monkeypatch.setenv("LIGHTCC_FAKE_CUDA", "wrong=1")
    monkeypatch.setattr(gpu_tool, "REPORTS", tmp_path)
    outcome = gpu_tool.run_kernel_cases("kernels", 60, "--gtest_filter=CudaBucket.copies*")
    assert (outcome.word(), outcome.passed) == ("FAILED", 0)
    assert outcome.failed > 0


def test_without_a_gpu_nothing_is_green_and_the_last_line_says_why(
    capfd: pytest.CaptureFixture[str],
) -> None:
    why = "no GPU, because this is a test"
    chosen = [step for step in gpu_tool.steps(gpu_tool.Options()) if step.needs_gpu]
    assert gpu_tool.run_steps(chosen, why, 60) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[-2].split()[:5] == ["all", "skipped", "0", "0", str(len(chosen))]
    assert lines[-1].startswith(why)


def test_a_step_that_has_no_time_left_fails(capfd: pytest.CaptureFixture[str]) -> None:
    step = gpu_tool.Step("x", "a step", 60, lambda _: gpu_tool.Outcome(passed=1))
    assert gpu_tool.run_steps([step], "", 60) == 0
    assert gpu_tool.run_steps([step], "", 0) == 1
    assert "FAILED   a step: no time was left for it" in capfd.readouterr().out


def test_a_step_may_use_what_others_have_left() -> None:
    given: list[float] = []

    def run(limit_s: float) -> gpu_tool.Outcome:
        given.append(limit_s)
        return gpu_tool.Outcome(passed=1)

    chosen = [gpu_tool.Step(name, name, 1000, run) for name in ("a", "b")]
    assert gpu_tool.run_steps(chosen, "", 1200) == 0
    assert given[0] <= 1000 < given[1] <= 1200


def test_all_steps_together_have_twenty_minutes() -> None:
    assert sum(step.limit_s for step in gpu_tool.steps(gpu_tool.Options())) <= 20 * 60


def test_a_step_that_takes_too_long_is_ended() -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(1000)"]
    assert gpu_tool.run_program(sleeper, 0.1) == "ended after its limit of 0 s"


# As where the step has come to its limit, or where pytest-timeout ends pytest.
def test_tests_that_were_over_count_where_pytest_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("conftest.py", "records.py", "suites.py"):
        (tmp_path / name).symlink_to(gpu_tool.PYTHON_TESTS / name)
    (tmp_path / "test_some.py").write_text(SOME_TESTS)
    monkeypatch.setattr(gpu_tool, "REPORTS", tmp_path / "reports")
    monkeypatch.setattr(gpu_tool, "PYTHON_TESTS", tmp_path)
    monkeypatch.setattr(gpu_tool, "PYTEST", [*gpu_tool.PYTEST[:-1], str(tmp_path)])  # The root.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:randomly")
    monkeypatch.delenv("CHECK_CHANGED", raising=False)  # It asks a program of the repository.
    outcome = gpu_tool.run_pytest("some", 200, ["test_some.py"])
    assert (outcome.word(), outcome.passed, outcome.failed) == ("FAILED", 1, 2)
    assert outcome.skipped == {"a reason": 1}
    assert outcome.problem.startswith("exit code -9, during ")
    assert outcome.problem.endswith("test_some.py::test_that_is_ended")


@needs_fake_cuda
@needs_kernel_tests
def test_cases_of_kernels_that_were_over_count_where_the_program_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(FAKE_CUDA.parent))
    monkeypatch.setattr(gpu_tool, "REPORTS", tmp_path)
    ending = [sys.executable, "-c", RUN_UNTIL_A_CASE_HAS_PASSED]
    outcome = gpu_tool.run_kernel_cases("ended", 200, before=ending)
    assert (outcome.word(), outcome.failed) == ("FAILED", 0)
    assert outcome.passed > 0
    assert outcome.problem.startswith("exit code 9")


def test_a_record_that_is_cut_off_counts_as_far_as_it_goes(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    record.write_text('{"test": "a", "result": "passed"}\n{"test": "b", "resu')
    assert gpu_tool.read_record(record, -9) == gpu_tool.Outcome(passed=1, problem="exit code -9")
    none = gpu_tool.read_record(tmp_path / "none.jsonl", 4)
    assert none == gpu_tool.Outcome(problem="exit code 4")


def test_a_step_in_which_all_was_skipped_has_not_passed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    step = gpu_tool.Step("x", "a step", 60, lambda _: gpu_tool.skip("a reason"))
    assert gpu_tool.run_steps([step], "", 60) == 1
    assert "skipped  a step: 1 x a reason" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("report", "ended", "word"),
    [
        ('<testcase name="a"/>', 0, "passed"),
        ('<testcase name="a"><skipped message="why"/></testcase>', 0, "skipped"),
        ('<testcase name="a"/><testcase name="b"><failure/></testcase>', 1, "FAILED"),
        ('<testcase name="a"/>', -11, "FAILED"),
        ('<testcase name="a"/>', "ended after its limit of 1 s", "FAILED"),
        ("", 0, "FAILED"),
        ('<testcase name="a" status="notrun"/>', 0, "FAILED"),
    ],
)
def test_reports_and_exit_codes_make_the_result(
    tmp_path: Path, report: str, ended: str | int, word: str
) -> None:
    path = tmp_path / "report.xml"
    path.write_text(f"<testsuites><testsuite>{report}</testsuite></testsuites>")
    assert gpu_tool.read_report(path, ended).word() == word
    assert gpu_tool.read_report(tmp_path / "none.xml", 0).word() == "FAILED"


def test_the_sanitizer_of_a_toolkit_or_of_a_wheel_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages")])
    for folder in ("site-packages/nvidia/cu13/bin", "toolkit/bin"):
        program = tmp_path / folder / "compute-sanitizer"
        program.parent.mkdir(parents=True)
        program.touch(mode=0o755)
        assert gpu_tool.find_sanitizer() == str(program)


def test_all_tests_marked_gpu_are_in_the_folder_that_is_run() -> None:
    marked = re.compile(r"\bpytest\.mark\.gpu\b")
    files = [p for p in gpu_tool.PYTHON_TESTS.rglob("*.py") if marked.search(p.read_text())]
    assert {file.parent.name for file in files} == {"gpu"}
