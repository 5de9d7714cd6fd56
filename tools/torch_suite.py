"""Runs torch's own tests of process groups, unmodified, on lightcc, and writes a page.

Usage: torch_suite.py TORCH [--ranks 2 3 4] [--only REGEX] [--keep FILE] --output PAGE

TORCH is a checkout of torch, or another folder that has its `test`; nothing of it is copied. Its
tests know gloo and NCCL by name, and skip what they do not know. So they run as for gloo, in
processes where gloo's name stands for lightcc (`gloo_alias`). What fails there runs once more on
gloo itself, which tells lightcc's failures from those of test and machine.

The program fails where a test fails on lightcc only, and `EXPLAINED` has no reason.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from suite_results import Result, Results, count_line, read_reports, skip_table, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

# By number of ranks; the others say themselves how many they start: 2 or 4.
BY_RANKS = ("test_distributed_spawn.py",)
FILES = (
    "test_backends.py",
    "test_c10d_common.py",
    "test_c10d_object_collectives.py",
    "test_collective_utils.py",
    "test_device_mesh.py",
    "algorithms/test_join.py",
    "optim/test_zero_redundancy_optimizer.py",
    "_composable/test_replicate.py",
    "checkpoint/test_file_system_checkpoint_cpu.py",
    "tensor/parallel/test_parallelize_api.py",
    "tensor/parallel/test_tp_examples.py",
    "tensor/parallel/test_tp_style.py",
    "_tensor/test_redistribute.py",
    "_tensor/test_dtensor.py",
    "_tensor/test_api.py",
    "_tensor/test_optimizers.py",
    "_tensor/test_matrix_ops.py",
    "_tensor/test_embedding_ops.py",
)
# Tests that ask for GPUs, for which the CPU stands (`cpu_for_gpus`).
OF_GPUS = tuple(
    f"_composable/fsdp/test_fully_shard_{name}.py"
    for name in (
        "autograd",
        "clip_grad_norm_",
        "comm",
        "extensions",
        "frozen",
        "mixed_precision",
        "state_dict",
        "training",
    )
)
PACKAGES = ("lightcc", "torch", "numpy", "pytest")
ALIAS = Path(__file__).parent / "gloo_alias"
TEST_TIME_LIMIT_S = 60  # torch's own, of a test that starts ranks.
FILE_TIME_LIMIT_S = 5000
# The last line of a traceback, also where pytest has quoted it.
ERROR = re.compile(r"^(?:E\s+)?(?:[\w.]+\.)?(\w*(?:Error|Exception)\b:.*)", re.MULTILINE)
ON_GLOO = "also on gloo: "
NAME = "it asks for the name gloo, and the group says lightcc"
OPTIONS = "it gives options of gloo's own, and lightcc has none"
MONITORED = (
    "`dist.monitored_barrier()` takes groups of gloo's name only; "
    "`lightcc.torch.distributed.monitored_barrier()` does the same"
)
# What fails on lightcc alone, and why, by test.
EXPLAINED = {
    "test_all_gather_extensions_train_parity": "it reduces a tensor that has no memory of its own",
    "test_manual_reshard_with_reshard_after_forward_false": (
        "it counts calls in torch's dispatcher, by which torch does not call lightcc's groups"
    ),
    "test_all_gather_result": OPTIONS,
    "test_broadcast_result": OPTIONS,
    "test_create_pg_cpu": NAME,
    "test_ddp_logging_data_cpu": NAME,
    "test_get_backend": NAME,
    "test_monitored_barrier_allreduce_hang": MONITORED,
    "test_monitored_barrier_allreduce_hang_wait_all_ranks": MONITORED,
    "test_monitored_barrier_failure_order": MONITORED,
    "test_monitored_barrier_gloo": MONITORED,
    "test_monitored_barrier_gloo_subgroup": MONITORED,
    "test_monitored_barrier_wait_all_ranks": MONITORED,
}


def reason_of(message: str) -> str:
    """Returns the error that a rank ended with, out of what torch writes about all ranks."""
    text = message.partition("To execute this test")[0]
    errors = [line for line in ERROR.findall(text) if "exited with error code" not in line]
    return errors[-1][:200] if errors else message.partition("\n")[0][:200]


def run_tests(
    sources: Path, tests: Sequence[str], ranks: int, *, on_lightcc: bool
) -> tuple[Results, dict[str, int]]:
    """Runs a file of `test/distributed`, or tests of it; returns results and groups made."""
    file = tests[0].partition("::")[0]
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "barrier").mkdir()
        (folder / "groups").mkdir()
        environment = os.environ | {
            "BACKEND": "gloo",
            "WORLD_SIZE": str(ranks),
            "TEMP_DIR": directory,
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(TEST_TIME_LIMIT_S),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ALIAS),
        }
        if on_lightcc:
            environment["LIGHTCC_FOR_GLOO"] = str(folder / "groups")
        report = folder / "report.xml"
        options = ["--noconftest", "-c", os.devnull, "--rootdir", ".", "-p", "forked_ranks"]
        options += ["-p", "cpu_for_gpus"] if file in OF_GPUS else []
        limit = ["--timeout", str(10 * TEST_TIME_LIMIT_S), f"--junit-xml={report}"]
        names = [f"distributed/{test}" for test in tests]
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *options, *limit, *names],
            cwd=sources / "test",
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=FILE_TIME_LIMIT_S,
            check=False,
        )
        groups = {path.name: path.stat().st_size for path in (folder / "groups").iterdir()}
        if not report.is_file():
            return {f"{file}::": Result("failed", "pytest wrote no report")}, groups
        return read_reports(file, [report], reason_of), groups


def run_file(sources: Path, file: str, ranks: int) -> tuple[Results, int]:
    """Runs a file on lightcc, and what failed on gloo; returns results and lightcc's groups."""
    results, groups = run_tests(sources, [file], ranks, on_lightcc=True)
    failed = [name for name, it in results.items() if it.status == "failed"]
    if failed:
        on_gloo, _ = run_tests(sources, failed, ranks, on_lightcc=False)
        for name in failed:
            there = on_gloo.get(name, Result("failed", "did not run"))
            if there.status == "failed":
                results[name] = Result("failed", ON_GLOO + there.reason)
    return results, groups.get("lightcc", 0)


def explained(name: str, result: Result) -> str:
    """Returns why a test failed or was skipped, if that is known; the error otherwise."""
    if result.reason.startswith(ON_GLOO):
        return result.reason
    return EXPLAINED.get(name.rpartition("::")[2], result.reason) or "no reason given"


def unexplained(results: Results) -> list[str]:
    """Returns the tests that fail on lightcc only, for a reason that nobody has written down."""
    return [
        name
        for name, it in results.items()
        if it.status == "failed"
        and not it.reason.startswith(ON_GLOO)
        and name.rpartition("::")[2] not in EXPLAINED
    ]


def revision(sources: Path) -> str:
    """Returns which torch the sources are."""
    return (sources / "version.txt").read_text(encoding="utf-8").strip()


def page(sources: Path, parts: dict[str, tuple[Results, int]], versions: dict[str, str]) -> str:
    """Returns docs/reference/torch-suite.md.

    Args:
        sources: The checkout of torch.
        parts: Results and lightcc's groups by "ranks file".
        versions: Of packages, by name.
    """
    every: Results = {
        f"{part}\n{name}": it
        for part, (results, _) in parts.items()
        for name, it in results.items()
    }
    lines = [
        "# torch's own tests of process groups",
        "",
        "Written by `make torch-suite TORCH_SRC=<checkout of torch>`; do not edit.",
        "",
        f"The files are those of torch {revision(sources)}, unmodified, on one machine: Python "
        f"{', '.join([platform.python_version(), *map(' '.join, versions.items())])}. "
        "`test_distributed_spawn.py` takes its tests from the installed torch.",
        "",
        "torch's tests know gloo and NCCL by name, and skip what they do not know. So they run as "
        "for gloo, in processes where lightcc makes the groups of gloo. The last column counts the "
        "groups that it made, on all ranks. What failed has run once more on gloo itself. Ranks "
        "are forked, and the machine has no GPU: tests of FSDP2 (`fully_shard`), which ask for "
        "some, run with the CPU in their place. `own`: a file says itself how many ranks it has.",
        "",
        "| ranks | file in `test/distributed` | passed | failed | skipped | groups of lightcc |",
        "|---|---|---|---|---|---|",
    ]
    for part, (results, groups) in parts.items():
        ranks, file = part.split(" ")
        lines.append(f"| {ranks} {count_line(f'`{file}`', results)} {groups} |")
    total = sum(groups for _, groups in parts.values())
    lines.append(f"| {count_line('all', every)} {total} |")
    lines += ["", "## What failed on lightcc, and not on gloo", "", *failures(every)]
    lines += ["", "## What failed on both", ""]
    lines += [
        "What torch has changed since the files' version fails on both, and so does what the CPU "
        "lacks of a GPU.",
        "",
    ]
    lines += failures_on_both(every)
    skipped = [it.reason for it in every.values() if it.status == "skipped"]
    lines += ["", "## What was skipped, and why", "", *skip_table(skipped)]
    return "".join(f"{wrapped(line)}\n" for line in lines)


def failures_on_both(every: Results) -> list[str]:
    """Returns a line for each file of which tests failed on gloo, too."""
    found: dict[str, list[str]] = {}
    for name, it in every.items():
        if it.status == "failed" and it.reason.startswith(ON_GLOO):
            part, _, test = name.partition("\n")
            found.setdefault(part.split(" ")[1], []).append(f"`{test.rpartition('::')[2] or test}`")
    return [f"- `{file}`: {', '.join(dict.fromkeys(tests))}" for file, tests in found.items()] or [
        "Nothing."
    ]


def failures(every: Results) -> list[str]:
    """Returns a line for each test that failed on lightcc alone."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for name, it in every.items():
        if it.status == "failed" and not it.reason.startswith(ON_GLOO):
            part, _, test = name.partition("\n")
            ranks, file = part.split(" ")
            reason = explained(test, it)
            found.setdefault((file, test.rpartition("::")[2] or test, reason), []).append(ranks)
    return [
        f"- `{file}`, ranks {', '.join(dict.fromkeys(ranks))}: `{test}`: {reason}"
        for (file, test, reason), ranks in found.items()
    ] or ["Nothing."]


def run_parts(arguments: argparse.Namespace) -> dict[str, tuple[Results, int]]:
    """Runs what was asked for; a part that `--keep` has is not run again."""
    todo = [(str(ranks), ranks, file) for file in BY_RANKS for ranks in arguments.ranks]
    todo += [("own", 4, file) for file in (*FILES, *OF_GPUS)]
    kept: dict[str, tuple[dict[str, dict[str, str]], int]] = {}
    if arguments.keep is not None and arguments.keep.is_file():
        kept = json.loads(arguments.keep.read_text(encoding="utf-8"))
    parts: dict[str, tuple[Results, int]] = {}
    for title, ranks, file in todo:
        part = f"{title} {file}"
        if not re.search(arguments.only, part):
            continue
        if part not in kept:
            results, groups = run_file(arguments.sources, file, ranks)
            kept[part] = ({name: asdict(it) for name, it in results.items()}, groups)
            if arguments.keep is not None:
                arguments.keep.write_text(json.dumps(kept, indent=1), encoding="utf-8")
        results = {name: Result(**it) for name, it in kept[part][0].items()}
        parts[part] = (results, kept[part][1])
    return parts


def main() -> int:
    """Runs all; returns 1 when a test fails on lightcc only, without a reason."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sources", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--only", default="", metavar="REGEX", help="of 'RANKS FILE'")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    parts = run_parts(arguments)
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    text = page(arguments.sources, parts, versions)
    arguments.output.write_text(text, encoding="utf-8")
    bad = [
        f"{part}: {name}" for part, (results, _) in parts.items() for name in unexplained(results)
    ]
    sys.stdout.writelines(f"failed on lightcc only: {line}\n" for line in bad)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
