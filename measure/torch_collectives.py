"""Measures the backend lightcc of torch.distributed beside gloo or NCCL, in one run.

Usage: torch_collectives.py [--ranks 2] [--hosts 1 --link 1g] [--sizes 4K,64K,1M,16M,64M]
           [--steps resnet50,transformer,fsdp] [--rounds 5] [--device cpu|cuda]

Each rank has a group of lightcc and a group of gloo, or on `cuda` of NCCL, which then carries
lightcc's tensors as well, and wants a GPU for each rank. Groups take turns, so that each round
measures both on the same machine. `direct` is lightcc's own call, `lightcc.torch.allreduce_()`,
which shows what the backend costs. `alone` is a step that communicates nothing. A size is that of
the larger tensor. Results are checked before and after each measurement: they must be exact.

A step of DistributedDataParallel has the gradients of a model and next to no computation:
resnet50's 161, or a transformer's 400. A step of FSDP2 computes four layers.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

from lightcc.bench.cases import parse_size
from lightcc.bench.models import gradients
from ranks import add_rank_arguments, print_head, print_row, serve, starter, times_text

if TYPE_CHECKING:
    from collections.abc import Callable

OPERATIONS = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")
PEERS = {"cpu": "gloo", "cuda": "nccl"}
STEPS = ("resnet50", "transformer", "fsdp")
LAYERS, WIDTH = 33, 256  # The transformer has 12 tensors in each layer, and 4 more.
FSDP_LAYERS, FSDP_WIDTH = 4, 1024
BLOCK_S = 0.05  # How long a block of calls should take.


def transformer() -> list[int]:
    """Returns the elements of each gradient of a transformer with 400 of them."""
    layer = [WIDTH] * 6 + [3 * WIDTH, 4 * WIDTH]
    layer += [WIDTH * WIDTH * factor for factor in (1, 3, 4, 4)]
    return [1000 * WIDTH, 512 * WIDTH, WIDTH, WIDTH, *layer * LAYERS]


# -- A rank ---------------------------------------------------------------------------------------


class Rank:
    """One rank, with both groups."""

    def __init__(self, device: str) -> None:
        """Joins the other ranks; tensors are on `device`."""
        import torch
        import torch.distributed as dist

        import lightcc.torch as hvd

        self._wait: Callable[[], None] = lambda: None
        if device == "cuda":
            torch.cuda.set_device(int(os.environ["RANK"]))
            self._wait = torch.cuda.synchronize
        dist.init_process_group("lightcc")
        self._hvd, self._device, self._peer = hvd, device, PEERS[device]
        self._groups: dict[str, Any] = {
            "lightcc": dist.group.WORLD,
            self._peer: dist.new_group(backend=self._peer),
        }
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def measure(self, steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
        """Returns the seconds of a call in each round, by way."""
        counts = {}
        times: dict[str, list[float]] = {way: [] for way in steps}
        for way, step in steps.items():
            step()
            self._wait()
            begin = time.perf_counter()
            step()
            self._wait()
            one = max(self._hvd.allgather_object(time.perf_counter() - begin))
            counts[way] = max(1, min(200, int(BLOCK_S / one)))
        for _ in range(rounds):
            for way, step in steps.items():
                self._hvd.barrier()
                begin = time.perf_counter()
                for _ in range(counts[way]):
                    step()
                self._wait()
                times[way].append((time.perf_counter() - begin) / counts[way])
        return times

    def collective(self, operation: str, size: int, rounds: int) -> dict[str, list[float]]:
        """Measures a collective of float32 tensors, whose larger one has `size` bytes."""
        import torch
        import torch.distributed as dist

        hvd, count = self._hvd, size // 4
        small, large = (torch.zeros(n, device=self._device) for n in (count // self.size, count))
        total = float(sum(range(1, self.size + 1)))

        def run(way: str) -> None:
            group = self._groups.get(way)
            if way == "direct":
                hvd.allreduce_(large, op=hvd.Sum, name="direct")
            elif operation == "all_reduce":
                dist.all_reduce(large, group=group)
            elif operation == "all_gather_into_tensor":
                dist.all_gather_into_tensor(large, small, group=group)
            else:
                dist.reduce_scatter_tensor(small, large, group=group)

        def check(way: str) -> None:
            large.fill_(self.rank + 1.0)
            small.fill_(self.rank + 1.0)
            run(way)
            if operation == "all_gather_into_tensor":
                parts = large.view(self.size, -1)
                right = all(bool((parts[i] == i + 1.0).all()) for i in range(self.size))
            else:
                result = large if operation == "all_reduce" else small
                right = bool((result == total).all())
            if not right:
                msg = f"{operation} of {size} bytes by {way} is wrong on rank {self.rank}"
                raise RuntimeError(msg)

        ways = [*self._groups, "direct"] if operation == "all_reduce" else list(self._groups)
        for way in ways:
            check(way)
        large.zero_()  # Sums of sums must not become infinite.
        times = self.measure({way: lambda way=way: run(way) for way in ways}, rounds)  # type: ignore[misc]
        for way in ways:
            check(way)
        return times

    def replicas(self, counts: list[int], rounds: int) -> dict[str, list[float]]:
        """Measures steps of DistributedDataParallel with gradients of these elements."""
        import torch
        from torch.nn.parallel import DistributedDataParallel

        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weights = torch.nn.ParameterList(torch.zeros(count) for count in counts)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * torch.stack([weight.sum() for weight in self.weights]).sum()

        models = {
            way: DistributedDataParallel(Model().to(self._device), process_group=group)
            for way, group in self._groups.items()
        }
        x, mean = torch.tensor(self.rank + 1.0, device=self._device), (self.size + 1) / 2

        def run(way: str) -> None:
            model = models.get(way, models[self._peer])
            with model.no_sync() if way == "alone" else contextlib.nullcontext():
                model.zero_grad()
                model(x).backward()

        def check(way: str) -> None:
            run(way)
            for weight in models[way].parameters():
                if weight.grad is None or not bool((weight.grad == mean).all()):
                    msg = f"a gradient by {way} is wrong on rank {self.rank}"
                    raise RuntimeError(msg)

        for way in self._groups:
            run(way)  # After the first step DDP makes its buckets anew.
            check(way)
        ways = (*self._groups, "alone")
        times = self.measure({way: lambda way=way: run(way) for way in ways}, rounds)  # type: ignore[misc]
        for way in self._groups:
            check(way)
        return times

    def shards(self, rounds: int) -> dict[str, list[float]]:
        """Measures steps of FSDP2: forward and backward pass of linear layers."""
        import torch
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        models: dict[str, Any] = {}
        for way, group in self._groups.items():
            torch.manual_seed(1)
            layers = [torch.nn.Linear(FSDP_WIDTH, FSDP_WIDTH) for _ in range(FSDP_LAYERS)]
            mesh = DeviceMesh.from_group(group, self._device)
            models[way] = torch.nn.Sequential(*layers).to(self._device)
            for module in (*layers, models[way]):
                fully_shard(module, mesh=mesh)
        x = torch.full((1, FSDP_WIDTH), 0.5 + self.rank, device=self._device)

        def run(way: str) -> None:
            models[way].zero_grad()
            models[way](x).sum().backward()

        def check() -> None:
            for ours, theirs in zip(*(it.parameters() for it in models.values()), strict=True):
                torch.testing.assert_close(ours.grad.to_local(), theirs.grad.to_local())

        for way in models:
            run(way)
        check()
        times = self.measure({way: lambda way=way: run(way) for way in models}, rounds)  # type: ignore[misc]
        check()
        return times

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Measures what a request asks for."""
        what, rounds = request["what"], request["rounds"]
        if what in OPERATIONS:
            times = self.collective(what, request["size"], rounds)
        elif what == "fsdp":
            times = self.shards(rounds)
        else:
            times = self.replicas(gradients_of(what), rounds)
        return {"times": times}


def gradients_of(step: str) -> list[int]:
    """Returns the elements of each gradient of a step of DistributedDataParallel."""
    return transformer() if step == "transformer" else gradients(step)


def title(step: str) -> str:
    """Returns what a table calls a step."""
    if step == "fsdp":
        return f"FSDP2, {FSDP_LAYERS} layers of {FSDP_WIDTH}"
    counts = gradients_of(step)
    return f"DDP, {len(counts)} gradients, {4 * sum(counts) >> 20} MiB"


def be_a_rank(device: str) -> None:
    """Is one rank, from the first request to the last."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # torch has new names for two collectives.
    serve(Rank(device).answer)
    dist.destroy_process_group()


def main() -> int:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_rank_arguments(parser, hosts=1, ranks=2, rounds=5)
    parser.add_argument("--device", choices=tuple(PEERS), default="cpu")
    parser.add_argument("--sizes", default="4K,64K,1M,16M,64M", help="may be empty")
    parser.add_argument("--steps", default=",".join(STEPS), help="may be empty")
    arguments = parser.parse_args()
    if arguments.serve:
        be_a_rank(arguments.serve)
        return 0
    sizes, steps = (
        [it for it in text.split(",") if it] for text in (arguments.sizes, arguments.steps)
    )
    if set(steps) - set(STEPS):
        parser.error(f"--steps: {arguments.steps}: known are {', '.join(STEPS)}")
    requests = [
        (f"`{operation}`, {size}iB", {"what": operation, "size": parse_size(size)})
        for operation in OPERATIONS
        for size in sizes
    ]
    requests += [(title(step), {"what": step}) for step in steps]
    peer = PEERS[arguments.device]
    columns = ("lightcc", peer, "direct", "alone")
    variables = {"HOROVOD_GPU_OPERATIONS": "NCCL"} if peer == "nccl" else {}
    with starter(__file__, arguments) as start:
        ranks = start.start(arguments.device, [own | variables for own in start.of_torch()])
        print_head("us: median (least)", *columns, f"{peer} / lightcc")
        for name, request in requests:
            answers = [it["times"] for it in ranks.ask({**request, "rounds": arguments.rounds})]
            times = {
                way: [max(of_ranks) for of_ranks in zip(*(it[way] for it in answers), strict=True)]
                for way in answers[0]
            }
            cells = [times_text(times[way], 1e-6) if way in times else "" for way in columns]
            ratio = statistics.median(times[peer]) / statistics.median(times["lightcc"])
            print_row(name, *cells, f"{ratio:.3g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
