"""`make test-gpu` on the fake driver: what it counts, what it calls passed, and how it ends."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import test_gpu as gpu_tool
from gpu_arrays import FAKE_CUDA, needs_fake_cuda

TOOLS = Path(__file__).resolve().parents[3] / "tools"

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


def test_a_step_in_which_all_was_skipped_has_not_passed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    step = gpu_tool.Step("x", "a step", 60, lambda _: gpu_tool.skip("a reason"))
    assert gpu_tool.run_steps([step], "", 60) == 1
    assert "skipped  a step: 1 x a reason" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("results", "ended", "word", "problem"),
    [
        (["passed"], 0, "passed", ""),
        (["skipped"], 0, "skipped", ""),
        (["passed", "failed"], 1, "FAILED", ""),
        (["passed"], -11, "FAILED", "exit code -11"),
        (["passed", "begun"], -9, "FAILED", "exit code -9, during 1"),
        (["passed"], "ended after its limit of 1 s", "FAILED", "ended after its limit of 1 s"),
        ([], 0, "FAILED", "no test ran"),
    ],
)
def test_records_and_exit_codes_make_the_result(
    tmp_path: Path, results: list[str], ended: str | int, word: str, problem: str
) -> None:
    path = tmp_path / "record.jsonl"
    lines = [f'{{"test": "{i}", "result": "{result}"}}\n' for i, result in enumerate(results)]
    path.write_text("".join(lines) + '{"test": "cut off", "resu')
    outcome = gpu_tool.read_record(path, ended)
    assert (outcome.word(), outcome.problem) == (word, problem)
    assert outcome.passed == results.count("passed")
    assert gpu_tool.read_record(tmp_path / "none", 0).problem == "no test ran"


def test_all_tests_marked_gpu_are_in_the_folder_that_is_run() -> None:
    marked = re.compile(r"\bpytest\.mark\.gpu\b")
    files = [p for p in gpu_tool.PYTHON_TESTS.rglob("*.py") if marked.search(p.read_text())]
    assert {file.parent.name for file in files} == {"gpu"}
