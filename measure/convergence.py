"""Trains the same models with and without compression, from the same seeds, and compares.

    python measure/convergence.py run [--tasks transformer] [--seeds 5]    # hours on two cores
    python measure/convergence.py keep      # puts them into docs/convergence-runs.jsonl
    python measure/convergence.py report --write docs/convergence.md

`run` starts four ranks, as two hosts of two where the task does not say otherwise. They train every
variant with every seed, one after another. Each run leaves a JSON file in build/convergence, and
what is there already, or among the runs that are kept, is not run again. `report` makes tables and
plots of the runs that are kept.
A seed decides the initial weights and the samples of every step, so runs of one seed differ in
their compression only: variants are compared in pairs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from torch import nn
from torch.distributed.fsdp import fully_shard

import convergence_report
import lightcc.torch as hvd
from convergence_tasks import TASKS, VARIED, Task
from lightcc.torch import fsdp
from ranks import run_on_grid

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "build" / "convergence"
KEPT = ROOT / "docs" / "convergence-runs.jsonl"
SETTINGS = {"LIGHT_TOPK_THRESHOLD": "0"}
MOMENTUM = 0.9
#: In the order in which they are run.
SGD_VARIANTS = (
    "dense",
    "feedback",
    "warm-up",
    "auto",
    "default",
)
#: What knows no ratio.
WHOLE = {
    "dense": hvd.Compression.none,
    "int8": hvd.Compression.int8,
    "int4": hvd.Compression.int4,
    "auto": hvd.Compression.auto(),
    "default": hvd.Compression.none,  # In a world with LIGHT_TOPK_ALLREDUCE=1.
}
#: Links are not what limits here, so the budget has "auto" take the strongest way.
BUDGETS = {"sgd": 0.02, "adamw": 0.13}
#: Hosts train on their own, and combine every 15 steps what they have done.
LOCAL_STEPS: dict[str, dict[str, Any]] = {
    "local steps": {},
    "local steps after int4": {"dense_compression": hvd.Compression.int4},  # A fifth of all.
    "sparse local steps": {"compression": hvd.Compression.topk(0.05, values="2bit")},
    "sparse local steps after int4": {
        "compression": hvd.Compression.topk(0.05, values="2bit"),
        "dense_compression": hvd.Compression.int4,
    },
}
#: Weights, gradients and the optimizer's state are sharded over all ranks, by FSDP2.
SHARDED: dict[str, dict[str, Any]] = {
    "sharded": {},
    "sharded, int8 and int4": {"weights": "int8", "gradients": "int4"},
    "sharded, int4 differences and int4": {
        "weights": "int4",
        "gradients": "int4",
        "resident": True,
    },
}
#: Sharded in a host.
REPLICATED = {"HSDP, int4": "int4"}
VARIANTS = (
    *SGD_VARIANTS,
    "int8",
    "int4",
    *LOCAL_STEPS,
    *SHARDED,
    *REPLICATED,
)
RATIOS = (0.01, 0.001)
MEASUREMENTS = 8


@dataclass(frozen=True)
class Run:
    """One training. `ratio` is 1 for what knows none."""

    task: str
    variant: str
    ratio: float
    seed: int

    @property
    def name(self) -> str:
        """The name for its parameters and its file."""
        return f"{self.task}-{self.variant}-{self.ratio:g}-{self.seed}".replace(" ", "_")


def all_runs(
    tasks: dict[str, Task], seeds: int, variants: list[str], ratios: list[float]
) -> list[Run]:
    """Returns what is to be run, what matters most first."""
    whole = (*WHOLE, *LOCAL_STEPS, *SHARDED, *REPLICATED)
    settings = [(variant, 1.0) for variant in whole if variant in variants]
    settings += [
        (variant, ratio)
        for ratio in ratios
        for variant in VARIANTS
        if variant in variants and variant not in whole
    ]
    return [
        Run(task, variant, ratio, seed)
        for variant, ratio in settings
        for task in tasks
        for seed in range(seeds)
        if variant in (tasks[task].variants or SGD_VARIANTS)
    ]


def compression_of(run: Run, task: Task) -> Any:
    """Returns what the optimizer is given for a variant."""
    if run.variant == "auto":
        return hvd.Compression.auto(budget=BUDGETS[task.optimizer])
    if run.variant in WHOLE:
        return WHOLE[run.variant]
    warmup_steps = task.steps // 5 if run.variant == "warm-up" else 0
    return hvd.Compression.topk(run.ratio, warmup_steps=warmup_steps)


def measure(model: nn.Module, task: Task, name: str) -> float:
    """Returns the mean over the test's samples, of which each rank takes its share."""
    inputs, labels = (part[hvd.rank() :: hvd.size()] for part in task.test)
    with torch.no_grad():
        mine = task.measure(model(inputs), labels.flatten())
    every = hvd.allgather(mine.double().reshape(1), name=name)  # Which nothing compresses.
    return every.sum().item() / task.test[1].numel()


def make_optimizer(task: Task, model: nn.Module) -> torch.optim.Optimizer:
    """Returns the optimizer of one rank alone."""
    if task.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=task.learning_rate)
    return torch.optim.SGD(model.parameters(), lr=task.learning_rate, momentum=MOMENTUM)


def make_schedule(task: Task, optimizer: Any) -> torch.optim.lr_scheduler.LRScheduler:
    """Returns the learning rate's fall to 0, and its rise before that where there is one."""
    if task.warmup_steps == 0:
        return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1.0 / task.steps, task.steps - 1)
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / task.warmup_steps, 1.0 - step / task.steps)
    )


def distribute(run: Run, task: Task, model: nn.Module) -> Any:
    """Returns the optimizer of all ranks."""
    if run.variant in (*SHARDED, *REPLICATED):
        shard(run, model)
        return make_optimizer(task, model)
    # Residuals belong to names, so every run has names of its own.
    named = [(f"{run.name}.{name}", p) for name, p in model.named_parameters()]
    optimizer = make_optimizer(task, model)
    if run.variant in LOCAL_STEPS:
        options = LOCAL_STEPS[run.variant]
        dense_steps = task.steps // 5 if "dense_compression" in options else 0
        return hvd.LocalSteps(optimizer, named, dense_steps=dense_steps, **options)
    return hvd.DistributedOptimizer(optimizer, named, compression_of(run, task))


def shard(run: Run, model: nn.Module) -> None:
    """Shards a model over all ranks, or over those of a host."""
    torch.distributed.init_process_group("lightcc")
    mesh = fsdp.host_mesh() if run.variant in REPLICATED else None
    layers = [it for it in model.modules() if isinstance(it, nn.TransformerEncoderLayer)]
    for module in (*layers, model):
        fully_shard(module, mesh=mesh and mesh["shard"])
    if mesh is not None:
        gradients = REPLICATED[run.variant]
        fsdp.replicate(model, mesh["replicate"], gradients=gradients, name=run.name)
    elif SHARDED[run.variant]:
        fsdp.compress(model, **SHARDED[run.variant], name=run.name)


def train(run: Run, task: Task) -> dict[str, Any]:
    """Trains `run`, whose name stands for `task`; every rank must call it.

    Returns the same on all ranks but for seconds, which measuring the test does not count in.
    """
    torch.manual_seed(run.seed)
    model = task.make_model()
    optimizer = distribute(run, task, model)
    schedule = make_schedule(task, optimizer)
    samples = torch.Generator().manual_seed(run.seed)
    curve: list[list[float]] = []
    sent = hvd.stats()["network_bytes_sent"]
    begin = time.monotonic()
    for step in range(task.steps):
        batch = torch.randint(len(task.train[1]), (task.batch,), generator=samples)
        mine = batch[hvd.rank() :: hvd.size()]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(
            model(task.train[0][mine]), task.train[1][mine].flatten()
        )
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) * MEASUREMENTS // task.steps > step * MEASUREMENTS // task.steps:
            if run.variant in LOCAL_STEPS:
                optimizer.outer_step()
            stopped = time.monotonic()
            curve.append([step + 1, measure(model, task, f"{run.name}.curve")])
            begin += time.monotonic() - stopped
    seconds = time.monotonic() - begin
    sent = hvd.stats()["network_bytes_sent"] - sent
    kept = [t.kept_ratio for t in hvd.stats().compression if f".{run.name}." in t.name]
    tensors: list[Any] = [p.detach() for p in model.parameters()]
    tensors = [it.full_tensor() if hasattr(it, "full_tensor") else it for it in tensors]
    weights = b"".join(it.numpy().tobytes() for it in tensors)
    every = hvd.allgather_object((hashlib.sha256(weights).hexdigest(), sent))
    return {
        **asdict(run),
        "steps": task.steps,
        "parameters": sum(p.numel() for p in model.parameters()),
        "result": curve[-1][1] if math.isfinite(curve[-1][1]) else None,
        "curve": [point for point in curve if math.isfinite(point[1])],
        "bytes_per_step": sum(sent for _, sent in every) / len(every) / task.steps,
        "kept_ratio": max(kept, default=0.0),
        "replicas_agree": len({digest for digest, _ in every}) == 1,
        "seconds": round(seconds, 1),
    }


def known(arguments: argparse.Namespace) -> set[str]:
    """Returns the names of the runs that have a result, in the folder or among the kept ones."""
    kept = {
        Run(row["task"], row["variant"], row["ratio"], row["seed"]).name
        for row in convergence_report.read(arguments.kept)
    }
    return kept | {path.stem for path in arguments.results.glob("*.json")}


@contextmanager
def world_of(run: Run, task: Task) -> Iterator[None]:
    """A world on the task's hosts, with what the variables say of compression."""
    host = int(os.environ["HOROVOD_RANK"]) // task.ranks_per_host
    os.environ["LIGHT_HOST_ID"] = f"host-{host}"
    os.environ["LIGHT_TOPK_ALLREDUCE"] = str(int(run.variant == "default"))
    hvd.init()
    try:
        yield
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        hvd.shutdown()


def train_all(arguments: argparse.Namespace) -> int:
    """What each rank does."""
    torch.set_num_threads(1)
    tasks = {name: {**TASKS, **VARIED}[name]() for name in arguments.tasks}
    runs = all_runs(tasks, arguments.seeds, arguments.variants, arguments.ratios)
    hvd.init()
    there = hvd.broadcast_object(known(arguments) if hvd.rank() == 0 else set(), root_rank=0)
    hvd.shutdown()
    for run in runs:
        if run.name in there:
            continue
        with world_of(run, tasks[run.task]):
            result = train(run, tasks[run.task])
        if os.environ["HOROVOD_RANK"] == "0":
            partial = arguments.results / f"{run.name}.partial"
            partial.write_text(json.dumps(result, indent=1) + "\n")
            partial.replace(partial.with_suffix(".json"))
            shown = "diverged" if result["result"] is None else f"{result['result']:.4f}"
            sys.stdout.write(f"{run.name}: {shown}, {result['seconds']} s\n")
            sys.stdout.flush()
    return 0


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = ["run", "train", "keep", "report"]
    parser.add_argument("command", choices=commands, help="train: of one rank")
    parser.add_argument("--tasks", nargs="+", choices=[*TASKS, *VARIED], default=list(TASKS))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--ratios", nargs="+", type=float, choices=RATIOS, default=list(RATIOS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of JSON files")
    parser.add_argument("--kept", type=Path, default=KEPT, help="file of the runs that are kept")
    parser.add_argument("--write", type=Path, metavar="FILE.md", help="put the tables in there")
    return parser.parse_args()


def main() -> int:
    """Does what the command line says."""
    arguments = parse_arguments()
    if arguments.command == "report":
        return convergence_report.main(arguments.kept, arguments.write)
    if arguments.command == "keep":
        return convergence_report.keep(arguments.results, arguments.kept)
    if arguments.command == "train":
        return train_all(arguments)
    arguments.results.mkdir(parents=True, exist_ok=True)
    return run_on_grid(__file__, ["train", *sys.argv[2:]], SETTINGS)


if __name__ == "__main__":
    sys.exit(main())
