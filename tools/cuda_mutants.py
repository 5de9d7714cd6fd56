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
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Mutant:
    """One broken place: `old` becomes `new` in `file`, and the tests of `filter` fail."""

    what: str
    file: str
    old: str
    new: str
    filter: str
    sanitizer: str = ""


SELECT = "CudaTopk.tensors*:CudaTopk.exactly*"
MUTANTS = [
    Mutant(
        "a vector is read past a tensor's end",
        "bucket.cu",
        "const u64 chunks = count / kChunk;",
        "const u64 chunks = (count + kChunk - 1) / kChunk;",
        "CudaBucket.copies*",
        "address",
    ),
    Mutant(
        "alignment is not looked at",
        "bucket.cu",
        "Target::kBytes)) {",
        "1)) {",
        "CudaBucket.copies*",
        "undefined",
    ),
    Mutant(
        "the last elements of a run stay behind",
        "bucket.cu",
        "done = chunks * kChunk;",
        "done = chunks * kChunk + 1;",
        "CudaBucket.copies*",
    ),
    Mutant(
        "a tile ends where its tensor does",
        "bucket.cu",
        "at < end; ++row",
        "at < end; at = end",
        "CudaBucket.copies*",
    ),
    Mutant(
        "elements are counted in 32 bits",
        "bucket.cu",
        "u64 begin = u64{block_index()}",
        "u64 begin = u32{block_index()} * u32{kBucketTile} + 0 * u64{block_index()}",
        "CudaBucket.elements*",
    ),
    Mutant(
        "a factor of one is applied",
        "bucket.cu",
        "factor != 1.0 ?",
        "factor != 2.0 ?",
        "CudaBucket.factors*",
    ),
    Mutant(
        "unpacking packs",
        "bucket.cu",
        "const u8* from = a.unpacks != 0",
        "const u8* from = a.unpacks != 1",
        "CudaBucket.copies*",
    ),
    Mutant(
        "a NaN loses to a number",
        "reduce.cu",
        "return a != a || a < b ? a : b;",
        "return a < b ? a : b;",
        "CudaReduce.every*",
    ),
    Mutant(
        "sources are summed backwards",
        "reduce.cu",
        "prepare<N>(k, element, next);",
        "prepare<N>(a.num_sources - k, element, next);",
        "CudaReduce.every*",
    ),
    Mutant(
        "a partial result is scaled again",
        "reduce.cu",
        "(a.prescaled >> source & 1U) != 0",
        "true",
        "CudaReduce.every*",
    ),
    Mutant(
        "an absent source is read",
        "reduce.cu",
        "if (source == nullptr) {",
        "if (false) {",
        "CudaReduce.every*",
    ),
    Mutant(
        "integers do not saturate",
        "elements.hpp",
        "return Limits::kMax;",
        "return T{0};",
        "CudaBucket.factors*",
    ),
    Mutant(
        "an infinity is a number",
        "finite.cu",
        "found |= (load_any<Bits>(a.data + i * sizeof(Bits)) & exponent) == exponent;",
        "found |= (load_any<Bits>(a.data + i * sizeof(Bits)) & exponent) > exponent;",
        "CudaFinite.*",
    ),
    Mutant(
        "one lane's finding is lost",
        "finite.cu",
        "vote(found) != 0 && thread_index() % kWarpLanes == 0",
        "vote(found) != 0 && found && thread_index() % kWarpLanes == 0",
        "CudaFinite.*",
    ),
    Mutant(
        "no barrier after a tile was drawn",
        "topk_select.cu",
        "drawn[0] = atomic_add(a.tile_counters + a.round, 1);\n  }\n  sync_block();",
        "drawn[0] = atomic_add(a.tile_counters + a.round, 1);\n  }",
        SELECT,
        "thread",
    ),
    Mutant(
        "no barrier before the warps' counts are read",
        "topk_select.cu",
        "ties_of_warp};\n  }\n  sync_block();",
        "ties_of_warp};\n  }",
        SELECT,
        "thread",
    ),
    Mutant(
        "no barrier before earlier tiles' counts are read",
        "topk_select.cu",
        "  sync_block();\n  before.above += of_earlier",
        "  before.above += of_earlier",
        SELECT,
        "thread",
    ),
    Mutant(
        "a block waits for a block that may not run",
        "topk_select.cu",
        "drawn[0] = atomic_add(a.tile_counters + a.round, 1);",
        "drawn[0] = block_index();",
        SELECT,
    ),
    Mutant(
        "lanes are counted from the wrong side",
        "topk_select.cu",
        "here.above += count_bits(all & ~of_ties & lower_lanes);",
        "here.above += count_bits(all & ~of_ties & ~lower_lanes);",
        SELECT,
    ),
    Mutant(
        "ties are taken from the wrong side",
        "topk_select.cu",
        "here.ties += count_bits(of_ties & lower_lanes);",
        "here.ties += count_bits(of_ties & ~lower_lanes);",
        SELECT,
    ),
    Mutant(
        "a tie too many",
        "topk_select.cu",
        "here.ties < max_ties;",
        "here.ties <= max_ties;",
        SELECT,
    ),
    Mutant(
        "what finds no room is lost",
        "topk_select.cu",
        "next_residual[element] = acc;\n      if",
        "if",
        "CudaTopk.exactly*",
    ),
    Mutant(
        "the look-back stops one tile early",
        "topk_select.cu",
        "1U << lane <= bit;",
        "1U << lane < bit;",
        SELECT,
    ),
    Mutant(
        "what rounding takes away is lost",
        "topk_select.cu",
        "next_residual[element] = acc - Element::decode(wire);",
        "",
        "CudaTopk.tensors*",
    ),
    Mutant(
        "velocity stays where an element is sent",
        "topk_select.cu",
        "u = Lane{0};\n",
        "\n",
        "CudaTopk.momentum*",
    ),
    Mutant(
        "the forecast is never doubted",
        "topk_threshold.cu",
        "  if (held) {",
        "  if (held || true) {",
        "CudaTopk.values*",
    ),
    Mutant(
        "the sample is always the same",
        "topk_threshold.cu",
        "progress.step % stride",
        "0 * stride",
        "CudaTopk.long*",
    ),
    Mutant(
        "a bin's own elements count as above it",
        "topk_threshold.cu",
        "progress.wanted = wanted - found.above;",
        "progress.wanted = wanted - found.above - found.here;",
        "CudaTopk.exactly*",
    ),
    Mutant(
        "no barrier before bins are added up",
        "topk_threshold.cu",
        "const {\n    sync_block();",
        "const {",
        "CudaTopk.tensors*",
        "thread",
    ),
    Mutant(
        "a step that is not finite counts",
        "topk_threshold.cu",
        "progress.non_finite != 0 || a.is_void[0] != 0) {",
        "a.is_void[0] != 0) {",
        "CudaTopk.a_step*",
    ),
    Mutant(
        "another rank's void step counts",
        "topk_threshold.cu",
        " || a.is_void[0] != 0) {",
        ") {",
        "CudaTopk.a_step*",
    ),
    Mutant(
        "the scale is one too small",
        "topk_encode.cu",
        "KeyOf<Lane>::kBias - 14;",
        "KeyOf<Lane>::kBias - 15;",
        "CudaTopk.float16*",
    ),
    Mutant(
        "no barrier in the search for the largest",
        "topk_encode.cu",
        "    sync_block();\n    if (thread_index() < half)",
        "    if (thread_index() < half)",
        "CudaTopk.float16*",
        "thread",
    ),
    Mutant(
        "every step measures the same runs",
        "topk_measure.cu",
        "progress.step * kScatter % stride",
        "kScatter % stride",
        "CudaTopk.tensors*",
    ),
    Mutant(
        "no barrier before measures are added up",
        "topk_measure.cu",
        "  sync_block();\n  if (own != 0)",
        "  if (own != 0)",
        "CudaTopk.tensors*",
        "thread",
    ),
    Mutant(
        "a part is taken for another tensor's",
        "topk_threshold.cu",
        "for (u64 at = ((block_index() - t.first_part) * kTopkThreads",
        "for (u64 at = (u64{block_index()} * kTopkThreads",
        "CudaTopk.tensors*",
    ),
    Mutant(
        "lists begin where they end",
        "topk_pack.cu",
        "a.packed + lengths[0] * kTopkPackAlignment",
        "a.packed + lengths[0] * (kTopkPackAlignment - 2)",
        "CudaTopk.tensors*",
    ),
    Mutant(
        "a list's own length counts as before it",
        "topk_pack.cu",
        "thread_index() < row ?",
        "thread_index() <= row ?",
        "CudaTopk.tensors*",
        "address",
    ),
    Mutant(
        "no barrier before lengths are added up",
        "topk_pack.cu",
        "    sync_block();\n    if (thread_index() < half)",
        "    if (thread_index() < half)",
        "CudaTopk.tensors*",
        "thread",
    ),
    Mutant(
        "a report is another tensor's",
        "topk_pack.cu",
        "(a.reports + row)",
        "(a.reports + (row ^ 1) % a.count)",
        "CudaTopk.tensors*",
    ),
    Mutant(
        "a tile is taken for another sum's",
        "merge.cu",
        "const u64 start = (block_index() - t.first) * kMergeTile;",
        "const u64 start = u64{block_index()} * kMergeTile + 0 * t.first;",
        "CudaMerge.sums_of_one*",
        "address",
    ),
    Mutant(
        "a list is another sum's",
        "merge.cu",
        "const MergeList* const lists = a.lists + t.first_list;",
        "const MergeList* const lists = a.lists;",
        "CudaMerge.sums_of_one*",
        "address",
    ),
    Mutant(
        "a sum that is not finite makes others so",
        "merge.cu",
        "atomic_or(t.flags, 1);",
        "atomic_or(a.tensors[0].flags, 1);",
        "CudaMerge.sums_of_one*",
    ),
    Mutant(
        "no barrier between two lists",
        "merge.cu",
        "ranges[i]);\n    sync_block();",
        "ranges[i]);",
        "CudaMerge.sums*",
        "thread",
    ),
    Mutant(
        "a first value is added to what was there",
        "merge.cu",
        "has_sum ? sums[at] + x : x",
        "sums[at] + x",
        "CudaMerge.sums*",
    ),
    Mutant(
        "a damaged list's offsets are believed",
        "merge.cu",
        "offset < first_offset || offset - first_offset >= kMergeTile",
        "false",
        "CudaMerge.damaged*",
        "address",
    ),
    Mutant(
        "a damaged list's counts are believed",
        "merge.cu",
        "min_of<u64>(list.counts[block], t.capacity - begin)",
        "u64{list.counts[block]}",
        "CudaMerge.damaged*",
        "address",
    ),
    Mutant(
        "the phase is forgotten",
        "merge.cu",
        "const u64 element = start + i - t.phase;",
        "const u64 element = (start + i - t.phase) ^ (t.phase != 0);",
        "CudaMerge.lists*",
    ),
]


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
