"""Shows what is claimed of GPUs and does not need one: `make gpu-claims`.

Usage: gpu_claims.py [--claims NAME,...]

Each claim of CLAIMS has commands that show it: tests on the fakes of CUDA and NCCL, or checks of
what a GPU would be given. They run one after another, and a table comes last. What needs something
that is not there does not run, and its row says how to get it. CI has the same tests and checks in
`make test-all` and `make lint`, so it does not run this (tests/python/unit/test_gpu_claims.py).

The exit status is 1 where a command failed, and where nothing has shown a claim.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from check_skips import read_reports
from choose_tests import commands_of
from tracked_files import ROOT

REPORTS = ROOT / "build" / "reports"
ELSEWHERE = ROOT / "build" / "elsewhere"
PYTHON_TESTS = ROOT / "tests" / "python"
JOBS = 4


@dataclass(frozen=True)
class Ctest:
    """C++ tests by their names, of a build folder."""

    names: tuple[str, ...]
    preset: str = "dev"


@dataclass(frozen=True)
class Pytest:
    """Tests of Python, by their files below tests/python."""

    files: tuple[str, ...]


@dataclass(frozen=True)
class Check:
    """A program of tools/ that fails by its exit status. It counts as one test."""

    words: tuple[str, ...]
    needs: str = ""  # Its last word is a folder, or something in one; how to get that.


@dataclass(frozen=True)
class Claim:
    """What is claimed, and what shows it."""

    name: str
    text: str
    parts: tuple[Ctest | Pytest | Check, ...]


KERNELS = (
    *("cuda_bucket_test", "cuda_finite_test", "cuda_merge_test", "cuda_reduce_test"),
    *("cuda_topk_test", "cuda_indices_test", "cuda_simulator_test"),
)
CLAIMS = (
    Claim(
        "kernels",
        "kernels: results, order, races, bounds",
        (
            Ctest((*KERNELS, "cuda_kernels_by_a_driver")),
            Ctest(KERNELS, "tsan"),
            Ctest(KERNELS, "asan"),
            Check(("cuda_mutants.py", "--check")),
        ),
    ),
    Claim(
        "builds",
        "they build for all GPUs, and spill nothing",
        (
            Check(("check_cuda_kernels.sh",)),
            Check(("check_ptx.py", ".venv-cuda"), "make .venv-cuda/.ready"),
        ),
    ),
    Claim(
        "interfaces",
        "what is called of the driver and of NCCL",
        (
            Check(("check_cuda_abi.sh", ".venv-cuda"), "make .venv-cuda/.ready"),
            Check(("check_nccl_abi.sh", ".venv-nccl"), "tools/install_nccl.sh"),
            Ctest(
                ("cuda_driver_test", "cuda_start_test", "cuda_measure_test", "nccl_library_test")
            ),
        ),
    ),
    Claim(
        "streams",
        "order of streams, and lifetimes",
        (
            Ctest(
                (
                    *("cuda_stream_order_test", "cuda_capture_test", "cuda_staging_test"),
                    *("cuda_staged_pieces_test", "cuda_topk_jobs_test", "cuda_topk_kernels_test"),
                    *("cuda_rows_test", "nccl_early_test", "nccl_levels_test"),
                    *("nccl_buffer_test", "nccl_compression_test", "nccl_grid_test"),
                    *("nccl_group_test", "nccl_order_test", "nccl_plane_test"),
                    *("nccl_topk_levels_test", "nccl_topk_steps_test", "nccl_topk_test"),
                )
            ),
        ),
    ),
    Claim(
        "errors",
        "errors, dead peers, abort",
        (
            Ctest(
                (
                    *("cuda_cut_off_test", "cuda_topk_refusals_test", "cuda_topk_sides_test"),
                    *("nccl_abort_test", "nccl_kernel_plane_test", "nccl_topk_sides_test"),
                )
            ),
            Pytest(("parallel/test_gpu_failures.py", "parallel/test_gpu_nccl.py")),
        ),
    ),
    Claim(
        "adapters",
        "torch, torch.distributed, CuPy and other arrays",
        (
            Pytest(
                (
                    *("parallel/test_gpu_arrays.py", "torch/test_cuda_tensors.py"),
                    *("torch/test_cuda_training.py", "torch_distributed/test_cuda_groups.py"),
                )
            ),
        ),
    ),
)


@dataclass
class Shown:
    """What came of a part: numbers of tests, or why it did not run."""

    command: str
    passed: int = 0
    problems: list[str] = field(default_factory=list)
    missing: str = ""
    seconds: float = 0.0

    def word(self) -> str:
        """Returns what the table says of it."""
        if self.problems:
            return "FAILED"
        return f"not run: {self.missing}" if self.missing else f"{self.passed} passed"


def run(words: list[str], where: Path) -> str:
    """Runs a program, which writes to this one's output; returns what was wrong, if anything."""
    sys.stdout.write(f"$ {' '.join(words)}\n")
    sys.stdout.flush()
    where.mkdir(parents=True, exist_ok=True)
    code = subprocess.run(words, cwd=where, stdin=subprocess.DEVNULL, check=False).returncode
    return f"exit code {code}" if code else ""


def run_with_report(words: list[str], option: str, report: Path, where: Path, shown: Shown) -> None:
    """Runs tests that write a JUnit report, and counts."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    problem = run([*words, option, str(report)], where)
    totals = read_reports([report]) if report.exists() else None
    shown.passed = totals.passed if totals else 0
    shown.problems += totals.failed if totals else []
    if problem and not shown.problems:
        shown.problems.append(problem)


def run_ctest(part: Ctest, report: Path) -> Shown:
    """Builds what tests need, and runs them. A sanitizer's folder has to be there."""
    build = ROOT / "build" / part.preset
    shown = Shown(f"ctest in build/{part.preset}: {' '.join(part.names)}")
    commands = commands_of(build) if build.exists() else {}
    if not commands:
        shown.missing = "make sanitize" if part.preset.endswith("san") else "make test"
        return shown
    absent = sorted(set(part.names) - set(commands))
    if absent:
        shown.problems.append(f"no such tests: {' '.join(absent)}")
        return shown
    programs = sorted({Path(commands[name][0]).name for name in part.names})
    problem = run(["cmake", "--build", str(build), "--target", *programs], ROOT)
    if problem:
        shown.problems.append(f"it does not build: {problem}")
        return shown
    words = ["ctest", "--test-dir", str(build), "--output-on-failure", "--no-tests=error"]
    words += ["--parallel", str(JOBS), "--test-output-size-passed", "1048576"]
    words += ["--tests-regex", f"^({'|'.join(part.names)})$"]
    run_with_report(words, "--output-junit", report, ROOT, shown)
    return shown


def run_pytest(part: Pytest, report: Path) -> Shown:
    """Runs tests of Python on the installed package."""
    shown = Shown(f"pytest {' '.join(part.files)}")
    words = [sys.executable, "-m", "pytest", "-q", "-n", str(JOBS)]
    words += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    words += [str(PYTHON_TESTS / file) for file in part.files]
    run_with_report(words, "--junitxml", report, ELSEWHERE, shown)
    return shown


def run_check(part: Check) -> Shown:
    """Runs a check, if what it needs is there."""
    shown = Shown(f"tools/{' '.join(part.words)}")
    if part.needs and not (ROOT / part.words[-1]).exists():
        shown.missing = part.needs
        return shown
    script, *arguments = part.words
    path = str(ROOT / "tools" / script)
    before = [sys.executable] if script.endswith(".py") else []
    problem = run([*before, path, *arguments], ROOT)
    shown.problems += [problem] if problem else []
    shown.passed = 0 if problem else 1
    return shown


def run_part(part: Ctest | Pytest | Check, name: str) -> Shown:
    """Runs one part; `name` is that of its report."""
    begin = time.monotonic()
    report = REPORTS / f"{name}.xml"
    if isinstance(part, Ctest):
        shown = run_ctest(part, report)
    elif isinstance(part, Pytest):
        shown = run_pytest(part, report)
    else:
        shown = run_check(part)
    shown.seconds = time.monotonic() - begin
    return shown


def table(rows: list[tuple[Claim, list[Shown]]]) -> str:
    """Returns the table: each claim, and below it what ran, what passed, and seconds."""
    lines = []
    for claim, parts in rows:
        lines.append(claim.text)
        for shown in parts:
            lines.append(f"  {shown.word():<30} {shown.seconds:5.0f} s  {shown.command}")
            lines += [f"    FAILED {problem}" for problem in shown.problems]
        if not any(shown.passed for shown in parts):
            lines.append("  FAILED: nothing has shown this")
    passed = sum(shown.passed for _, parts in rows for shown in parts)
    seconds = sum(shown.seconds for _, parts in rows for shown in parts)
    lines.append(f"{passed} passed in {seconds:.0f} s")
    return "".join(f"{line}\n" for line in lines)


def is_shown(parts: list[Shown]) -> bool:
    """Returns whether something has passed, and nothing has failed."""
    return any(shown.passed for shown in parts) and not any(shown.problems for shown in parts)


def main(argv: list[str] | None = None) -> int:
    """Reads the command line, runs what shows the claims, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [claim.name for claim in CLAIMS]
    parser.add_argument("--claims", default=",".join(names), metavar="NAME,...", help="which")
    wanted = parser.parse_args(argv).claims.split(",")
    if unknown := [name for name in wanted if name not in names]:
        parser.error(f"--claims: {unknown[0]!r} is none of {', '.join(names)}")
    rows = []
    for claim in CLAIMS:
        if claim.name in wanted:
            reports = (f"claim-{claim.name}-{i}" for i in range(len(claim.parts)))
            rows.append((claim, list(map(run_part, claim.parts, reports))))
    sys.stdout.write(f"\n{table(rows)}")
    return 0 if all(is_shown(parts) for _, parts in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
