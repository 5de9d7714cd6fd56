"""What DistributedOptimizer costs, beside torch's DistributedDataParallel over gloo, in one run.

    lightccrun -np 2 --no-prefix python measure/optimizer.py
    lightccrun -np 2 --no-prefix python measure/optimizer.py --model resnet101 --batch 2

1. The cost of a parameter: a model of many tiny parameters, so that a step is nothing but what each
   of them costs; the time of the same step without communication is subtracted.
2. A step of a real model of `examples/models`, on all ranks, beside one rank alone and beside the
   same step on all ranks without communication (which shows what ranks take from one another).

Ways of training take turns in every round, from the same weights. A time is that of the slowest
rank; shown are the median of the rounds, and their least and greatest. At the end every way must
have left the same weights on all ranks, and both ways the same weights up to rounding, or the exit
code is 1.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import importlib
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import lightcc.torch as hvd

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))


class ManyParameters(nn.Module):
    """As many parameters as asked for, of 16 elements each, all used in the loss."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.parts = nn.ParameterList(torch.full((16,), float(i % 7)) for i in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Uses each parameter."""
        return torch.stack([part.sum() for part in self.parts]).sum() * x


class Loss(nn.Module):
    """A model whose forward is its loss, as DistributedDataParallel wants it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        """Returns the loss."""
        loss: torch.Tensor = self.model.loss(*batch)
        return loss


class Way:
    """One way to train a copy of a model."""

    def __init__(self, name: str, model: nn.Module, ranks: int) -> None:
        self.name = name
        self.ranks = ranks  # Of which the first so many take part.
        self.module = copy.deepcopy(model)
        self.forward: nn.Module = self.module
        self.optimizer: Any = torch.optim.SGD(self.module.parameters(), lr=1e-3)
        self.times: list[float] = []
        if name == "lightcc":
            self.optimizer = hvd.DistributedOptimizer(
                self.optimizer, named_parameters=self.module.named_parameters()
            )
        elif name == "DDP+gloo":
            self.forward = nn.parallel.DistributedDataParallel(self.module, broadcast_buffers=False)

    def steps(self, count: int, batch: tuple[torch.Tensor, ...]) -> float:
        """Returns the seconds of one step, of the slowest rank."""
        hvd.barrier()
        begin = time.perf_counter()
        if hvd.rank() < self.ranks:
            for _ in range(count):
                self.optimizer.zero_grad()
                self.forward(*batch).backward()
                self.optimizer.step()
        seconds = torch.tensor((time.perf_counter() - begin) / count, dtype=torch.float64)
        return float(hvd.allreduce(seconds, op=hvd.Max, name="seconds"))

    def digest(self) -> str:
        """Returns what tells replicas apart."""
        data = b"".join(p.detach().numpy().tobytes() for p in self.module.parameters())
        return hashlib.sha256(data).hexdigest()


def log(text: str) -> None:
    """Prints on rank 0."""
    if hvd.rank() == 0:
        print(text, flush=True)


def measure(ways: list[Way], batch: tuple[torch.Tensor, ...], rounds: int, steps: int) -> bool:
    """Runs all ways in turns; returns whether their weights are as they must be."""
    for way in ways:
        way.steps(2, batch)
    for _ in range(rounds):
        for way in ways:
            way.times.append(way.steps(steps, batch))
    right = True
    for way in ways:
        if way.name in ("lightcc", "DDP+gloo"):
            digests = set(hvd.allgather_object(way.digest()))
            right = right and len(digests) == 1
    ours, theirs = (next(w for w in ways if w.name == n) for n in ("lightcc", "DDP+gloo"))
    pairs = zip(ours.module.parameters(), theirs.module.parameters(), strict=True)
    return right and all(torch.allclose(p, q, rtol=1e-3, atol=1e-5) for p, q in pairs)


def row(name: str, values: list[float], unit: str, extra: str = "") -> None:
    """Prints the median of some values, and their least and greatest."""
    middle, minimum, maximum = statistics.median(values), min(values), max(values)
    log(f"{name:<24} {middle:10.2f} {unit}   ({minimum:.2f} to {maximum:.2f}) {extra}".rstrip())


def parameter_cost(args: argparse.Namespace) -> bool:
    """Measures part 1."""
    model = ManyParameters(args.parameters)
    ways = [Way(name, model, hvd.size()) for name in ("no communication", "lightcc", "DDP+gloo")]
    x = torch.tensor(float(hvd.rank() + 1))
    right = measure(ways, (x,), args.rounds, 100)
    log(f"# cost per parameter and step, {args.parameters} parameters, {hvd.size()} ranks")
    alone = statistics.median(ways[0].times)
    row("(the step itself)", [1e6 * t / args.parameters for t in ways[0].times], "us")
    for way in ways[1:]:
        row(way.name, [1e6 * (t - alone) / args.parameters for t in way.times], "us")
    return right


def model_step(args: argparse.Namespace) -> bool:
    """Measures part 2."""
    models: Any = importlib.import_module("models")  # Of the examples.
    torch.manual_seed(0)
    model = models.MODELS[args.model]()
    torch.manual_seed(1 + hvd.rank())
    batch = model.inputs(args.batch)
    loss = Loss(model)
    ways = [Way("one rank alone", loss, 1)]
    ways += [Way(name, loss, hvd.size()) for name in ("no communication", "lightcc", "DDP+gloo")]
    right = measure(ways, batch, args.rounds, args.steps)
    log(f"# a step of {args.model}, batch {args.batch} per rank, {hvd.size()} ranks")
    alone = statistics.median(ways[0].times)
    for way in ways:
        speedup = way.ranks * alone / statistics.median(way.times)
        row(way.name, [1e3 * t for t in way.times], "ms", f"speed-up {speedup:.2f}")
    return right


def main() -> int:
    """Measures both parts; returns 1 where weights differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parameters", type=int, default=161, help="of part 1 (161)")
    parser.add_argument("--model", default="resnet50", help="of part 2, or 'none' (resnet50)")
    parser.add_argument("--batch", type=int, default=2, help="images of one rank (2)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of every way (5)")
    parser.add_argument("--steps", type=int, default=2, help="steps of a turn in part 2 (2)")
    args = parser.parse_args()

    hvd.init()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // hvd.local_size()))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as directory:
        store = hvd.broadcast_object(f"file://{directory}/store")
        dist.init_process_group("gloo", init_method=store, rank=hvd.rank(), world_size=hvd.size())
        right = parameter_cost(args)
        if args.model != "none":
            right = model_step(args) and right
        hvd.barrier()
        dist.destroy_process_group()
    log(f"# weights equal on all ranks and between the ways: {right}")
    hvd.shutdown()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
