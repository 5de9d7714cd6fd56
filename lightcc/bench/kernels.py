"""`python -m lightcc.bench kernels`: what lightcc's kernels reach on one GPU.

Not yet run on hardware. Times are the GPU's own, between two events with many launches between
them, which are all queued before the first one begins. Results are compared with the CPU's, byte by
byte. Every figure has its ceiling in the same run: a copy of as many elements (`kernel_report`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from lightcc._binding import _core
from lightcc.bench import kernel_report, report
from lightcc.bench.arguments import positive
from lightcc.bench.cases import SizeError, parse_sizes, size_text
from lightcc.bench.facts import machine_facts
from lightcc.bench.models import gradients

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightcc.bench.kernel_report import Row

_MODEL = "resnet50"
_MAX_ELEMENTS = (1 << 31) - 1
_MAX_LAUNCHES = 32
_ABOUT = """\
# loading and jobs by the host's clock, all else by the GPU's; float32, top-k to 1%, 8 lists merged
# select pass: 12 bytes an element; step: the pass, and what must be launched around it
"""


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m lightcc.bench kernels",
        description="Measures lightcc's kernels on one GPU, beside copies of the same size.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--device", type=_device, default=0, metavar="N", help="which GPU, from 0 (0)")
    add("--sizes", default="1M,16M,64M", metavar="A,B", help="elements (1M,16M,64M)")
    add("--rounds", type=positive, default=5, metavar="N", help="figures of each (5)")
    add("--launches", type=_launches, default=20, metavar="N", help="in one figure (20)")
    add("--json", type=Path, metavar="FILE", help="also write JSON lines")
    return parser


def _device(text: str) -> int:
    if not text.isdecimal():
        msg = f"'{text}' is not the number of a GPU, from 0"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _launches(text: str) -> int:
    value = positive(text)
    if value > _MAX_LAUNCHES:
        msg = f"'{text}' is more than {_MAX_LAUNCHES}, which a driver's queue has room for"
        raise argparse.ArgumentTypeError(msg)
    return value


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns 1 if a result was wrong or something could not be measured."""
    parser = make_parser()
    args = parser.parse_args(argv)
    try:
        args.sizes = parse_sizes(args.sizes)
    except SizeError as error:
        parser.error(f"--sizes: {error}")
    if max(args.sizes) > _MAX_ELEMENTS:
        parser.error(f"--sizes: {size_text(max(args.sizes))} is more than {_MAX_ELEMENTS} elements")
    with contextlib.ExitStack() as stack:
        # Before the driver is initialised.
        stack.enter_context(empty_compile_cache())
        try:
            found = _core.find_gpus()
        except NotImplementedError as error:
            _say(str(error))
            return 1
        if args.device >= len(found["gpus"]):
            parser.error(f"--device {args.device}: the GPUs here are 0 to {len(found['gpus']) - 1}")
        gpu = found["gpus"][args.device]
        if gpu["objection"]:
            _say(f"GPU {args.device} ({gpu['name']}) is of no use: {gpu['objection']}")
            return 1
        file = report.open_json(args.json, stack)
        rows = Run(args, gpu["name"], found["driver_version"], file).measure()
    failed = any(row.errors or row.median_us is None for row in rows)
    return 1 if failed else 0


@contextlib.contextmanager
def empty_compile_cache() -> Iterator[None]:
    """Has the driver of this process compile kernels at first, whatever it compiled before."""
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("CUDA_CACHE_PATH")
        os.environ["CUDA_CACHE_PATH"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["CUDA_CACHE_PATH"]
            else:
                os.environ["CUDA_CACHE_PATH"] = before


class Run:
    """All measurements, one after another; prints each row when it is there."""

    def __init__(
        self, args: argparse.Namespace, gpu: str, driver_version: int, file: IO[str] | None
    ) -> None:
        """Measures on the GPU `args.device`, whose name is `gpu`; `file` gets JSON lines."""
        self._args = args
        self._gpu = gpu
        self._driver_version = driver_version
        self._file = file
        self._rows: list[Row] = []

    def measure(self) -> list[Row]:
        """Returns all rows."""
        driver = self._driver_version
        facts = machine_facts() | {"gpu": self._gpu, "driver_version": driver}
        if self._file is not None:
            report.write_json(self._file, "machine", facts)
        out = sys.stdout
        out.write(f"# {facts['cpu']}, {facts['cores_allowed']} cores, Linux {facts['kernel']}\n")
        version = f"{driver // 1000}.{driver % 1000 // 10}"
        out.write(f"# GPU {self._args.device}: {self._gpu}, driver for CUDA {version}\n")
        out.write(_ABOUT + kernel_report.table_header() + "\n")
        for what in ("loading", "launches", "launcher"):
            self._measure("", what, [], None)
        for size in self._args.sizes:
            self._measure_size(size)
        self._measure_model()
        out.write(kernel_report.summary(self._rows))
        return self._rows

    def _measure_size(self, size: int) -> None:
        text = size_text(size)
        ceiling = self._measure_copies(text, size)
        self._measure(text, "topk", [size], ceiling)
        self._measure(text, "merge", [size], ceiling)

    def _measure_model(self) -> None:
        counts = gradients(_MODEL)
        ceiling = self._measure_copies(_MODEL, sum(counts))
        self._measure(_MODEL, "buckets", counts, ceiling)

    def _measure_copies(self, text: str, elements: int) -> float | None:
        """Returns the ceiling of a size, or nothing where there is none."""
        measured = self._ask(text, "copies", [elements])
        ceiling = kernel_report.ceiling_of(measured) if measured else None
        for one in measured:
            self._add(kernel_report.make_row(text, one, ceiling))
        return ceiling

    def _measure(self, text: str, what: str, sizes: list[int], ceiling: float | None) -> None:
        for measured in self._ask(text, what, sizes):
            self._add(kernel_report.make_row(text, measured, ceiling))

    def _ask(self, text: str, what: str, sizes: list[int]) -> list[dict[str, Any]]:
        """Returns what was measured; adds a row that says why where that is nothing."""
        args = self._args
        try:
            return _core.measure_gpu(args.device, what, sizes, args.rounds, args.launches)
        except (RuntimeError, MemoryError) as error:
            why = str(error) or "there is no memory"
            self._add(kernel_report.failed_row(text, what, f"not measured: {why}"))
            return []

    def _add(self, row: Row) -> None:
        self._rows.append(row)
        sys.stdout.write(kernel_report.table_line(row) + "\n")
        sys.stdout.flush()
        if self._file is not None:
            report.write_json(self._file, "result", asdict(row))


def _say(text: str) -> None:
    sys.stderr.write(f"lightcc.bench: kernels: {text}\n")
