"""Measures trainings over a slow link with a delay: the time of a step, and the time to a loss.

    python measure/slow_links.py --link 100m --delay 25ms [--ways WAY ...]     # as root
    python measure/slow_links.py --link 100m --delay 25ms --parameters 100e6 --ranks 2

The first command trains the transformer of `convergence_tasks` in each way, from the same weights
on the same samples. Ways with local steps combine gradients of all ranks in a first fifth, and then
every 15 steps how far hosts have come. The clock stands still while the test is measured, every 75
steps. torch's ways are on gloo; the last one needs torchft beside lightcc.

The second emulates the computing: a step sleeps, and its gradients, in tensors of a million, are
real memory. What local steps change is put into the weights while the clock stands still.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
import sys
import time
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as post_local
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer

import lightcc.torch as hvd
import ranks
from convergence import make_optimizer, make_schedule
from convergence_tasks import transformer
from lightcc._low_communication import EVERY, FIFTH

TENSOR, COMPUTE_S = 1_000_000, 0.03  # What is emulated.
BY_STEP = {"dense": hvd.Compression.none, "int4 every step": hvd.Compression.int4}
BY_ROUND: dict[str, dict[str, Any]] = {
    "local steps, int4": {},
    "the same, beside a step": {"overlap": True},
    "local steps, 5% in 2 bits": {"compression": hvd.Compression.topk(0.05, values="2bit")},
}
TORCHFT = "DDP, then DiLoCo of torchft"
WAYS = (*BY_STEP, *BY_ROUND, "DDP, then PostLocalSGDOptimizer", TORCHFT)


class Meter:
    """Adds up seconds, processor seconds and bytes of this host in `with` blocks."""

    def __init__(self) -> None:
        """Stands at 0."""
        self.seconds = self.processor_s = self.sent = 0.0

    def _add(self, sign: int) -> None:
        self.seconds += sign * time.perf_counter()
        self.processor_s += sign * time.process_time()
        self.sent += sign * ranks.bytes_sent()

    def __enter__(self) -> Meter:  # noqa: PYI034  Self needs Python 3.11.
        self._add(-1)
        return self

    def __exit__(self, *_: object) -> None:
        self._add(1)


def on_lightcc(way: str, model: nn.Module, optimizer: Any, dense_steps: int) -> Any:
    """Returns a model's optimizer on all ranks."""
    named = [(f"{way}.{name}", p) for name, p in model.named_parameters()]
    if way in BY_STEP:
        return hvd.DistributedOptimizer(optimizer, named, BY_STEP[way])
    options = {"dense_compression": hvd.Compression.int4, **BY_ROUND[way]}
    return hvd.LocalSteps(optimizer, named, dense_steps=dense_steps, **options)


def on_gloo(
    way: str, model: nn.Module, optimizer: Any, dense_steps: int, addresses: list[str]
) -> tuple[nn.Module, Any, Any]:
    """Returns the model, its optimizer, and what begins the local steps."""
    host, _ = dist.new_subgroups(dist.get_world_size() // len(addresses))
    ddp = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    state = post_local.PostLocalSGDState(None, host, dense_steps)
    ddp.register_comm_hook(state, post_local.post_localSGD_hook)
    if way != TORCHFT:
        averager = PeriodicModelAverager(EVERY, dense_steps + EVERY - 1)
        return ddp, PostLocalSGDOptimizer(optimizer, averager), lambda: None
    rank, local, address = dist.get_rank(), dist.get_rank(host), addresses[0]
    torchft, port, lighthouse = importlib.import_module("torchft"), 29600, 29700
    kept: list[Any] = []  # Ports are free, as each host has a namespace.
    if rank == 0:
        server = importlib.import_module("torchft.coordination").LighthouseServer
        kept.append(server(bind=f"[::]:{lighthouse}", min_replicas=len(addresses)))
    own = addresses[rank // dist.get_world_size(host)]
    if local == 0:
        store = dist.TCPStore(own, port, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        kept.append(store)
    dist.barrier()
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(),
        load_state_dict=None,
        state_dict=None,
        min_replica_size=len(addresses),
        use_async_quorum=False,
        rank=local,
        world_size=dist.get_world_size(host),
        store_addr=own,
        store_port=port,
        lighthouse_addr=f"http://{address}:{lighthouse}",
        replica_id=own,
        hostname=own,
        init_sync=False,
    )
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    diloco = importlib.import_module("torchft.local_sgd").DiLoCo
    begin = lambda: kept.append(diloco(manager, [model], optimizer, outer, EVERY).__enter__())  # noqa: E731
    return ddp, optimizer, begin


def train(world: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Trains in one way; returns seconds, bytes, and the losses of this rank's share."""
    way, steps, size = request["way"], request["steps"], request["ranks"]
    dense_steps, task = steps // FIFTH, replace(transformer(), steps=steps)
    torch.manual_seed(0)
    model: Any = task.make_model()
    adamw = make_optimizer(task, model)
    if world is dist:
        rank = dist.get_rank()
        module, optimizer, begin = on_gloo(way, model, adamw, dense_steps, request["addresses"])
    else:
        rank = hvd.rank()
        module, optimizer, begin = model, on_lightcc(way, model, adamw, dense_steps), lambda: None
    schedule = make_schedule(task, adamw if world is dist else optimizer)
    samples = torch.Generator().manual_seed(0)
    test = [part[rank::size] for part in task.test]
    dense, after = Meter(), Meter()
    processor_s: dict[bool, list[float]] = {True: [], False: []}
    curve = []
    for step in range(steps):
        mine = torch.randint(len(task.train[1]), (task.batch,), generator=samples)[rank::size]
        if step == dense_steps:
            begin()
        meter = dense if step < dense_steps else after
        with meter:
            optimizer.zero_grad()
            logits = module(task.train[0][mine])
            nn.functional.cross_entropy(logits, task.train[1][mine].flatten()).backward()
            with Meter() as of_step:
                optimizer.step()
            schedule.step()
        if meter is after:
            processor_s[(step + 1) % EVERY == 0].append(of_step.processor_s)
        if (step + 1) % (FIFTH * EVERY) == 0:
            if way in BY_ROUND:
                with meter:
                    optimizer.outer_step()  # Ends one that is under way, and begins none.
            with torch.no_grad():
                loss = task.measure(model(test[0]), test[1].flatten()) / task.test[1].numel()
            curve.append((dense.seconds + after.seconds, float(loss)))
            world.barrier()
    return {
        "dense_s": dense.seconds / dense_steps,
        "after_s": after.seconds / (steps - dense_steps),
        "sent": dense.sent + after.sent,
        "outer_s": statistics.median(processor_s[True]) - statistics.median(processor_s[False]),
        "curve": curve,
    }


class Emulated(torch.optim.SGD):
    """Sleeps for as long as an accelerator would compute a step, with its update."""

    def step(self, closure: Any = None) -> Any:
        """Sleeps."""
        del closure
        time.sleep(COMPUTE_S)


@torch.no_grad()
def emulate(request: dict[str, Any]) -> dict[str, Any]:
    """Measures steps of one way after the dense phase, with computing that is emulated."""
    way, rounds = request["way"], request["rounds"]
    each, tensors = 1 if way in BY_STEP else EVERY, int(request["parameters"]) // TENSOR
    model: Any = nn.ParameterList(torch.zeros(TENSOR) for _ in range(tensors))
    for p in model:
        p.grad = 1e-3 * torch.randn_like(p)
    optimizer = on_lightcc(way, model, Emulated(model), 0)
    total, outer, steps = Meter(), Meter(), each * rounds
    for step in range(-each, steps):  # The first round is not counted.
        is_last = step % each == each - 1
        for p in model if is_last and way in BY_ROUND else ():
            p.add_(p.grad)
        hvd.barrier()
        with total if step >= 0 else Meter(), outer if step >= 0 and is_last else Meter():
            optimizer.step()
    outer_s = outer.processor_s / rounds
    return {"after_s": total.seconds / steps, "sent": total.sent / steps, "outer_s": outer_s}


def losses_of(found: list[Any]) -> list[float]:
    """Returns the loss at each point, of which each rank has measured its share."""
    return [sum(loss for _, loss in at) for at in zip(*(it["curve"] for it in found), strict=True)]


def show(way: str, found: list[Any], first: list[Any], rate: float) -> None:
    """Prints a row, of what ranks answered; `first` has the answers of the first way."""
    ms, sent = found[0]["after_s"] * 1e3, max(it["sent"] for it in found)
    cells = [f"{ms:.0f}", f"{sent / 1e6:.3g}"]
    if "curve" in found[0]:
        losses, goal = losses_of(found), losses_of(first)[-1]
        at_s = [seconds for seconds, _ in found[0]["curve"]]
        cells = [f"{found[0]['dense_s'] * 1e3:.0f}", *cells, f"{at_s[-1]:.0f}"]
        cells.append(f"{losses[-1]:.4f} ({losses[-1] / goal - 1:+.1%})")
        for by in (1.0, 1.01):
            reached = (s for s, it in zip(at_s, losses, strict=True) if it <= goal * by)
            cells.append(f"{next(reached, math.inf):.0f}")
    else:
        cells += [f"{sent * 8e3 / rate:.0f}", f"{first[0]['after_s'] * 1e3 / ms:.1f}"]
    outer = "" if way in BY_STEP else f"{sum(it['outer_s'] for it in found):.2g}"
    ranks.print_row(way, *cells, outer)


def measure(start: ranks.Starter, arguments: argparse.Namespace) -> None:
    """Has all ranks answer for each way, one way after another."""
    columns = ["ms a dense step", "ms after", "MB sent", "s", "loss", "s to dense's", "to +1%"]
    if arguments.parameters:
        columns = ["ms a step", "MB sent", "ms on the link", "times as fast"]
    ranks.print_head("way", *columns, "CPU s of an outer step")
    groups: dict[str, ranks.Ranks] = {}
    first: Any = None
    small = {"LIGHT_TOPK_THRESHOLD": "0"}  # The model's tensors are.
    for way in arguments.ways:
        kind = "lightcc" if way in (*BY_STEP, *BY_ROUND) else "gloo"
        if kind not in groups:
            variables = start.of_lightcc() if kind == "lightcc" else start.of_torch()
            groups[kind] = start.start(kind, [it | small for it in variables])
        asked = {it: getattr(arguments, it) for it in ("steps", "ranks", "parameters", "rounds")}
        addresses = start.cluster.addresses if start.cluster else []
        found = groups[kind].ask({"way": way, "addresses": addresses, **asked})
        first = first or found
        show(way, found, first, arguments.link)


def main() -> int:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ranks.add_rank_arguments(parser, hosts=2, ranks=4, rounds=2)
    parser.add_argument("--steps", type=int, default=1500, help="a multiple of 75")
    parser.add_argument("--parameters", type=float, help="emulate the computing of so many")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY")
    arguments = parser.parse_args()
    if arguments.serve:
        torch.set_num_threads(1)
        world: Any = hvd if arguments.serve == "lightcc" else dist
        hvd.init() if world is hvd else dist.init_process_group("gloo")
        ranks.serve(lambda it: emulate(it) if it["parameters"] else train(world, it))
        return 0
    if arguments.hosts < 2 or arguments.steps % (FIFTH * EVERY):
        parser.error("--hosts is at least 2, and --steps a multiple of 75")
    if arguments.parameters:
        arguments.ways = ["int4 every step", *BY_ROUND]
    elif importlib.util.find_spec("torchft") is None:
        arguments.ways.remove(TORCHFT)
    with ranks.starter(__file__, arguments) as start:
        begin, cluster = time.monotonic(), start.cluster
        measure(start, arguments)
        if cluster:
            share = cluster.switch_processor_s() / (time.monotonic() - begin)
            print(f"\n{cluster.describe()}; the switch took {share:.1%} of a processor")
    return 0


if __name__ == "__main__":
    sys.exit(main())
