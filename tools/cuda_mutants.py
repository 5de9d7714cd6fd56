"""Breaks the CUDA kernels on purpose, one place at a time, and requires that a test notices.

Each mutant replaces one piece of one kernel; the tests that are named beside it, on the simulator,
must then fail: with wrong results, or under the sanitizer that is named. With `--check` nothing is
built: every piece must occur exactly once, so that the table cannot rot.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from cuda_mutant_table import MUTANTS, Mutant
from tracked_files import ROOT

TESTS = ROOT / "tests" / "cpp" / "lightcc_cuda"
KERNELS = ROOT / "csrc" / "lightcc_cuda" / "kernels"
DEV = ROOT / "build" / "dev"
FLAGS = [
    *("-std=c++20", "-O1", "-march=x86-64-v2", "-ffp-contract=off", "-w", "-fPIE"),
    "-DLIGHTCC_CUDA_SIMULATOR",
]
INCLUDES = [f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'tests' / 'cpp'}"]
# What tools/get_googletest.sh has unpacked, where it had to.
GOOGLETEST = ROOT / "build" / "googletest" / "usr"
GOOGLETEST_LIBRARIES = [
    *(f"-L{library.parent}" for library in GOOGLETEST.glob("lib/**/libgtest.a")),
    "-lgtest",
]
SANITIZERS = {
    "": [],
    "thread": ["-fsanitize=thread"],
    "address": ["-fsanitize=address"],
    "undefined": ["-fsanitize=undefined", "-fno-sanitize-recover=all"],
}
AR = shutil.which("ar") or "ar"
TIMEOUT_S = 120


def mutated(mutant: Mutant) -> str:
    """Returns the broken source; raises ValueError where its piece does not occur exactly once."""
    text = (KERNELS / mutant.file).read_text()
    count = text.count(mutant.old)
    if count != 1:
        message = f"{mutant.file}: {mutant.what!r}: its piece occurs {count} times, not once"
        raise ValueError(message)
    return text.replace(mutant.old, mutant.new)


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Builder:
    """Compiles the kernels once for each sanitizer, and a mutant's kernels again.

    The CPU's reference is that of build/dev. Neither it nor tests and simulator are instrumented:
    what races or reads too far is a kernel.

    Args:
        folder: Where objects and broken kernels go; emptied.
        compiler: Command of the C++ compiler that made build/dev, in words.
    """

    def __init__(self, folder: Path, compiler: list[str]) -> None:
        self.folder = folder
        self.compiler = compiler
        self.kernels = [path.name for path in sorted(KERNELS.glob("*.cu"))]
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        objects = (DEV / "csrc" / "CMakeFiles" / "lightcc_objects.dir").rglob("*.o")
        self.reference = folder / "libreference.a"
        subprocess.run([AR, "rcs", self.reference, *sorted(objects)], check=True)
        self.tests = [str(self._compile_test(source)) for source in self._test_sources()]

    @staticmethod
    def _test_sources() -> list[Path]:
        """Returns the tests that run kernels on the simulator alone, and what they are linked with.

        The build's own objects have several tests each, and some of these need more.
        """
        names = sorted({mutant.filter.split(".")[0] for mutant in MUTANTS})
        tests = [TESTS / f"{_snake_case(name)}_test.cpp" for name in names]
        return [*tests, TESTS / "simulator" / "simulator.cpp", ROOT / "cmake" / "test_main.cpp"]

    def _compile_test(self, source: Path) -> Path:
        to = self.folder / f"{source.stem}.o"
        command = [*self.compiler, *FLAGS, *INCLUDES, "-c", str(source), "-o", str(to)]
        subprocess.run(command, check=True)
        return to

    def compile(self, tree: Path, kernels: list[str], sanitizer: str, to: Path) -> dict[str, Path]:
        """Compiles kernels of `tree`, a folder that has lightcc_cuda/kernels."""
        to.mkdir(parents=True, exist_ok=True)
        objects = {}
        for kernel in kernels:
            objects[kernel] = to / f"{kernel}.o"
            command = [*self.compiler, *FLAGS, *SANITIZERS[sanitizer], f"-I{tree}", *INCLUDES]
            source = tree / "lightcc_cuda" / "kernels" / kernel
            command += ["-x", "c++", "-c", str(source), "-o", str(objects[kernel])]
            subprocess.run(command, check=True)
        return objects

    def run(self, objects: dict[str, Path], sanitizer: str, tests: str, to: Path) -> bool:
        """Links and runs tests; returns whether they passed (a hang or a crash is no pass)."""
        program = to / "tests"
        files = [*self.tests, *map(str, objects.values()), str(self.reference)]
        command = [*self.compiler, *SANITIZERS[sanitizer], "-pthread", *files, "-o", str(program)]
        subprocess.run([*command, *GOOGLETEST_LIBRARIES, "-ldl"], check=True)
        options = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1"}
        try:
            done = subprocess.run(
                [str(program), f"--gtest_filter={tests}", "--gtest_fail_fast"],
                check=False,
                capture_output=True,
                timeout=TIMEOUT_S,
                env={**os.environ, **options},
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


def try_mutant(builder: Builder, whole: dict[str, Path], mutant: Mutant, number: int) -> bool:
    """Returns whether a test noticed."""
    folder = builder.folder / f"mutant-{number}"
    kernels = folder / "tree" / "lightcc_cuda" / "kernels"
    shutil.copytree(KERNELS, kernels)
    (kernels / mutant.file).write_text(mutated(mutant))
    broken = [mutant.file] if mutant.file.endswith(".cu") else builder.kernels
    objects = whole | builder.compile(folder / "tree", broken, mutant.sanitizer, folder)
    noticed = not builder.run(objects, mutant.sanitizer, mutant.filter, folder)
    shutil.rmtree(folder)
    return noticed


def try_mutants(builder: Builder, chosen: list[Mutant], jobs: int) -> list[str]:
    """Builds and runs each mutant; returns those that no test noticed."""
    survivors = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        whole = {}
        sanitizers = sorted({mutant.sanitizer for mutant in chosen})

        def build_whole(sanitizer: str) -> bool:
            folder = builder.folder / f"whole-{sanitizer or 'plain'}"
            whole[sanitizer] = builder.compile(ROOT / "csrc", builder.kernels, sanitizer, folder)
            tests = {mutant.filter for mutant in chosen if mutant.sanitizer == sanitizer}
            return builder.run(whole[sanitizer], sanitizer, ":".join(sorted(tests)), folder)

        for sanitizer, passed in zip(sanitizers, pool.map(build_whole, sanitizers), strict=True):
            if not passed:
                survivors.append(f"the unbroken kernels fail, sanitizer: {sanitizer or 'none'}")
        found = pool.map(
            lambda pair: try_mutant(builder, whole[pair[1].sanitizer], pair[1], pair[0]),
            enumerate(chosen),
        )
        for mutant, noticed in zip(chosen, found, strict=True):
            sys.stdout.write(f"{'noticed ' if noticed else 'SURVIVED'}  {mutant.what}\n")
            sys.stdout.flush()
            if not noticed:
                survivors.append(f"{mutant.what} ({mutant.file}): {mutant.filter} passes")
    return survivors


def main() -> int:
    """Runs all mutants, or those whose description contains the words given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only check that the table fits")
    parser.add_argument("words", nargs="*", help="run only mutants whose description has these")
    arguments = parser.parse_args()
    for mutant in MUTANTS:
        mutated(mutant)
    if arguments.check:
        sys.stdout.write(f"CUDA mutants: {len(MUTANTS)}, all fit\n")
        return 0
    chosen = [m for m in MUTANTS if all(word in m.what for word in arguments.words)]
    compiler = os.environ.get("CXX", "c++").split()
    jobs = int(os.environ.get("JOBS", str(os.cpu_count() or 1)))
    survivors = try_mutants(Builder(ROOT / "build" / "cuda-mutants", compiler), chosen, jobs)
    for survivor in survivors:
        sys.stderr.write(f"SURVIVED: {survivor}\n")
    sys.stdout.write(f"CUDA mutants: {len(chosen)}, {len(survivors)} survived\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
