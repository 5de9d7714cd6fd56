"""`make test-gpu`: what it counts, what it calls passed, how it ends, and its rehearsal."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import test_gpu as gpu_tool
from gpu_arrays import needs_fake_cuda
from processes import run_to_end

if TYPE_CHECKING:
    from pathlib import Path

CASES = ("--gtest_filter=CudaBucket.copies*",)

# The third one passes, and fails when it is over. The last one is killed.
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


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """Returns that of a rehearsal, whose results go to a folder of this test."""
    monkeypatch.setattr(gpu_tool, "RESULTS", tmp_path / "results")
    (tmp_path / "results").mkdir()
    return gpu_tool.make_environment(True)


def ends(code: str, name: str = "x", limit_s: float = 60) -> gpu_tool.Step:
    """Returns a step of one program, whose end says whether it passed."""
    program = gpu_tool.Program((sys.executable, "-c", code), shows="code")
    return gpu_tool.Step(name, limit_s, (program,))


@needs_fake_cuda
def test_kernels_that_do_nothing_fail(environment: dict[str, str]) -> None:
    step = gpu_tool.Step("kernels", 60, (gpu_tool.kernels(*CASES, gpu="0"),))
    assert gpu_tool.run_step(step, 60, environment).word() == "passed"
    wrong = environment | {"LIGHTCC_FAKE_CUDA": "wrong=1"}
    assert gpu_tool.run_step(step, 60, wrong).failed > 0


def test_tests_that_were_over_count_where_pytest_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "gpu").mkdir()
    for name in ("conftest.py", "records.py", "suites.py"):
        (tmp_path / name).symlink_to(gpu_tool.PYTHON_TESTS / name)
    (tmp_path / "gpu" / "test_some.py").write_text(SOME_TESTS)
    monkeypatch.setattr(gpu_tool, "PYTHON_TESTS", tmp_path)
    monkeypatch.setattr(gpu_tool, "ROOT", tmp_path)
    environment.pop("CHECK_CHANGED", None)  # It asks a program of the repository.
    step = gpu_tool.Step("some", 200, (gpu_tool.pytest("test_some.py"),))
    outcome = gpu_tool.run_step(step, 200, environment)
    assert (outcome.word(), outcome.passed, outcome.failed) == ("FAILED", 1, 2)
    assert outcome.skipped == {"a reason": 1}
    assert re.fullmatch(r"exit code -9 .*, during .*::test_that_is_ended", outcome.problems[0])
    none = gpu_tool.Step("none", 200, (gpu_tool.Program((sys.executable, "-c", "")),))
    assert gpu_tool.run_step(none, 200, environment).problems == ["no test ran"]


def test_each_step_has_its_own_limit_and_the_next_ones_run(
    environment: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    steps = [ends("import time; time.sleep(600)", "slow", 10), ends("", "next", 1000)]
    assert gpu_tool.run_steps(steps, 101, environment) == 1
    out = capfd.readouterr().out
    assert re.search(r"^STEP slow 124 \d+\nSTEP next 0 ", out)
    assert "FAILED   slow: ended at the limit\n" in out
    assert re.search(r"\nnext +passed +1 +0 +0 ", out)


def test_a_machine_without_a_gpu_ends_the_run_and_the_last_line_says_so(
    environment: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    skipped = gpu_tool.Step("machine", 60, (), why_skipped="no GPU, because this is a test")
    assert gpu_tool.run_steps([skipped, ends("")], 60, environment) == 0
    out = capfd.readouterr().out
    assert "skipped  machine: 1 x no GPU, because this is a test\n" in out
    assert "STEP x" not in out
    assert out.splitlines()[-1].startswith("no GPU of use: see ")
    all_skipped = gpu_tool.Step("other", 60, (), why_skipped="a reason")
    assert gpu_tool.run_steps([all_skipped], 60, environment) == 1


def test_each_test_marked_gpu_is_in_one_step() -> None:
    marked = re.compile(r"\bpytest\.mark\.gpu\b")
    files = [p for p in gpu_tool.PYTHON_TESTS.rglob("*.py") if marked.search(p.read_text())]
    assert {file.parent.name for file in files} == {"gpu"}

    def collected(*paths: str) -> list[str]:
        argv = [*gpu_tool.pytest().argv, "--collect-only", "-q", "-q", *paths]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        return sorted(line for line in done.stdout.splitlines() if "::" in line)

    folder = str(gpu_tool.PYTHON_TESTS / "gpu")
    programs = [program for step in gpu_tool.make_steps() for program in step.programs]
    paths = {path for p in programs for path in p.argv if path.startswith(folder)}
    assert collected(*paths) == collected(folder) != []


#: ctest runs the kernels on the fake driver.
REHEARSED = "machine,staged,nccl-1,nccl-2,nccl-4,training,failures"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@needs_fake_cuda
def test_a_part_of_the_rehearsal_passes() -> None:
    done = run_to_end(
        [sys.executable, gpu_tool.__file__, "--rehearse", "--steps", REHEARSED, "--minutes", "20"]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in REHEARSED.split(","):
        assert re.search(rf"^{name} +passed +[1-9]\d* +0 +0 ", done.stdout, re.MULTILINE), (
            done.stdout
        )
