"""Times training steps between two emulated hosts, as `Compression.auto` and by hand.

    python tools/auto_compression.py [--gigabits 0.2 1 5 25] [--parameters 8000000]

Four ranks form a grid of 2 x 2. Each host's link is emulated: a rank may send at half of its rate
(LIGHT_TCP_RATE). Ranks train a perceptron by SGD, in which the network counts, since it has a large
layer and small batches. For each link every way of compressing trains by itself, from the same
seed. Shown are the median of the last steps, and what `auto` has chosen. Replicas are compared in
every bit at the end of each training.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lightcc.torch as hvd
from lightcc._adapter import compression_tuner

RANKS = 4
GRID = {"LIGHT_2D_ALLREDUCE": "1", "LIGHT_INTRA_SIZE": "2"}
WAYS: dict[str, Any] = {
    "uncompressed": hvd.Compression.none,
    "int8": hvd.Compression.int8,
    "int4": hvd.Compression.int4,
    "top-k at 0.05": hvd.Compression.topk(0.05),
    "top-k at 0.01": hvd.Compression.topk(0.01),
    "auto": hvd.Compression.auto(warmup_steps=5),
}
#: What `auto` needs to have chosen: its warm-up, and five trials of seven steps.
CHOICE_STEPS = 5 + 5 * 7
INPUTS, OUTPUTS, BATCH = 500, 10, 16


def measure(way: str, parameters: int, steps: int) -> int:
    """What each rank does; the first one writes a line of JSON."""
    hvd.init()
    # What it has chosen is measured, not the way there.
    compression_tuner.DESCENT_STEPS, compression_tuner.TOPK_WARMUP_STEPS = 1, 0
    torch.set_num_threads(1)
    torch.manual_seed(0)
    width = parameters // (INPUTS + OUTPUTS)
    model = nn.Sequential(nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, OUTPUTS))
    inner = torch.optim.SGD(model.parameters(), lr=1e-3)
    optimizer: Any = hvd.DistributedOptimizer(
        inner, model.named_parameters(), compression=WAYS[way]
    )
    seconds = []
    torch.manual_seed(1 + hvd.rank())
    before = steps if way != "auto" else CHOICE_STEPS + steps
    for step in range(before + steps):
        x, y = torch.randn(BATCH, INPUTS), torch.randn(BATCH, OUTPUTS)
        hvd.barrier()
        begin = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        if step >= before:
            seconds.append(time.perf_counter() - begin)
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    agree = torch.equal(hvd.broadcast(mine, 0, name="weights"), mine)
    agree = bool(hvd.allreduce(torch.tensor(float(agree)), op=hvd.Min, name="agree"))
    if hvd.rank() == 0:
        chosen = "/".join(sorted(set(optimizer.compression_choices().values())))
        found = {"seconds": statistics.median(seconds), "chosen": chosen, "agree": agree}
        Path(os.environ["LIGHTCC_RESULT_FILE"]).write_text(json.dumps(found))
    hvd.shutdown()
    return 0


def train(way: str, gigabits: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns what the ranks of one training have found."""
    launcher = str(Path(sys.executable).with_name("lightccrun"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        environment = os.environ | GRID | {"LIGHTCC_RESULT_FILE": str(file)}
        environment["LIGHT_TCP_RATE"] = str(int(gigabits * 1e9 / 8 / 2))
        command = [launcher, "-np", str(RANKS), "--no-prefix", sys.executable, __file__]
        command += ["--train", way, "--parameters", str(arguments.parameters)]
        command += ["--steps", str(arguments.steps)]
        subprocess.run(command, env=environment, check=True)
        found: dict[str, Any] = json.loads(file.read_text())
        return found


def main() -> int:
    """Does what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--gigabits", type=float, nargs="+", default=[0.2, 1, 5, 25], help="a second, of a link"
    )
    parser.add_argument("--parameters", type=int, default=8_000_000)
    parser.add_argument("--steps", type=int, default=10, help="that are timed")
    parser.add_argument("--train", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train is not None:
        return measure(arguments.train, arguments.parameters, arguments.steps)
    by_hand = [way for way in WAYS if way != "auto"]
    heads = ["link", *(f"{way}, ms" for way in by_hand), "auto, ms", "it has chosen", "auto / best"]
    sys.stdout.write(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|\n")
    agree = True
    for gigabits in arguments.gigabits:
        found = {way: train(way, gigabits, arguments) for way in WAYS}
        agree = agree and all(one["agree"] for one in found.values())
        best = min(found[way]["seconds"] for way in by_hand)
        cells = [f"{1e3 * found[way]['seconds']:.0f}" for way in WAYS]
        cells += [found["auto"]["chosen"], f"{found['auto']['seconds'] / best:.2f}"]
        sys.stdout.write(f"| {gigabits:g} Gb/s | {' | '.join(cells)} |\n")
        sys.stdout.flush()
    sys.stdout.write("all replicas agree\n" if agree else "replicas DIFFER\n")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
