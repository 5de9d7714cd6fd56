"""Measures lightcc's kernels on one GPU, beside copies of as many elements in the same run.

    python measure/kernels.py --device 0

Times are the GPU's own, between two events with many launches between them, which are all queued
before the first one begins. Loading and the launcher's jobs are by the host's clock. Results are
compared with the CPU's, byte by byte. `of copy` is a bandwidth over that of the faster copy, by
lightcc's kernel or by the driver. It has not yet run on hardware.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from lightcc import _core
from lightcc._figures import duration
from lightcc.bench.arguments import positive
from lightcc.bench.cases import parse_sizes, size_text
from lightcc.bench.models import gradients

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MODEL = "resnet50"


def plan(sizes: list[int]) -> Iterator[tuple[str, str, list[int]]]:
    """Yields what is measured: its size as text, its name for `_core.measure_gpu()`, elements."""
    for what in ("loading", "launches", "launcher"):
        yield "-", what, []
    for size in sizes:
        for what in ("copies", "topk", "merge"):
            yield size_text(size), what, [size]
    yield _MODEL, "copies", [sum(gradients(_MODEL))]
    yield _MODEL, "buckets", gradients(_MODEL)


def line(size: str, row: dict[str, Any], copied: float) -> str:
    """Returns a row of the table; `copied`: bytes per second of the faster copy of the size."""
    median = statistics.median(row["seconds"])
    times = f"{duration(median):>8} {duration(min(row['seconds'])):>8}"
    rate = row["bytes"] / median
    rates = f"{rate / 1e9:7.4g} {rate / copied:7.0%}" if row["bytes"] else f"{'-':>7} {'-':>7}"
    notes = "  stays in the cache" if row["fits_cache"] else ""
    notes += "  the host was too slow" if row["has_gaps"] else ""
    return f"{size:>9}  {row['name']:<18} {times} {rates} {row['errors']:>6}{notes}\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns 1 if a result was wrong or something could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--device", type=int, default=0, metavar="N", help="which GPU, from 0 (0)")
    add("--sizes", type=parse_sizes, default="1M,16M,64M", metavar="A,B", help="elements")
    add("--rounds", type=positive, default=5, metavar="N", help="figures of each (5)")
    add("--launches", type=positive, default=20, metavar="N", help="in one figure, to 32 (20)")
    args = parser.parse_args(argv)
    out, failed, copied = sys.stdout, False, 1.0
    out.write(f"#{'size':>8}  {'measurement':<18} {'median':>8} {'min':>8}")
    out.write(f" {'GB/s':>7} {'of copy':>7} {'errors':>6}\n")
    with tempfile.TemporaryDirectory() as folder:
        # So the driver compiles the kernels at first, whatever it compiled before.
        os.environ["CUDA_CACHE_PATH"] = folder
        for size, what, counts in plan(args.sizes):
            try:
                rows = _core.measure_gpu(args.device, what, counts, args.rounds, args.launches)
            except (RuntimeError, MemoryError, ValueError) as error:
                out.write(f"{size:>9}  {what:<18} not measured: {error}\n")
                failed = True
                continue
            if what == "copies":
                copied = max(row["bytes"] / statistics.median(row["seconds"]) for row in rows)
            out.writelines(line(size, row, copied) for row in rows)
            out.flush()
            failed = failed or any(row["errors"] for row in rows)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
