"""Assembles the committed PTX with the assemblers of CUDA 12 and 13, for each GPU architecture.

Usage: check_ptx.py ENVIRONMENT    (a virtual environment with tools/requirements-cuda.txt)

Every kernel must assemble everywhere, spill nothing, use no stack, stay within its budget of
registers, and never empty the L1 cache, as fences and acquiring loads do. Exits 1 and names each
kernel, architecture and assembler that breaks a rule.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tracked_files import ROOT

PTX = ROOT / "csrc" / "lightcc_cuda" / "ptx"
# Assembler, below site-packages, and architectures: of each chip of a data centre or a desktop.
# CUDA 13 has no sm_70; what it shares with CUDA 12 is assembled by both at the two ends.
ASSEMBLERS = {
    "nvidia/cuda_nvcc/bin/ptxas": (70, 75, 80, 86, 89, 90, 100, 120),
    "nvidia/cu13/bin/ptxas": (75, 88, 90, 103, 110, 121),
}
DISASSEMBLER = "nvidia/cu13/bin/nvdisasm"
OLDEST_DISASSEMBLED = 75
# Registers of a thread, by the beginning of a kernel's name; the first that fits counts.
BUDGETS = {
    "lightcc_copy_": 40,
    "lightcc_merge": 48,
    "lightcc_topk_begin": 24,
    "lightcc_topk_count_": 72,
    "lightcc_topk_descend": 24,
    "lightcc_topk_encode": 40,
    "lightcc_topk_finish": 40,
    "lightcc_topk_judge": 40,
    "lightcc_topk_measure": 64,
    "lightcc_topk_pack": 56,
    "lightcc_topk_sample": 56,
    "lightcc_topk_select_": 88,
}
ENTRY = re.compile(r"Compiling entry function '(\w+)'")
MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")


@dataclass
class Use:
    """What one kernel takes on one architecture."""

    kernel: str
    registers: int = 0
    stack: int = 0
    spilled: int = 0


def read_uses(output: str) -> list[Use]:
    """Reads what `ptxas -v` prints."""
    uses: list[Use] = []
    for line in output.splitlines():
        if found := ENTRY.search(line):
            uses.append(Use(found[1]))
        elif (found := MEMORY.search(line)) and uses:
            uses[-1].stack = int(found[1])
            uses[-1].spilled = int(found[2]) + int(found[3])
        elif (found := REGISTERS.search(line)) and uses:
            uses[-1].registers = int(found[1])
    return uses


def problem_of(use: Use) -> str | None:
    """Returns which rule a kernel breaks, or None."""
    budget = next((most for name, most in BUDGETS.items() if use.kernel.startswith(name)), None)
    if budget is None:
        return "has no budget of registers"
    if use.stack or use.spilled:
        return f"has {use.stack} bytes of stack and spills {use.spilled}"
    if not 0 < use.registers <= budget:
        return f"takes {use.registers} registers, of {budget}"
    return None


def emptying_kernels(disassembler: Path, code: str) -> list[str]:
    """Returns the kernels of machine code that empty the L1 cache."""
    command = [str(disassembler), "-c", code]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    kernels = listing.split(".section\t.text.")[1:]
    return [kernel.partition(",")[0] for kernel in kernels if "CCTL.IVALL" in kernel]


def assemble(packages: Path, ptxas: str, architecture: int, text: Path) -> tuple[int, list[str]]:
    """Returns how many kernels of a file were assembled, and what is wrong with them."""
    where = f"{text.name}, sm_{architecture}, {Path(ptxas).parent.parent.name}"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as code:
        command = [str(packages / ptxas), "-v", f"-arch=sm_{architecture}", str(text)]
        done = subprocess.run(
            [*command, "-o", code.name], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            return 0, [f"{where}: {done.stderr.strip()}"]
        uses = read_uses(done.stderr)
        problems = [f"{where}: {use.kernel} {why}" for use in uses if (why := problem_of(use))]
        if architecture >= OLDEST_DISASSEMBLED:
            emptying = emptying_kernels(packages / DISASSEMBLER, code.name)
            problems += [f"{where}: {kernel} empties the L1 cache" for kernel in emptying]
    entries = text.read_text(encoding="ascii").count(".visible .entry ")
    if len(uses) != entries:
        problems.append(f"{where}: {len(uses)} kernels were assembled, of {entries}")
    return len(uses), problems


def main() -> int:
    """Checks every file of PTX."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("environment", type=Path)
    packages = next(parser.parse_args().environment.glob("lib/python*/site-packages"))
    texts = sorted(PTX.glob("*.ptx"))
    jobs = [
        (packages, name, architecture, text)
        for name, architectures in ASSEMBLERS.items()
        for architecture in architectures
        for text in texts
    ]
    with ThreadPoolExecutor(int(os.environ.get("JOBS", "0")) or os.cpu_count()) as pool:
        results = list(pool.map(lambda job: assemble(*job), jobs))
    problems = [problem for _, found in results for problem in found]
    sys.stdout.write("".join(f"{problem}\n" for problem in problems))
    kernels = sum(count for count, _ in results)
    pairs = sum(map(len, ASSEMBLERS.values()))
    sys.stdout.write(
        f"PTX: {kernels} kernels assembled, for {pairs} pairs of assembler and architecture, "
        f"{len(problems) or 'no'} findings\n"
    )
    return 1 if problems or not texts else 0


if __name__ == "__main__":
    sys.exit(main())
