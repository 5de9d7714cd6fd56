"""Measures steps of sharded training between hosts: FSDP2 and HSDP, by gloo and by lightcc.

Usage: sharded.py [--ranks 4] [--hosts 2 --link 1g] [--rounds 5]

A transformer of 16.8 million parameters makes a forward and a backward pass over 16 words. Ways
take turns in one run. Before and after, all of them must have the gradients of FSDP2 on gloo: exact
ones within rounding, compressed ones by the mean of 16 steps, as feedback makes up for a step's
error. `alone` exchanges nothing between hosts. Bytes are those of a host's link, with all headers.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from lightcc.torch import fsdp
from ranks import add_rank_arguments, print_head, print_row, serve, starter, times_text

LAYERS, WIDTH, WORDS = 5, 512, 1024
# Each way's compression, the steps of a check, and its limit as a share of the gradients' norm.
WAYS: dict[str, tuple[str | None, int, float]] = {
    "FSDP2 on gloo": (None, 1, 0.0),
    "HSDP on gloo": (None, 1, 1e-6),
    "FSDP2 on lightcc": (None, 1, 1e-6),
    "HSDP on lightcc": (None, 1, 1e-6),
    "HSDP, int8": ("int8", 16, 0.002),
    "HSDP, int4": ("int4", 16, 0.02),
    "HSDP, top-k at 1%": ("topk", 16, 0.7),
    "alone": (None, 1, 2.0),
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
        self._meshes: dict[str, Any] = {
            "FSDP2 on gloo": DeviceMesh.from_group(every, "cpu"),
            "HSDP on gloo": DeviceMesh.from_group(pair, "cpu", hosts, mesh_dim_names=("r", "s")),
            "FSDP2 on lightcc": None,
        }
        self._x = torch.randint(0, WORDS, (16,), generator=torch.Generator().manual_seed(rank))
        self._models = {way: self._model(way) for way in WAYS}

    def _model(self, way: str) -> Any:
        torch.manual_seed(1)
        layers = [nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, 0.0) for _ in range(LAYERS)]
        model = nn.Sequential(nn.Embedding(WORDS, WIDTH), *layers, nn.Linear(WIDTH, WORDS))
        for module in (*layers, model):
            fully_shard(module, mesh=self._meshes.get(way, self._mesh["shard"]))
        if way not in self._meshes and way != "alone":
            fsdp.replicate(model, self._mesh["replicate"], gradients=WAYS[way][0], name=way)
        return model

    def _step(self, way: str) -> list[Any]:
        self._models[way].zero_grad()
        nn.functional.cross_entropy(self._models[way](self._x), self._x).backward()
        return [parameter.grad for parameter in self._models[way].parameters()]

    def _check(self) -> None:
        right: Any = None
        for way, (_, steps, limit) in WAYS.items():
            total = self._step(way)
            for _ in range(steps - 1):
                total = [a + b for a, b in zip(total, self._step(way), strict=True)]
            mean = torch.cat([it.full_tensor().flatten() for it in total]) / steps
            right = mean if right is None else right
            error = float((mean - right).norm() / right.norm())
            if not error <= limit:
                msg = f"{way}: gradients are off by {error:.2g} of their norm"
                raise RuntimeError(msg)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Measures steps of all ways in turns: seconds of each, and bytes of this rank's host."""
        self._check()
        found: dict[str, Any] = {way: {"seconds": [], "sent": 0} for way in WAYS}
        for _ in range(request["rounds"]):
            for way, of_way in found.items():
                self._step(way)
                dist.barrier()
                before, begin = bytes_sent(), time.perf_counter()
                self._step(way)
                of_way["seconds"].append(time.perf_counter() - begin)
                dist.barrier()
                of_way["sent"] = bytes_sent() - before
        self._check()
        return found


def bytes_sent() -> int:
    """Returns what this host has sent to others."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return sum(int(it.split()[9]) for it in lines if it.strip().startswith("eth0:"))


def main() -> int:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_rank_arguments(parser, hosts=2, ranks=4, rounds=5)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(Rank().answer)
        return 0
    with starter(__file__, arguments) as start:
        answers = start.start("rank", start.of_torch()).ask({"rounds": arguments.rounds})
    print_head("way", "ms: median (least)", "gloo / it", "MB from a host")
    reference = 0.0
    for way in WAYS:
        times = [max(it) for it in zip(*(a[way]["seconds"] for a in answers), strict=True)]
        reference = reference or statistics.median(times)
        sent = max(it[way]["sent"] for it in answers) / 1e6
        print_row(
            way, times_text(times), f"{reference / statistics.median(times):.3g}", f"{sent:.3g}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
