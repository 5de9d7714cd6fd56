"""Breaks HARP's protocol or the CUDA kernels, one place at a time; a test must notice each.

Usage: mutants.py harp|cuda [--check] [WORD...]    (WORD: only mutants whose description has it)

tools/harp_mutants.txt and tools/cuda_mutants.txt have the mutants. The tests that are named beside
one must fail: with wrong results, or under the sanitizer that is named. With `--check` nothing is
built: every piece must occur exactly once, so that the tables cannot rot.

What is broken is compiled once for each sanitizer, and a mutant's few sources again. Tests, and the
CPU's reference of the kernels, which is that of build/dev, are not instrumented: what races or
reads too far is a kernel.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tracked_files import ROOT

HARP = ROOT / "harp_plugin"
CUDA_TESTS = ROOT / "tests" / "cpp" / "lightcc_cuda"
# What tools/get_googletest.sh has unpacked, where it had to.
GOOGLETEST = ROOT / "build" / "googletest" / "usr"
FLAGS = ["-std=c++20", "-O1", "-march=x86-64-v2", "-w", "-MD"]
LIBRARIES = [f"-L{library.parent}" for library in GOOGLETEST.glob("lib/**/libgtest.a")]
SANITIZERS = {
    "": [],
    "thread": ["-fsanitize=thread"],
    "address": ["-fsanitize=address"],
    "undefined": ["-fsanitize=undefined", "-fno-sanitize-recover=all"],
}
AR = shutil.which("ar") or "ar"
TIMEOUT_S = 300


class Mutant(NamedTuple):
    """One broken place: `old` becomes `new` in `file`, and `test` fails."""

    what: str
    file: str
    test: str
    sanitizer: str
    old: str
    new: str


@dataclass(frozen=True)
class Suite:
    """What is broken, and by which programs that is noticed."""

    base: Path  # A mutant has a copy of this folder.
    folder: str  # Below it, where a mutant's file is.
    parts: list[Path]  # Sources that may be broken.
    flags: list[str]
    includes: list[str]  # Below `base`.
    libraries: list[str]

    def sources(self, test: str) -> list[Path]:
        """Returns the sources of tests, and what they are linked with.

        The build's own objects have several tests each, and some of these need more.
        """
        if self.base == HARP:
            if test == "scenarios":
                return [HARP / "tests" / "sim" / "scenarios_main.cpp"]
            return list((HARP / "tests").glob(f"*/{test}_test.cpp")) or [HARP / test]
        names = {re.sub(r"(?<!^)(?=[A-Z])", "_", it.split(".")[0]) for it in test.split(":")}
        found = [CUDA_TESTS / f"{name.lower()}_test.cpp" for name in sorted(names)]
        return [*found, CUDA_TESTS / "simulator" / "simulator.cpp", ROOT / "cmake/test_main.cpp"]

    def arguments(self, test: str) -> list[str]:
        """Returns what a program is told to run."""
        if self.base == HARP:
            return ["--count", "1000"] if test == "scenarios" else []
        return [f"--gtest_filter={test}", "--gtest_fail_fast"]

    def mutated(self, mutant: Mutant) -> str:
        """Returns the broken source; raises ValueError where its piece does not occur once."""
        text = (self.base / self.folder / mutant.file).read_text(encoding="utf-8")
        count = text.count(mutant.old)
        if count != 1:
            message = f"{mutant.file}: {mutant.what!r}: its piece occurs {count} times, not once"
            raise ValueError(message)
        return text.replace(mutant.old, mutant.new)


def make_suite(name: str) -> Suite:
    """Returns the suite of a table."""
    if name == "harp":
        rooms = ("src/base", "src/protocol", "sim")
        parts = [path for room in rooms for path in sorted((HARP / room).glob("*.cpp"))]
        parts.append(HARP / "src/datapath/impairment.cpp")  # The simulator's wires.
        libraries = [*LIBRARIES, "-lgtest", "-lgtest_main", "-lpthread"]
        return Suite(HARP, "", parts, [], ["", "src", "tests"], libraries)
    base, folder = ROOT / "csrc", "lightcc_cuda/kernels"
    flags = ["-ffp-contract=off", "-fPIE", "-DLIGHTCC_CUDA_SIMULATOR", f"-I{ROOT / 'tests/cpp'}"]
    parts = sorted((base / folder).glob("*.cu"))
    libraries = [*LIBRARIES, "-lgtest", "-lpthread", "-ldl"]
    return Suite(base, folder, parts, flags, [""], libraries)


def read_table(name: str) -> list[Mutant]:
    """Returns the mutants of a table."""
    text = (ROOT / "tools" / f"{name}_mutants.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("# ")]
    found = []
    for head, old, new in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        what, file, test, sanitizer, *_ = [*head.split(" | "), ""]
        pieces = [piece[2:].replace("\\n", "\n") for piece in (old, new)]
        if old[:2] != "- " or new[:1] != "+" or sanitizer not in SANITIZERS:
            message = f"tools/{name}_mutants.txt: {head!r} is no mutant"
            raise ValueError(message)
        found.append(Mutant(what, file, test, sanitizer, *pieces))
    return found


class Builder:
    """Compiles a suite, and mutants of it, into `folder`, which is emptied."""

    def __init__(self, suite: Suite, folder: Path, pool: ThreadPoolExecutor) -> None:
        self.suite = suite
        self.folder = folder
        self.pool = pool
        self.compiler = os.environ.get("CXX", "c++").split()
        self.objects: dict[tuple[Path, str], Path] = {}
        self.libraries = suite.libraries
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if suite.base != HARP:
            reference = folder / "libreference.a"
            objects = (ROOT / "build/dev/csrc/CMakeFiles/lightcc_objects.dir").rglob("*.o")
            subprocess.run([AR, "rcs", reference, *sorted(objects)], check=True)
            self.libraries = [str(reference), *suite.libraries]

    def compile(self, source: Path, sanitizer: str, tree: Path, to: Path) -> Path:
        """Compiles a source as it is in `tree`, a copy of the suite's base."""
        made = to / f"{source.parent.name}-{source.name}-{sanitizer}.o"
        is_copied = source.is_relative_to(self.suite.base)
        location = tree / source.relative_to(self.suite.base) if is_copied else source
        command = [*self.compiler, *FLAGS, *SANITIZERS[sanitizer], *self.suite.flags]
        command += [f"-I{tree / name}" for name in self.suite.includes]
        command += ["-idirafter", str(GOOGLETEST / "include")]
        command += ["-x", "c++", "-c", str(location), "-o", str(made)]
        subprocess.run(command, check=True)
        return made

    def compile_whole(self, chosen: list[Mutant]) -> None:
        """Compiles all that the mutants need, as it is."""
        wanted = {(source, mutant.sanitizer) for mutant in chosen for source in self.suite.parts}
        wanted |= {(source, "") for m in chosen for source in self.suite.sources(m.test)}
        todo = sorted(wanted)
        base = self.suite.base
        made = self.pool.map(lambda it: self.compile(it[0], it[1], base, self.folder), todo)
        self.objects = dict(zip(todo, made, strict=True))

    def passes(self, mutant: Mutant, broken: dict[tuple[Path, str], Path], to: Path) -> bool:
        """Links and runs the tests; returns whether they pass. A hang or a crash is no pass."""
        program = to / "tests"
        parts = [(source, mutant.sanitizer) for source in self.suite.parts]
        keys = [*parts, *((source, "") for source in self.suite.sources(mutant.test))]
        files = [str((self.objects | broken)[key]) for key in keys]
        command = [*self.compiler, *SANITIZERS[mutant.sanitizer], *files, "-o", str(program)]
        subprocess.run([*command, *self.libraries], check=True)
        options = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1"}
        try:
            done = subprocess.run(
                [str(program), *self.suite.arguments(mutant.test)],
                check=False,
                capture_output=True,
                timeout=TIMEOUT_S,
                env=os.environ | options,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def users_of(self, file: Path) -> list[tuple[Path, str]]:
        """Returns what was compiled from a file, by what the compiler has noted."""
        return [
            key
            for key, made in self.objects.items()
            if str(file) in made.with_suffix(".d").read_text(encoding="utf-8").split()
        ]

    def is_noticed(self, mutant: Mutant) -> bool:
        """Builds a mutant and runs its tests."""
        folder = self.folder / re.sub(r"\W+", "-", mutant.what)
        tree = folder / "tree"
        shutil.copytree(self.suite.base, tree, ignore=shutil.ignore_patterns("corpus", "*.o"))
        below = Path(self.suite.folder, mutant.file)
        (tree / below).write_text(self.suite.mutated(mutant), encoding="utf-8")
        broken = {
            key: self.compile(*key, tree, folder)
            for key in self.users_of(self.suite.base / below)
            if key[1] in ("", mutant.sanitizer)
        }
        noticed = not self.passes(mutant, broken, folder)
        shutil.rmtree(folder)
        return noticed


def try_mutants(builder: Builder, chosen: list[Mutant]) -> list[str]:
    """Builds and runs each mutant; returns those that no test noticed."""
    builder.compile_whole(chosen)
    survivors = []
    for test, sanitizer in sorted({(mutant.test, mutant.sanitizer) for mutant in chosen}):
        if not builder.passes(Mutant("", "", test, sanitizer, "", ""), {}, builder.folder):
            survivors.append(f"what is whole fails {test}, sanitizer: {sanitizer or 'none'}")
    found = builder.pool.map(builder.is_noticed, chosen)
    for mutant, noticed in zip(chosen, found, strict=True):
        sys.stdout.write(f"{'noticed ' if noticed else 'SURVIVED'}  {mutant.what}\n")
        sys.stdout.flush()
        if not noticed:
            survivors.append(f"{mutant.what} ({mutant.file}): {mutant.test} passes")
    return survivors


def main() -> int:
    """Runs all mutants of a suite, or those whose description has the words given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("suite", choices=["harp", "cuda"])
    parser.add_argument("--check", action="store_true", help="only check that the table fits")
    parser.add_argument("words", nargs="*", help="run only mutants whose description has these")
    arguments = parser.parse_args()
    suite, mutants = make_suite(arguments.suite), read_table(arguments.suite)
    for mutant in mutants:
        suite.mutated(mutant)
        for source in suite.sources(mutant.test):
            if not source.is_file():
                message = f"{mutant.what!r}: there is no test {mutant.test}"
                raise ValueError(message)
    if arguments.check:
        sys.stdout.write(f"{arguments.suite} mutants: {len(mutants)}, all fit\n")
        return 0
    chosen = [mutant for mutant in mutants if all(word in mutant.what for word in arguments.words)]
    folder = ROOT / "build" / f"{arguments.suite}-mutants"
    with ThreadPoolExecutor(int(os.environ.get("JOBS", "0")) or os.cpu_count()) as pool:
        survivors = try_mutants(Builder(suite, folder, pool), chosen)
    for survivor in survivors:
        sys.stderr.write(f"SURVIVED: {survivor}\n")
    sys.stdout.write(f"{arguments.suite} mutants: {len(chosen)}, {len(survivors)} survived\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
