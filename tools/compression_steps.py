"""Times the gradients of a model between two emulated hosts, for each way of compressing them.

    python tools/compression_steps.py [--model resnet50] [--gigabits 1]

Four ranks form a grid of 2 x 2. Each host's link is emulated: a rank may send at half of its rate
(LIGHT_TCP_RATE). In a round each way takes its turn, with all gradients submitted at once and then
awaited. Results are checked against the dense ones. Shown are medians, and the bytes that a rank
sends in a step.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import lightcc as hvd
from lightcc import _world
from lightcc.bench.models import gradients

RANKS = 4
GRID = {"LIGHT_2D_ALLREDUCE": "1", "LIGHT_INTRA_SIZE": "2"}
WAYS: dict[str, Any] = {
    "dense": hvd.Compression.none,
    "fp16": hvd.Compression.fp16,
    "int8": hvd.Compression.int8(),
    "fp8": hvd.Compression.fp8(),
    "int4": hvd.Compression.int4(),
    "1-bit": hvd.Compression.onebit(),
    "top-k, 1%": hvd.Compression.topk(0.01),
}
#: The most by which a result may differ from the dense one, as a share of its largest element. What
#: 1-bit and top-k keep back is missing, so their results are not compared.
BOUNDS = {"dense": 0.0, "fp16": 2e-3, "int8": 0.05, "fp8": 0.2, "int4": 0.5}


def step(way: str, tensors: list[np.ndarray]) -> list[np.ndarray]:
    """Returns the averages of all tensors."""
    compressor = WAYS[way]
    names = [f"{way}.{i}" for i in range(len(tensors))]
    sent, contexts = zip(*[compressor.compress(tensor) for tensor in tensors], strict=True)
    handle = _world.current().allreduce_each(
        [np.array(x) for x in sent] if sent[0] is tensors[0] else list(sent),
        names,
        hvd.Average,
        1.0,
        1.0,
        0,
        compression=compressor.spec() if hasattr(compressor, "spec") else None,
    )
    results = hvd.synchronize(handle)
    return [compressor.decompress(x, c) for x, c in zip(results, contexts, strict=True)]


def differs(way: str, results: list[np.ndarray], dense: list[np.ndarray]) -> bool:
    """Whether results are further from the dense ones than the way may be."""
    if way not in BOUNDS:
        return not all(np.isfinite(result).all() for result in results)
    return any(
        np.abs(result - expected).max() > BOUNDS[way] * np.abs(expected).max()
        for result, expected in zip(results, dense, strict=True)
    )


def measure(arguments: argparse.Namespace) -> int:
    """What each rank does."""
    hvd.init()
    random = np.random.default_rng(hvd.rank())
    counts = [int(count) for count in gradients(arguments.model)]
    tensors = [random.standard_normal(count, np.float32) for count in counts]
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    sent: dict[str, int] = {}
    wrong = []
    dense = step("dense", tensors)
    for round_number in range(arguments.rounds + 1):
        for way in WAYS:
            hvd.barrier()
            before = hvd.stats()["network_bytes_sent"]
            begin = time.perf_counter()
            results = step(way, tensors)
            hvd.barrier()
            if round_number > 0:  # The first one makes connections and residuals.
                seconds[way].append(time.perf_counter() - begin)
                sent[way] = hvd.stats()["network_bytes_sent"] - before
            if round_number == 0 and differs(way, results, dense):
                wrong.append(way)
    if hvd.rank() == 0:
        base = statistics.median(seconds["dense"])
        lines = ["| way | median step | least | sent by a rank | dense / it |", "|---" * 5 + "|"]
        for way, times in seconds.items():
            median = statistics.median(times)
            lines.append(
                f"| {way} | {median * 1e3:.0f} ms | {min(times) * 1e3:.0f} ms |"
                f" {sent[way] / 1e6:.2f} MB | {base / median:.2f} |"
            )
        lines.append(f"wrong: {', '.join(wrong)}" if wrong else "all results are right")
        sys.stdout.write("\n".join(lines) + "\n")
    hvd.shutdown()
    return 1 if wrong else 0


def main() -> int:
    """Does what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="resnet50", help="as of python -m lightcc.bench")
    parser.add_argument("--gigabits", type=float, default=1.0, help="a second, of a host's link")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    if "LIGHT_RANK" in os.environ:
        return measure(arguments)
    launcher = str(Path(sys.executable).with_name("lightccrun"))
    rate = str(int(arguments.gigabits * 1e9 / 8 / 2))
    command = [launcher, "-np", str(RANKS), "--no-prefix", sys.executable, *sys.argv]
    environment = {**os.environ, **GRID, "LIGHT_TCP_RATE": rate}
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
