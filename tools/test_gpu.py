"""Runs what only a GPU can show, within minutes and without a network: `make test-gpu`.

Usage: test_gpu.py [--minutes 8] [--steps NAME,...] [--gpus 1] [--rehearse]

`make gpu-kit` has prepared build/gpu: lightcc for this Python, and the cases of kernels as a
program. Without that, lightcc is the one that this Python has, and the program that of build/dev.
The machine needs torch, pytest and, for its arrays, CuPy.

Each step of make_steps() is programs with one limit, which is its own: no step takes what another
has left. Limits grow or shrink so that all together are --minutes. A log and a record of tests go
to build/gpu/results as the step runs. Tests that were over at the limit count, and the one that ran
is named. A line "STEP name code seconds" comes at once, and a table last. A step in which
everything was skipped has not passed. Only the first step, which finds the GPU, may end the run.

--rehearse: the same on the fakes of CUDA and NCCL, without a GPU. --gpus 2: what one cannot show.
The exit status is 1 where something failed, and 0 where there is no GPU: the last line says so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent
KIT = ROOT / "build" / "gpu"
RESULTS = KIT / "results"
SITE = KIT / "site"
PYTHON_TESTS = ROOT / "tests" / "python"
COLLECTIVES = ROOT / "measure" / "torch_collectives.py"
FEW_CASES = ROOT / "tests" / "cpp" / "lightcc_cuda" / "on_gpu" / "few_cases.txt"
CPP_TESTS = ROOT / "build" / "dev" / "tests" / "cpp"
FAKES = CPP_TESTS / "lightcc_cuda"
#: The codes of a program that came to its limit, and of compute-sanitizer where it found something.
TIMED_OUT, SANITIZED = 124, 99
#: One GPU as the rehearsal has it. Ranks that take all its memory are done soon.
FAKE = {"LIGHTCC_FAKE_CUDA": "devices=1,memory_mb=256", "LIGHTCC_TEST_FIGURES": "64000"}


@dataclass
class Outcome:
    """What became of a step: numbers of tests, reasons of skips, and what was wrong besides."""

    passed: int = 0
    failed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    code: int = 0
    seconds: float = 0.0

    def word(self) -> str:
        """Returns "passed" only where something has passed."""
        if self.failed or self.problems:
            return "FAILED"
        return "passed" if self.passed else "skipped"


@dataclass(frozen=True)
class Program:
    """A program of a step. What it shows: tests that it records, its exit code, or nothing."""

    argv: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    shows: Literal["tests", "code", "nothing"] = "tests"


@dataclass(frozen=True)
class Step:
    """Programs that run one after another. `beside`: steps that follow do not wait for it."""

    name: str
    limit_s: float
    programs: tuple[Program, ...]
    beside: bool = False
    why_skipped: str = ""


def pytest(*tests: str, **environment: str) -> Program:
    """Returns a run of tests marked `gpu`, by their names within the folder of these.

    The options of pyproject.toml are for plugins that the machine need not have.
    """
    options = ("-m", "gpu", "-v", "-rs", "-p", "no:cacheprovider", "-p", "no:randomly")
    ini = (
        "-c",
        os.devnull,
        "--rootdir",
        str(ROOT),
        "-W",
        "ignore::pytest.PytestUnknownMarkWarning",
    )
    paths = (str(PYTHON_TESTS / "gpu" / test) for test in tests)
    return Program((sys.executable, "-m", "pytest", *options, *ini, *paths), environment)


def kernels(*flags: str, before: Sequence[str] = (), gpu: str = "0:all") -> Program:
    """Returns a run of the cases of kernels; `before`: a program that runs the program."""
    name = "cuda_kernel_tests"
    program = KIT / name if (KIT / name).exists() else CPP_TESTS / name
    argv = (*before, str(program), "--gtest_brief=1", *flags)
    return Program(argv, {"LIGHTCC_TEST_GPU": gpu} if gpu else {})


def find_sanitizer() -> str | None:
    """Returns compute-sanitizer: of PATH, of a toolkit, or of NVIDIA's wheel."""
    toolkits = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    folders = [Path(toolkit) / "bin" for toolkit in [*toolkits, "/usr/local/cuda"]]
    wheels = [Path(path) / "nvidia" for path in sys.path if path]
    folders += [folder for wheel in wheels for folder in sorted(wheel.glob("cu*/bin"))]
    path = os.pathsep.join([os.environ.get("PATH", ""), *map(str, folders)])
    return shutil.which("compute-sanitizer", path=path)


def sanitize(tool: str, *options: str) -> Program:
    """Returns few cases of kernels, which launch all of them, under a tool of the sanitizer."""
    before = [find_sanitizer() or "", "--tool", tool, "--error-exitcode", str(SANITIZED), *options]
    return kernels(f"--gtest_flagfile={FEW_CASES}", before=[*before, "--print-limit", "20"])


def make_steps(gpus: int = 1, rehearses: bool = False) -> list[Step]:
    """Returns all steps, in their order: what says most in little time comes first.

    Their limits are eight minutes in all, without that of what runs beside others.
    """
    smi = (Program(("nvidia-smi", "-q"), shows="nothing"),) if shutil.which("nvidia-smi") else ()
    doctor = Program((sys.executable, "-m", "lightcc.doctor"), shows="nothing")
    loads = "test_gpus.py::test_all_kernels_load_and_one_packs_tensors"
    cold = {"CUDA_CACHE_PATH": str(RESULTS / "cache")}  # So the driver compiles what it is given.
    machine = (*smi, doctor, pytest("test_gpus.py"), pytest(loads, CUDA_FORCE_PTX_JIT="1", **cold))
    # Calls of the driver do fail: the library asks module after module for a function.
    memcheck = sanitize("memcheck", "--padding", "64", "--report-api-errors", "no")
    figures = kernels("--gtest_also_run_disabled_tests", "--gtest_filter=Figures.*", gpu="")
    nccl = "test_nccl_on_gpus.py::test_"
    shared = f"{nccl}two_ranks_of_one_gpu_are_staged"
    killed = f"{nccl}a_killed_rank_is_named_and_nobody_hangs"
    held = f"{nccl}a_held_stream_does_not_hold_the_host"
    collectives = (str(COLLECTIVES), "--device", "cuda", "--ranks", str(gpus))
    timed = Program((sys.executable, *collectives, "--steps", "resnet50"), shows="code")
    fakes = "the fakes have none" if rehearses else ""
    absent = "" if find_sanitizer() else "there is no compute-sanitizer"
    return [
        Step("machine", 25, machine),
        Step("kernels", 60, (kernels(f"--gtest_flagfile={FEW_CASES}"), kernels())),
        Step("sanitizer", 90, (memcheck, sanitize("racecheck")), True, fakes or absent),
        Step("staged", 35, (pytest("test_gpu_operations.py", shared),)),
        Step("nccl-1", 20, (pytest(f"{nccl}every_collective_goes_by_nccl[1]"),)),
        Step("nccl-2", 60, (pytest(f"{nccl}every_collective_goes_by_nccl[2]"),)),
        Step("nccl-4", 70, (pytest(f"{nccl}two_levels_have_nccl_within_hosts", killed, held),)),
        Step("figures", 60, (Program(figures.argv, cold),)),
        Step("collectives", 30, (timed,), why_skipped=fakes),
        Step("training", 100, (pytest("test_gpu_training.py"),)),
        Step("failures", 20, (pytest("test_failures_on_gpus.py"),)),
    ]


#: What several GPUs show that one does not.
STEPS_OF_SEVERAL = ("machine", "nccl-2", "nccl-4", "collectives", "training")


def make_environment(rehearses: bool) -> dict[str, str]:
    """Returns the variables of all programs."""
    path = [str(SITE)] if SITE.exists() else []
    path.append(str(PYTHON_TESTS))
    found: dict[str, str] = {}
    if rehearses:
        path = [str(PYTHON_TESTS / "cuda_site"), str(PYTHON_TESTS / "cupy_site"), *path]
        found = {"LD_LIBRARY_PATH": str(FAKES), **FAKE}
    return {**os.environ, **found, "PYTHONPATH": os.pathsep.join(path)}


def run_program(
    program: Program, environment: dict[str, str], limit_s: float, log: Path
) -> tuple[int, str]:
    """Runs a program, whose output is added to `log`; its children end when its time is over.

    Returns:
        Its exit code, and why it has none of its own, or nothing.
    """
    said = [f"{name}={value}" for name, value in program.environment.items()]
    with log.open("a") as output:
        output.write(f"$ {' '.join([*said, *program.argv])}\n")
        output.flush()
        try:
            process = subprocess.Popen(
                program.argv,
                cwd=RESULTS,  # The sources lie elsewhere, so lightcc is the one that is built.
                env=environment | program.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return 127, f"{program.argv[0]} cannot be started: {error.strerror}"
    try:
        code = process.wait(max(limit_s, 0.0))
    except subprocess.TimeoutExpired:
        return TIMED_OUT, "ended at the limit"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return code, "compute-sanitizer has found something" if code == SANITIZED else ""


def read_record(path: Path) -> tuple[Outcome, list[str]]:
    """Returns what became of tests (tests/python/records.py), and those that were not over."""
    outcome = Outcome()
    results: dict[str, tuple[str, str]] = {}
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    for line in (json.loads(text) for text in lines if text.endswith("\n")):  # Not what is cut off.
        if results.get(line["test"], ("", ""))[0] != "failed":
            results[line["test"]] = line["result"], line.get("reason", "")
    counts = Counter(result for result, _ in results.values())
    outcome.passed, outcome.failed = counts["passed"], counts["failed"]
    outcome.skipped = Counter(reason for result, reason in results.values() if result == "skipped")
    return outcome, [test for test, (result, _) in results.items() if result == "begun"]


def run_step(step: Step, limit_s: float, environment: dict[str, str]) -> Outcome:
    """Runs a step within its limit, and says what became of it."""
    begin, total = time.monotonic(), Outcome()
    total.skipped.update([step.why_skipped] if step.why_skipped else [])
    for number, program in enumerate(() if step.why_skipped else step.programs):
        record = RESULTS / f"{step.name}-{number}.jsonl"
        variables = environment | {"LIGHTCC_TEST_RECORD": str(record)}
        left = begin + limit_s - time.monotonic()
        code, why = run_program(program, variables, left, RESULTS / f"{step.name}.log")
        if program.shows == "nothing":
            continue
        outcome, begun = read_record(record)
        if code != 0 and (why or begun or not outcome.failed):
            why = why or f"exit code {code} of {Path(program.argv[0]).name}"
            total.problems.append(", during ".join([why, *begun]))
        elif program.shows == "tests" and outcome == Outcome():
            total.problems.append("no test ran")
        total.passed += outcome.passed + (program.shows == "code" and code == 0)
        total.failed += outcome.failed
        total.skipped += outcome.skipped
        total.code = total.code or code
    total.seconds = time.monotonic() - begin
    sys.stdout.write(f"STEP {step.name} {total.code} {total.seconds:.0f}\n")
    sys.stdout.flush()
    return total


def table(rows: dict[str, Outcome]) -> str:
    """Returns why steps failed and tests were skipped, and the table of steps."""
    lines = []
    for name, outcome in rows.items():
        lines += [f"FAILED   {name}: {problem}" for problem in outcome.problems]
        lines += [f"skipped  {name}: {n} x {why}" for why, n in outcome.skipped.most_common()]
    form = "{:<12} {:<7} {:>6} {:>6} {:>7} {:>7}"
    lines += ["", form.format("step", "result", "passed", "failed", "skipped", "seconds")]
    for name, found in rows.items():
        counts = (found.passed, found.failed, found.skipped.total(), f"{found.seconds:.0f}")
        lines.append(form.format(name, found.word(), *counts))
    return "\n".join(lines) + "\n"


def run_steps(steps: Sequence[Step], seconds: float, environment: dict[str, str]) -> int:
    """Runs steps and prints the table; returns the exit status."""
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir(parents=True)
    limits_s = sum(step.limit_s for step in steps if not step.beside)
    scale = seconds / max(limits_s, *(step.limit_s for step in steps))
    rows: dict[str, Outcome] = {}
    threads: list[threading.Thread] = []

    def run(step: Step) -> None:
        rows[step.name] = run_step(step, step.limit_s * scale, environment)

    last = ""
    for step in steps:
        rows[step.name] = Outcome()
        if step.beside:
            threads.append(threading.Thread(target=run, args=(step,)))
            threads[-1].start()
            continue
        if step.name == "figures":  # Nothing runs beside what is measured.
            for thread in threads:
                thread.join()
        run(step)
        if step.name == "machine" and rows[step.name].word() != "passed":
            last = f"no GPU of use: see {RESULTS / 'machine.log'}. Nothing was shown on hardware.\n"
            break
    for thread in threads:
        thread.join()
    sys.stdout.write(f"\n{table(rows)}{last}")
    words = {outcome.word() for outcome in rows.values()}
    return int("FAILED" in words or (not last and "passed" not in words))


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the command line and runs the steps."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", metavar="NAME,...", help="which (all)")
    parser.add_argument("--minutes", type=float, default=8.0, help="for all steps (8)")
    parser.add_argument("--gpus", type=int, default=1, help="more: what one GPU cannot show (1)")
    parser.add_argument("--rehearse", action="store_true", help="on the fakes of CUDA and NCCL")
    args = parser.parse_args(argv)
    steps = make_steps(args.gpus, args.rehearse)
    names = [step.name for step in steps]
    wanted = args.steps.split(",") if args.steps else STEPS_OF_SEVERAL if args.gpus > 1 else names
    if unknown := [name for name in wanted if name not in names]:
        parser.error(f"--steps: {unknown[0]!r} is none of {', '.join(names)}")
    chosen = [step for step in steps if step.name in wanted]
    return run_steps(chosen, args.minutes * 60, make_environment(args.rehearse))


if __name__ == "__main__":
    sys.exit(main())
