"""What DistributedOptimizer costs, beside torch's DistributedDataParallel over gloo, in one run.

    python measure/optimizer.py [--ranks 2] [--model resnet101] [--batch 2] [--rounds 5]

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
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

import lightcc.torch as hvd
from ranks import add_rank_arguments, print_head, print_row, serve, starter

if TYPE_CHECKING:
    from collections.abc import Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
ALONE = "one rank alone"


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
        self.ranks = ranks  # The first so many ranks take part.
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


def measure(
    ways: list[Way], batch: tuple[torch.Tensor, ...], rounds: int, steps: int
) -> dict[str, Any]:
    """Runs all ways in turns; returns their times, and whether weights are as they must be."""
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
    right = right and all(torch.allclose(p, q, rtol=1e-3, atol=1e-5) for p, q in pairs)
    return {"times": {way.name: way.times for way in ways}, "right": right}


def parameter_cost(parameters: int, rounds: int) -> dict[str, Any]:
    """Measures part 1."""
    model = ManyParameters(parameters)
    ways = [Way(name, model, hvd.size()) for name in ("no communication", "lightcc", "DDP+gloo")]
    return measure(ways, (torch.tensor(float(hvd.rank() + 1)),), rounds, 100)


def model_step(name: str, batch: int, rounds: int, steps: int) -> dict[str, Any]:
    """Measures part 2."""
    models: Any = importlib.import_module("models")  # The examples' models.
    torch.manual_seed(0)
    model = models.MODELS[name]()
    torch.manual_seed(1 + hvd.rank())
    inputs = model.inputs(batch)
    loss = Loss(model)
    ways = [Way(ALONE, loss, 1)]
    ways += [Way(name, loss, hvd.size()) for name in ("no communication", "lightcc", "DDP+gloo")]
    return measure(ways, inputs, rounds, steps)


def be_a_rank() -> None:
    """Is one rank, from the first request to the last."""
    hvd.init()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // hvd.local_size()))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as directory:
        store = hvd.broadcast_object(f"file://{directory}/store")
        dist.init_process_group("gloo", init_method=store, rank=hvd.rank(), world_size=hvd.size())
        parts: dict[str, Callable[..., dict[str, Any]]]
        parts = {"parameter": parameter_cost, "step": model_step}
        serve(lambda request: parts[request.pop("part")](**request))


def row(name: str, seconds: list[float], unit: float, extra: str = "") -> None:
    """Prints the median of some values, and their least and greatest."""
    least, greatest = min(seconds) / unit, max(seconds) / unit
    middle = statistics.median(seconds) / unit
    print_row(name, f"{middle:.2f} ({least:.2f} to {greatest:.2f})", extra)


def main() -> int:
    """Measures both parts; returns 1 where weights differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_rank_arguments(parser, hosts=1, ranks=2, rounds=5)
    parser.add_argument("--parameters", type=int, default=161, help="of part 1 (161)")
    parser.add_argument("--model", default="resnet50", help="of part 2, or 'none' (resnet50)")
    parser.add_argument("--batch", type=int, default=2, help="images of one rank (2)")
    parser.add_argument("--steps", type=int, default=2, help="steps of a turn in part 2 (2)")
    args = parser.parse_args()
    if args.serve:
        be_a_rank()
        return 0
    with starter(__file__, args) as start:
        ranks = start.start("lightcc", start.of_lightcc())
        request = {"part": "parameter", "parameters": args.parameters, "rounds": args.rounds}
        answers = ranks.ask(request)
        times = answers[0]["times"]
        print_head("per parameter and step", "us: median (least to greatest)", "")
        alone = statistics.median(times["no communication"])
        row("the step itself", times.pop("no communication"), 1e-6 * args.parameters)
        for name, seconds in times.items():
            row(name, [it - alone for it in seconds], 1e-6 * args.parameters)
        if args.model != "none":
            request = {"part": "step", "name": args.model, "batch": args.batch}
            found = ranks.ask(request | {"rounds": args.rounds, "steps": args.steps})
            answers += found
            times = found[0]["times"]
            print_head(f"step of {args.model}", "ms: median (least to greatest)", "speed-up")
            alone = statistics.median(times[ALONE])
            for name, seconds in times.items():
                share = alone / statistics.median(seconds)
                row(name, seconds, 1e-3, f"{share * (1 if name == ALONE else args.ranks):.2f}")
    right = all(answer["right"] for answer in answers)
    print(f"weights equal on all ranks and between the ways: {right}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
