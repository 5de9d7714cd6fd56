"""What a host that is lost and comes back costs a training with local steps.

    python measure/disturbed.py --seeds 20

Two hosts of two ranks train a small transformer by LocalSteps, as an elastic job of lightccrun.
With each seed one job is left alone, and in another one both ranks of a host are killed between
two outer steps. The others go on for some rounds, and then wait for the host to be back. The table
has the losses of both, and their difference in percent.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import lightcc.torch as hvd
from convergence import make_optimizer, make_schedule
from convergence_tasks import Task, _Transformer, transformer
from ranks import print_head, print_row

STEPS, EVERY, ALONE = 600, 15, 2 * 15  # ALONE: steps of the host that is left.
COMMIT_EVERY = 5
WINDOW, WIDTH = 32, 32


def train(task: Task, seed: int, killed_at: int) -> float:
    """What each rank does; returns the loss on the test in bits for each character."""
    worker = int(os.environ["LIGHT_WORKER"])
    os.environ["LIGHT_HOST_ID"] = f"host-{worker % 2}"
    torch.set_num_threads(1)
    hvd.init()
    torch.manual_seed(seed)
    model = _Transformer(int(task.train[0].max()) + 1, WINDOW, WIDTH, 2)
    optimizer = hvd.LocalSteps(
        make_optimizer(task, model), list(model.named_parameters()), dense_steps=STEPS // 5,
        dense_compression=hvd.Compression.int4,
    )  # fmt: skip
    schedule = make_schedule(task, optimizer)
    state = hvd.elastic.TorchState(model, optimizer, schedule=schedule, step=0)

    @hvd.elastic.run
    def loop(state: hvd.elastic.TorchState) -> None:
        while state.step < STEPS:
            if state.step == killed_at and worker in (1, 3):
                os.kill(os.getpid(), signal.SIGKILL)
            if killed_at < state.step - ALONE < killed_at + EVERY and hvd.size() < 4:
                time.sleep(1)  # The host comes back in this round.
            samples = torch.Generator().manual_seed(seed * STEPS + state.step)
            batch = torch.randint(len(task.train[1]), (task.batch,), generator=samples)
            mine = batch[hvd.rank() :: hvd.size()]
            optimizer.zero_grad()
            logits = model(task.train[0][mine, :WINDOW])
            nn.functional.cross_entropy(logits, task.train[1][mine, :WINDOW].flatten()).backward()
            optimizer.step()
            schedule.step()
            state.step += 1
            if state.step % COMMIT_EVERY == 0:
                state.commit()
        optimizer.outer_step()

    loop(state)
    with torch.no_grad():
        of_test = [part[:, :WINDOW] for part in task.test]
        loss = task.measure(model(of_test[0]), of_test[1].flatten()).item()
    return loss / of_test[1].numel()


def run(seed: int, killed_at: int) -> float:
    """Returns the loss of a job, which is the same on all ranks that reach its end."""
    with tempfile.TemporaryDirectory() as folder:
        launcher = str(Path(sys.executable).with_name("lightccrun"))
        words = [sys.executable, __file__, "--train", folder, str(seed), str(killed_at)]
        env = {**os.environ, "LIGHT_TOPK_THRESHOLD": "0", "LIGHT_2D_ALLREDUCE": "1"}
        job = [launcher, "-np", "4", "--min-np", "2", *words]
        subprocess.run(job, env=env, check=True)
        losses = {path.read_text() for path in Path(folder).iterdir()}
    if len(losses) != 1:
        msg = f"seed {seed}: ranks have different losses: {losses}"
        raise RuntimeError(msg)
    return float(losses.pop())


def main() -> int:
    """Does what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--train", nargs=3, metavar="WORD", help="of one rank")
    arguments = parser.parse_args()
    if arguments.train:
        folder, seed, killed_at = arguments.train
        loss = train(replace(transformer(), steps=STEPS), int(seed), int(killed_at))
        Path(folder, os.environ["LIGHT_WORKER"]).write_text(json.dumps(loss))
        return 0
    print_head("seed", "killed before step", "undisturbed", "disturbed", "difference, %")
    differences = []
    for seed in range(arguments.seeds):
        killed_at = random.Random(seed).randrange(STEPS // 4, STEPS // 2)  # noqa: S311
        alone, disturbed = run(seed, -1), run(seed, killed_at)
        differences.append(100 * (disturbed / alone - 1))
        shown = f"{alone:.4f}", f"{disturbed:.4f}", f"{differences[-1]:+.2f}"
        print_row(str(seed), str(killed_at), *shown)
    error = statistics.pstdev(differences) / max(len(differences) - 1, 1) ** 0.5
    print(f"\nmean {statistics.mean(differences):+.2f}%, standard error {error:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
