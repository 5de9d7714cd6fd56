"""Measures steps of DistributedDataParallel by torch's hooks over gloo, and by lightcc's.

    python tools/bench_ddp_hooks.py [--link 1g] [--models resnet50,vgg16,bert_large] [--rounds 5]
        [--skip "gloo, PowerSGD hook of rank 1"]

Ranks, by default 2 x 2, are on network namespaces with shaped links (needs root). A model has the
parameters of the real one, in their shapes, and next to no computation: a step is what
communication costs where nothing hides it. Gradients are random numbers, parts of one tensor that
is little larger than the largest of them. All ways run one after another in the same processes,
each with a model of its own that goes when it has been measured. So a rank needs 8 bytes for each
parameter, and 4 to 8 for what hooks keep: 4 to 5.4 GB with bert_large. torch's PowerSGD hook gets
all gradients in one bucket: with several, ranks start its second operations in different orders,
which gloo does not survive.

Checked: averages of what rounds little are near to the exact ones, and gradients agree between all
ranks in every bit.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

from lightcc.bench.models import MODELS
from torch_ranks import add_rank_arguments, start_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    #: Seconds of steps, and the bytes of one.
    Measured = tuple[list[float], int]

#: The largest difference to the exact average, over the average's largest element. What others send
#: is not near to it in one step, as they add the rest to later ones.
BOUNDS = {
    "gloo": 1e-5,
    "gloo, fp16 hook": 5e-3,
    "lightcc": 1e-5,
    "lightcc, int8": 5e-2,
}
WAYS = (
    "gloo",
    "gloo, fp16 hook",
    "gloo, PowerSGD hook of rank 1",
    "lightcc",
    "lightcc, int8",
    "lightcc, fp8",
    "lightcc, int4",
    "lightcc, top-k at 1%",
    "lightcc, PowerSGD of rank 1",
)


class Rank:
    """One rank, with a group of each backend."""

    def __init__(self) -> None:
        """Joins the other ranks."""
        import torch.distributed as dist

        import lightcc.torch as hvd

        dist.init_process_group("lightcc")
        self._hvd = hvd
        self._gloo = dist.new_group(backend="gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def replicas(self, way: str, model: Any) -> Any:
        """Returns the model as one that a way serves."""
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
        from torch.nn.parallel import DistributedDataParallel

        from lightcc.torch import ddp_hooks

        group = self._gloo if way.startswith("gloo") else None
        replicas = DistributedDataParallel(
            model,
            process_group=group,
            gradient_as_bucket_view=True,
            bucket_cap_mb=1 << 20 if way.startswith("gloo, PowerSGD") else None,
        )
        if way == "gloo, fp16 hook":
            replicas.register_comm_hook(group, default_hooks.fp16_compress_hook)
        elif way.startswith("lightcc, PowerSGD"):
            replicas.register_comm_hook(
                ddp_hooks.PowerSGDState(replicas, 1, warmup_steps=2), ddp_hooks.powersgd_2d_hook
            )
        elif "PowerSGD" in way:
            state: Any = powerSGD_hook.PowerSGDState(
                group, matrix_approximation_rank=1, start_powerSGD_iter=2
            )
            replicas.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif way.endswith(("int8", "fp8", "int4")):
            quantized = ddp_hooks.QuantizedState(
                replicas, bits=int(way[-1]), floating=way.endswith("fp8")
            )
            replicas.register_comm_hook(quantized, ddp_hooks.quantized_2d_hook)
        elif "top-k" in way:
            replicas.register_comm_hook(ddp_hooks.TopKState(replicas, 0.01), ddp_hooks.topk_2d_hook)
        return replicas

    def check(self, way: str, parameters: list[Any], given: list[Any]) -> None:
        """Raises RuntimeError where gradients are not what this way may make of those given."""
        import torch

        for index, (parameter, mine) in enumerate(zip(parameters, given, strict=True)):
            found = parameter.grad
            other = self._hvd.broadcast(found, 0, name=f"check.{index}")
            right = torch.equal(found, other) and bool(torch.isfinite(found).all())
            if right and way in BOUNDS:
                exact = self._hvd.allreduce(mine, name=f"exact.{index}")
                error = (found - exact).abs().max() / exact.abs().max()
                right = float(error) < BOUNDS[way]
            if not right:
                msg = f"gradient {index} by {way} is wrong on rank {self.rank}"
                raise RuntimeError(msg)

    def measure(self, name: str, ways: list[str], rounds: int) -> Iterator[Measured]:
        """Yields of each way the seconds of its steps and the bytes of one on the slowest host."""
        import torch

        shapes = [shape for layer in MODELS[name]() for shape in layer.shapes]
        torch.manual_seed(self.rank)
        given = _random_gradients(shapes)

        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weights = torch.nn.ParameterList(torch.zeros(shape) for shape in shapes)

            def forward(self) -> torch.Tensor:
                parts = zip(self.weights, given, strict=True)
                return torch.stack([torch.dot(w.flatten(), g.flatten()) for w, g in parts]).sum()

        for way in ways:
            yield self._measure_way(way, Model(), given, rounds)
            gc.collect()  # DistributedDataParallel has cycles, and a model may be large.

    def _measure_way(self, way: str, model: Any, given: list[Any], rounds: int) -> Measured:
        replicas = self.replicas(way, model)

        def step() -> None:
            replicas.zero_grad(set_to_none=False)
            replicas().backward()

        for _ in range(3):  # DDP makes its buckets anew after the first, PowerSGD starts late.
            step()
        measured = self._time(step, rounds)
        self.check(way, list(replicas.parameters()), given)
        return measured

    def _time(self, step: Callable[[], None], rounds: int) -> Measured:
        seconds = []
        before = _sent_bytes()
        for _ in range(rounds):
            self._hvd.barrier()
            begin = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - begin)
        sent = (_sent_bytes() - before) // rounds
        rows = self._hvd.allgather_object((seconds, sent))
        slowest = [max(times) for times in zip(*(row[0] for row in rows), strict=True)]
        return slowest, max(row[1] for row in rows)

    def run(self, plan: dict[str, Any]) -> None:
        """Measures what was asked for; rank 0 prints a table for each model."""
        for name in plan["models"]:
            self._say(f"| {name} | step, ms: median (min) | MB from a host | gloo / it |")
            self._say("|---" * 4 + "|")
            base = math.nan
            measured = self.measure(name, plan["ways"], plan["rounds"])
            for way, (seconds, sent) in zip(plan["ways"], measured, strict=True):
                median = statistics.median(seconds)
                base = median if way == "gloo" else base
                self._say(
                    f"| {way} | {1e3 * median:.0f} ({1e3 * min(seconds):.0f}) |"
                    f" {sent / 1e6:.3g} | {base / median:.3g} |"
                )
            self._say("")

    def _say(self, line: str) -> None:
        if self.rank == 0:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


def _random_gradients(shapes: list[tuple[int, ...]]) -> list[Any]:
    """Returns a gradient of each shape; they share memory, at different positions."""
    import torch

    counts = [math.prod(shape) for shape in shapes]
    pool = torch.randn(max(counts) + len(shapes))
    return [
        pool.narrow(0, position, count).view(shape)
        for position, (count, shape) in enumerate(zip(counts, shapes, strict=True))
    ]


def _sent_bytes() -> int:
    """Returns what this host's interface has sent; of one host, its loopback."""
    from pathlib import Path

    folder = Path("/sys/class/net")
    name = "eth0" if (folder / "eth0").exists() else "lo"
    return int((folder / name / "statistics/tx_bytes").read_text())


def main() -> int:
    """Starts the ranks, whose first prints tables; returns 1 where one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_rank_arguments(parser, ranks=4, hosts=2)
    parser.add_argument("--models", default="resnet50,vgg16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--skip", action="append", default=[], choices=WAYS, metavar="WAY")
    arguments = parser.parse_args()
    if arguments.rank:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        warnings.simplefilter("ignore", FutureWarning)
        Rank().run(json.loads(arguments.rank))
        dist.destroy_process_group()
        return 0
    models = arguments.models.split(",")
    unknown = set(models) - set(MODELS)
    if unknown:
        parser.error(f"--models: {', '.join(sorted(unknown))}: there are {', '.join(MODELS)}")
    ways = [way for way in WAYS if way not in arguments.skip]
    plan = {"models": models, "ways": ways, "rounds": arguments.rounds}
    return start_ranks(__file__, plan, arguments)


if __name__ == "__main__":
    sys.exit(main())
