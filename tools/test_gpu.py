"""Runs all that only a GPU can show, and ends with a table: `make test-gpu`.

Usage: test_gpu.py [--steps NAME,...] [--minutes 20] [--few-cases]

The steps are those of steps(), in this order: what says most in little time comes first. Each has a
limit, and what steps before it have left of theirs; all together have --minutes. A step that takes
longer is ended, and has failed. Tests that were over by then are counted, and the one that ran is
named. A step in which everything was skipped has not passed, and the table says so. The
reasons of skips stand above the table, counted.

The exit status is 1 where something failed, and where there is a GPU on which nothing passed. It is
0 where there is no GPU: the last line says why.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from lightcc import _core

ROOT = Path(__file__).resolve().parent.parent
ELSEWHERE = ROOT / "build" / "elsewhere"
REPORTS = ROOT / "build" / "reports"
PYTHON_TESTS = ROOT / "tests" / "python"
KERNEL_TESTS = ROOT / "build" / "dev" / "tests" / "cpp" / "cuda_kernel_tests"
COLLECTIVES = ROOT / "measure" / "torch_collectives.py"
FIGURES = ("--gtest_also_run_disabled_tests", "--gtest_filter=Figures.*")
FEW_CASES = ROOT / "tests" / "cpp" / "lightcc_cuda" / "on_gpu" / "few_cases.txt"
# The `--error-exitcode`, with which no test program ends.
SANITIZER_CODE = 99
LEAST_S = 5.0
PYTEST = [
    *(sys.executable, "-m", "pytest", "-m", "gpu", "-n0", "-v"),
    *("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)),
]


@dataclass
class Outcome:
    """What became of a step: numbers of tests, reasons of skips, and what was wrong besides."""

    passed: int = 0
    failed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    problem: str = ""

    def word(self) -> str:
        """Returns "passed" only where something has passed."""
        if self.failed or self.problem:
            return "FAILED"
        return "passed" if self.passed else "skipped"


@dataclass(frozen=True)
class Step:
    """A row of the table. `run` is given the seconds that it may take."""

    name: str
    title: str
    limit_s: float
    run: Callable[[float], Outcome]
    needs_gpu: bool = True


@dataclass(frozen=True)
class Options:
    """What the command line says of steps."""

    few_cases: bool = False


def skip(reason: str) -> Outcome:
    """Returns that a step has not run."""
    return Outcome(skipped=Counter([reason]))


def run_program(argv: Sequence[str], limit_s: float, **environment: str) -> str | int:
    """Runs a program, which writes to this one's output.

    Returns:
        Its exit code, or why there is none. When its time is over, its children end as well.
    """
    said = [f"{name}={value}" for name, value in environment.items()]
    sys.stdout.write(f"$ {' '.join([*said, *argv])}\n")
    sys.stdout.flush()
    ELSEWHERE.mkdir(parents=True, exist_ok=True)
    try:
        process = subprocess.Popen(
            argv,
            cwd=ELSEWHERE,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        return f"{argv[0]} cannot be started: {error.strerror}"
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return f"ended after its limit of {limit_s:.0f} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def read_record(path: Path, ended: str | int) -> Outcome:
    """Returns what became of the tests of a run that ended so (tests/python/records.py)."""
    outcome = Outcome(problem=ended if isinstance(ended, str) else "")
    results: dict[str, tuple[str, str]] = {}
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    for text in lines:
        if not text.endswith("\n"):
            break  # Cut off.
        line = json.loads(text)
        if results.get(line["test"], ("", ""))[0] != "failed":
            results[line["test"]] = line["result"], line.get("reason", "")
    counts = Counter(result for result, _ in results.values())
    outcome.passed, outcome.failed = counts["passed"], counts["failed"]
    outcome.skipped = Counter(reason for result, reason in results.values() if result == "skipped")
    if not outcome.problem and ended != 0 and (counts["begun"] or not outcome.failed):
        outcome.problem = f"exit code {ended}"
    if not outcome.problem and not results:
        outcome.problem = "no test ran"
    for test, (result, _) in results.items():
        if result == "begun":
            outcome.problem += f", during {test}"
    return outcome


def make_room(name: str) -> Path:
    """Returns where a run's record goes, and has none there."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    path = REPORTS / f"{name}.jsonl"
    path.unlink(missing_ok=True)
    return path


def run_pytest(name: str, limit_s: float, files: Sequence[str], **environment: str) -> Outcome:
    """Runs tests marked `gpu`."""
    record = make_room(name)
    argv = [*PYTEST, "--record", str(record), *(str(PYTHON_TESTS / file) for file in files)]
    return read_record(record, run_program(argv, limit_s, **environment))


def run_kernel_cases(name: str, limit_s: float, *flags: str, before: Sequence[str] = ()) -> Outcome:
    """Runs the cases of kernels on the first GPU; `before`: a program that runs the program."""
    if not KERNEL_TESTS.exists():
        return Outcome(problem=f"{KERNEL_TESTS.relative_to(ROOT)} is not built")
    record = make_room(name)
    argv = [*before, str(KERNEL_TESTS), *flags, "--gtest_brief=1"]
    environment = {"LIGHTCC_TEST_GPU": "0:all", "LIGHTCC_TEST_RECORD": str(record)}
    ended = run_program(argv, limit_s, **environment)
    if ended == SANITIZER_CODE:
        ended = "compute-sanitizer has found something"
    return read_record(record, ended)


def find_sanitizer() -> str | None:
    """Returns compute-sanitizer: of PATH, of a toolkit, or of NVIDIA's wheel."""
    toolkits = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    folders = [Path(toolkit) / "bin" for toolkit in [*toolkits, "/usr/local/cuda"]]
    wheels = [Path(path) / "nvidia" for path in sys.path if path]
    folders += [folder for wheel in wheels for folder in sorted(wheel.glob("cu*/bin"))]
    return shutil.which("compute-sanitizer") or next(
        (
            str(folder / "compute-sanitizer")
            for folder in folders
            if os.access(folder / "compute-sanitizer", os.X_OK)
        ),
        None,
    )


def run_sanitizer(tool: str, limit_s: float) -> Outcome:
    """Runs few cases of kernels, which launch all of them, under a tool of compute-sanitizer."""
    program = find_sanitizer()
    if program is None:
        return skip(
            "compute-sanitizer is neither on PATH nor in CUDA_HOME/bin, nor is NVIDIA's wheel "
            "nvidia-cuda-sanitizer-api installed"
        )
    before = [program, "--tool", tool, "--error-exitcode", str(SANITIZER_CODE)]
    before += ["--print-limit", "20"]
    if tool == "memcheck":
        # The library asks module after module for a function, so calls do fail.
        before += ["--padding", "64", "--report-api-errors", "no"]
    return run_kernel_cases(f"gpu-{tool}", limit_s, f"--gtest_flagfile={FEW_CASES}", before=before)


def run_bench(limit_s: float, *arguments: str) -> Outcome:
    """Runs a program that measures and checks its results."""
    ended = run_program(arguments, limit_s)
    if ended == 0:
        return Outcome(passed=1)
    return Outcome(failed=1, problem=ended if isinstance(ended, str) else f"exit code {ended}")


def bench_collectives(limit_s: float) -> Outcome:
    """Measures collectives of torch.distributed beside NCCL's, on a rank for each GPU."""
    ranks = len(_core.find_gpus()["gpus"])
    arguments = ("--device", "cuda", "--ranks", str(ranks), "--steps", "resnet50")
    return run_bench(limit_s, sys.executable, str(COLLECTIVES), *arguments)


def steps(options: Options) -> list[Step]:
    """Returns all steps, in their order. Their limits are 20 minutes in all."""
    few = [f"--gtest_flagfile={FEW_CASES}"] if options.few_cases else []
    failures = ["gpu/test_gpu_operations.py", "gpu/test_failures_on_gpus.py"]
    blocking = {"CUDA_LAUNCH_BLOCKING": "1"}
    return [
        Step(
            "tests", "tests marked gpu", 540, lambda s: run_pytest("pytest-gpu", s, ["gpu"]), False
        ),
        Step("kernels", "cases of kernels", 90, lambda s: run_kernel_cases("gpu", s, *few)),
        *(
            Step(tool, f"kernels under {tool}", 60, partial(run_sanitizer, tool))
            for tool in ("memcheck", "racecheck", "initcheck", "synccheck")
        ),
        Step(
            "figures",
            "figures of kernels",
            60,
            lambda s: run_bench(s, str(KERNEL_TESTS), *FIGURES),
        ),
        Step("bench", "torch's collectives beside NCCL's", 60, bench_collectives),
        Step(
            "blocking",
            "failures, CUDA_LAUNCH_BLOCKING=1",
            150,
            lambda s: run_pytest("pytest-gpu-blocking", s, failures, **blocking),
        ),
    ]


def why_no_gpu() -> str:
    """Returns why no kernel of lightcc can run here, or nothing."""
    try:
        found = _core.find_gpus()["gpus"]
    except NotImplementedError as error:
        return str(error)
    if all(gpu["objection"] for gpu in found):
        return f"no GPU of use: {found[0]['objection']}"
    return ""


def table(rows: Sequence[tuple[str, Outcome, float]]) -> str:
    """Returns the table of steps: what, how it went, how many tests, and its time in seconds."""
    cells = [("step", "result", "passed", "failed", "skipped", "time")]
    cells += [
        (
            title,
            outcome.word(),
            str(outcome.passed),
            str(outcome.failed),
            str(outcome.skipped.total()),
            f"{seconds:.0f} s",
        )
        for title, outcome, seconds in rows
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return "".join(
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        + "\n"
        for row in cells
    )


def reasons(rows: Sequence[tuple[str, Outcome, float]]) -> str:
    """Returns why steps failed and tests were skipped, one line each."""
    lines = []
    for title, outcome, _ in rows:
        if outcome.problem:
            lines.append(f"FAILED   {title}: {outcome.problem}\n")
        lines += [f"skipped  {title}: {n} x {why}\n" for why, n in outcome.skipped.most_common()]
    return "".join(lines)


def run_steps(chosen: Sequence[Step], no_gpu: str, seconds: float) -> int:
    """Runs steps and prints the table; returns the exit status."""
    begin = time.monotonic()
    planned_s = 0.0
    rows: list[tuple[str, Outcome, float]] = []
    for step in chosen:
        now = time.monotonic()
        planned_s = min(planned_s + step.limit_s, seconds)
        limit_s = begin + planned_s - now
        sys.stdout.write(f"\n=== {step.title}\n")
        if no_gpu and step.needs_gpu:
            outcome = skip("there is no GPU")
        elif limit_s < LEAST_S:
            outcome = Outcome(problem="no time was left for it")
        else:
            outcome = step.run(limit_s)
        rows.append((step.title, outcome, time.monotonic() - now))
    everything = Outcome(
        passed=sum(outcome.passed for _, outcome, _ in rows),
        failed=sum(outcome.failed for _, outcome, _ in rows),
        skipped=sum((outcome.skipped for _, outcome, _ in rows), Counter()),
        problem="; ".join(filter(None, (outcome.problem for _, outcome, _ in rows))),
    )
    sys.stdout.write(f"\n{reasons(rows)}\n")
    sys.stdout.write(table([*rows, ("all", everything, time.monotonic() - begin)]))
    if no_gpu:
        sys.stdout.write(f"{no_gpu}. So nothing was shown on hardware.\n")
    failed = everything.word() == "FAILED" or (not no_gpu and not everything.passed)
    return int(failed)


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the command line, prints what is there, and runs the steps."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [step.name for step in steps(Options())]
    parser.add_argument("--steps", default=",".join(names), metavar="NAME,...", help="which")
    parser.add_argument("--minutes", type=float, default=20.0, help="for all steps (20)")
    parser.add_argument(
        "--few-cases", action="store_true", help="of kernels: no more than launch each of them"
    )
    arguments = parser.parse_args(argv)
    wanted = arguments.steps.split(",")
    if unknown := [name for name in wanted if name not in names]:
        parser.error(f"--steps: {unknown[0]!r} is none of {', '.join(names)}")
    run_program([sys.executable, "-m", "lightcc.doctor"], 120)
    chosen = [step for step in steps(Options(arguments.few_cases)) if step.name in wanted]
    return run_steps(chosen, why_no_gpu(), arguments.minutes * 60)


if __name__ == "__main__":
    sys.exit(main())
