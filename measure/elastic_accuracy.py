"""Trains in a job that loses and gets ranks, beside one to which nothing happens.

Usage: elastic_accuracy.py [--seeds 3] [--steps 3000]

Two hosts of two ranks (`lightcc-worker`) train the perceptron of measure/convergence.py on
Fashion-MNIST, dense, with int4 and with top-k, and roll forward. A rank is killed after a quarter
of the steps, and a host with its agent after a half; another host joins at once. Prints the
accuracy at the end, and the steps with fewer than four ranks. A step draws the same images in both
jobs.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lightcc.torch as hvd
from convergence_report import difference
from convergence_tasks import fashion
from elastic import PATIENCE_S, Job, Lightcc, children, rank_of
from ranks import print_head, print_row

VARIANTS: dict[str, Any] = {
    "dense": hvd.Compression.none,
    "int4": hvd.Compression.int4,
    "top-k at 1%": hvd.Compression.topk(0.01, momentum_correction=True),
}
PAUSE_S = 0.01  # Each step takes this, so that new ranks come while there are steps left.


# -- Ranks ----------------------------------------------------------------------------------------


def train(folder: Path, variant: str, seed: int, steps: int) -> None:
    """What each rank does."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    task = fashion()
    model = task.make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=task.learning_rate, momentum=0.9)
    hvd.init()
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), VARIANTS[variant])
    state = hvd.elastic.TorchState(model, optimizer, step=0)

    @hvd.elastic.run(recovery="forward")
    def go_on(state: hvd.elastic.TorchState) -> None:
        while state.step < steps:
            for group in optimizer.param_groups:
                group["lr"] = task.learning_rate * (1.0 - state.step / steps)
            draw = torch.Generator().manual_seed(steps * seed + state.step)
            batch = torch.randint(len(task.train[1]), (task.batch,), generator=draw)
            mine = batch[hvd.rank() :: hvd.size()]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(task.train[0][mine]), task.train[1][mine]).backward()
            optimizer.step()
            state.step += 1
            if hvd.rank() == 0:
                with (folder / "steps").open("a") as notes:
                    notes.write(f"{hvd.size()}\n")
            time.sleep(PAUSE_S)
            state.commit()

    go_on(state)
    with torch.no_grad():
        right = task.measure(model(task.test[0]), task.test[1]).item()
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    result = {"accuracy": right / len(task.test[1]), "digest": hashlib.sha256(weights).hexdigest()}
    path = folder / f"new.{os.getpid()}"
    path.write_text(json.dumps(result))
    path.rename(folder / f"result.{os.getpid()}")


# -- Jobs -----------------------------------------------------------------------------------------


class Training(Lightcc):
    """A job whose ranks call `train()`."""

    def __init__(self, job: Job, *arguments: str) -> None:
        """Takes what ranks are to do."""
        super().__init__(job)
        self._command = [sys.executable, __file__, "--train", str(job.folder), *arguments]

    def join(self, name: str, slots: int) -> None:
        """Has a host join, which is one to its ranks as well."""
        self._job.settings["LIGHT_HOST_ID"] = name
        super().join(name, slots)


def sizes(job: Job) -> list[int]:
    """Returns how many ranks did each step."""
    path = job.folder / "steps"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def wait_for(job: Job, steps: int) -> None:
    """Waits until so many steps are done."""
    until = time.monotonic() + PATIENCE_S
    while len(sizes(job)) < steps:
        if time.monotonic() > until:
            logs = "".join(path.read_text()[-2000:] for path in job.folder.glob("log.*"))
            msg = f"{len(sizes(job))} steps of {steps} were done in {PATIENCE_S:.0f} s:\n{logs}"
            raise RuntimeError(msg)
        time.sleep(0.05)


def disturb(job: Job, training: Training, steps: int) -> None:
    """Kills a rank, and later a host in whose place another one comes."""
    wait_for(job, steps // 4)
    ranks = [pid for pid in children(job.agents["b"].pid) if rank_of(pid, __file__) >= 0]
    os.kill(ranks[-1], signal.SIGKILL)
    wait_for(job, steps // 2)
    job.kill_host("b")
    training.join("c", 2)


def run(variant: str, seed: int, steps: int, *, is_disturbed: bool) -> tuple[float, int]:
    """Returns the accuracy at the end, and the number of steps with fewer than four ranks."""
    settings = {"LIGHT_2D_ALLREDUCE": "1", "LIGHT_TOPK_THRESHOLD": "0"}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        job = Job(Path(folder), stack, settings)
        training = Training(job, variant, str(seed), str(steps))
        training.start_hosts(["a", "b"], 2)
        if is_disturbed:
            disturb(job, training, steps)
        wait_for(job, steps)
        job.agents["launcher"].wait(PATIENCE_S)
        found = [json.loads(path.read_text()) for path in Path(folder).glob("result.*")]
        if len({result["digest"] for result in found}) != 1:
            msg = f"{len(found)} ranks ended, and they do not hold the same weights"
            raise RuntimeError(msg)
        few = sum(size < 4 for size in sizes(job))
        if is_disturbed != (few > 0):
            msg = f"{few} steps had fewer than four ranks"
            raise RuntimeError(msg)
        return found[0]["accuracy"], few


def main() -> int:
    """Prints a table in Markdown."""
    if sys.argv[1:2] == ["--train"]:
        train(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3000)
    arguments = parser.parse_args()
    print_head("training", "accuracy, %", "disturbed, %", "difference", "steps of fewer")
    for variant in VARIANTS:
        rows: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
        few = []
        for seed, is_disturbed in itertools.product(range(arguments.seeds), (False, True)):
            result, count = run(variant, seed, arguments.steps, is_disturbed=is_disturbed)
            rows[is_disturbed].append({"seed": seed, "result": result})
            few += [count] * is_disturbed
            sys.stderr.write(f"{variant}, seed {seed}, {is_disturbed=}: {result:.4f}, {count}\n")
        means = [100 * statistics.mean(it["result"] for it in rows[way]) for way in (False, True)]
        against = difference(rows[True], rows[False], 100.0)
        shown = f"{against.mean:+.2f} +- {against.half_width:.2f}" if against else ""
        accuracies = [f"{mean:.2f}" for mean in means]
        print_row(variant, *accuracies, shown, f"{statistics.mean(few):.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
