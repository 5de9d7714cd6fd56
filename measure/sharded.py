"""Measures steps of sharded training between hosts: FSDP2 and HSDP, by gloo and by lightcc.

Usage: sharded.py [--ranks 4] [--hosts 2 --link 1g] [--rounds 5] [--layers 33 --width 512] [--ways]

A transformer makes a forward and a backward pass over 16 words; modules prefetch the next one's
weights. Ways take turns in one run. Before, all of them must have the gradients of FSDP2 on gloo:
exact ones within rounding, compressed ones by the mean of some steps, as feedback makes up for a
step's error. `alone` exchanges nothing between hosts.

Bytes are those of a host's link, with all headers. Processor time is that of all ranks. `waits` is
by how much a step is longer than `alone`, as a share of the time that its bytes take on the link:
the rest was beside computing. One way alone is printed with the most memory of a rank.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from lightcc.torch import fsdp
from ranks import add_rank_arguments, bytes_sent, print_head, print_row, serve, starter, times_text

WORDS = 1024
# Each way's compression, the steps of a check, and its limit as a share of the gradients' norm.
WAYS: dict[str, tuple[dict[str, Any], int, float]] = {
    "FSDP2 on gloo": ({}, 1, 0.0),
    "HSDP on gloo": ({}, 1, 1e-6),
    "FSDP2 on lightcc": ({}, 1, 1e-6),
    "FSDP2, int8 and int8": ({"weights": "int8", "gradients": "int8"}, 2, 0.1),
    "FSDP2, int8 and int4": ({"weights": "int8", "gradients": "int4"}, 4, 0.1),
    "FSDP2, int4 differences and int4": (
        {"weights": "int4", "gradients": "int4", "resident": True},
        4,
        0.1,
    ),
    "HSDP on lightcc": ({"gradients": None}, 1, 1e-6),
    "HSDP, int8": ({"gradients": "int8"}, 4, 0.01),
    "HSDP, int4": ({"gradients": "int4"}, 4, 0.06),
    "HSDP, top-k at 1%": ({"gradients": "topk"}, 16, 0.7),
    "alone": ({}, 1, 2.0),
}


class Rank:
    """One rank, with a model for each way."""

    def __init__(self) -> None:
        """Joins the other ranks."""
        torch.set_num_threads(1)
        dist.init_process_group("lightcc")
        self._mesh, rank = fsdp.host_mesh(), dist.get_rank()
        hosts = self._mesh.mesh
        rows = [*hosts.T.tolist(), *hosts.tolist(), list(range(hosts.numel()))]
        made = [(row, dist.new_group(row, backend="gloo")) for row in rows]
        *pair, every = (group for row, group in made if rank in row)
        self._on_gloo: dict[str, Any] = {
            "FSDP2 on gloo": DeviceMesh.from_group(every, "cpu"),
            "HSDP on gloo": DeviceMesh.from_group(pair, "cpu", hosts, mesh_dim_names=("r", "s")),
        }
        self._x = torch.randint(0, WORDS, (16,), generator=torch.Generator().manual_seed(rank))
        self._models: dict[str, Any] = {}

    def _model(self, way: str, count: int, width: int) -> Any:
        torch.manual_seed(1)
        layers = [nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0) for _ in range(count)]
        model = nn.Sequential(nn.Embedding(WORDS, width), *layers, nn.Linear(width, WORDS))
        mesh: Any = self._on_gloo.get(way)
        if mesh is None and not way.startswith("FSDP2"):
            mesh = self._mesh["shard"]
        for module in (*layers, model):
            fully_shard(module, mesh=mesh)
        order: list[Any] = [model, *layers]
        for module, following in itertools.pairwise(order):
            module.set_modules_to_forward_prefetch([following])
        options = WAYS[way][0]
        if way.startswith("FSDP2") and options:
            fsdp.compress(model, **options, name=way)
        elif options:
            fsdp.replicate(model, self._mesh["replicate"], **options, name=way)
        return model

    def _step(self, way: str) -> list[Any]:
        self._models[way].zero_grad()
        nn.functional.cross_entropy(self._models[way](self._x), self._x).backward()
        return [parameter.grad for parameter in self._models[way].parameters()]

    def _check(self) -> None:
        right: Any = None
        for way in self._models:
            _, steps, limit = WAYS[way]
            total: Any = self._step(way)
            for _ in range(steps - 1):
                total = [a + b for a, b in zip(total, self._step(way), strict=True)]
            mean = torch.cat([it.full_tensor().flatten() for it in total]) / steps
            total = self._models[way].zero_grad()  # Large models need the memory.
            right = mean if right is None else right
            error = float((mean - right).norm() / right.norm())
            if not error <= limit:
                msg = f"{way}: gradients are off by {error:.2g} of their norm"
                raise RuntimeError(msg)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Measures steps of all ways in turns: seconds of each, and bytes of this rank's host."""
        for way in request["ways"]:
            self._models[way] = self._model(way, request["layers"], request["width"])
        if len(self._models) > 1:
            self._check()
        found: dict[str, Any] = {
            way: {"seconds": [], "processor": [], "sent": 0} for way in self._models
        }
        for _ in range(request["rounds"]):
            for way, of_way in found.items():
                self._step(way)
                dist.barrier()
                sent, processor, begin = bytes_sent(), time.process_time(), time.perf_counter()
                self._step(way)
                of_way["seconds"].append(time.perf_counter() - begin)
                of_way["processor"].append(time.process_time() - processor)
                self._models[way].zero_grad()
                dist.barrier()
                of_way["sent"] = bytes_sent() - sent
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return {"ways": found, "most_mb": most}


def main() -> int:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_rank_arguments(parser, hosts=2, ranks=4, rounds=5)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), metavar="WAY")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(Rank().answer)
        return 0
    with starter(__file__, arguments) as start:
        asked = {it: getattr(arguments, it) for it in ("ways", "layers", "width", "rounds")}
        answers = start.start("rank", start.of_torch()).ask(asked)
    medians = {}
    print_head("way", "ms: median (least)", "gloo / it", "processor ms", "MB from a host", "waits")
    for way in arguments.ways:
        ranks = [it["ways"][way] for it in answers]
        times = [max(it) for it in zip(*(it["seconds"] for it in ranks), strict=True)]
        medians[way] = statistics.median(times), times, ranks
    first, alone = medians[arguments.ways[0]][0], medians.get("alone", (0.0,))[0]
    for way, (median, times, ranks) in medians.items():
        processor = sum(statistics.median(it["processor"]) for it in ranks) * 1e3
        sent = max(it["sent"] for it in ranks) / 1e6
        waits = (median - alone) / (sent * 8e6 / arguments.link) if alone and sent > 1 else 0.0
        print_row(
            way,
            times_text(times),
            f"{first / median:.3g}",
            f"{processor:.0f}",
            f"{sent:.3g}",
            f"{waits:.2f}" if waits else "",
        )
    if len(arguments.ways) == 1:
        print(f"\nmost memory of a rank: {max(it['most_mb'] for it in answers):.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
