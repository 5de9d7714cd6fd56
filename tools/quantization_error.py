"""Measures by how much int8, fp8 and int4 compression change a gradient in one step.

    python tools/quantization_error.py [--steps 200]

Two ranks are two hosts. One has the data and the other zeros, so that their sum is what the first
one has sent. Data are drawn from distributions, or are gradients of the transformer of
tools/convergence.py, of one batch of 16, after so many steps of AdamW. Beside what lightcc sends
stands E5M2, which it does not have: the same blocks by torch's float8_e5m2.

The first table has the mean squared error as a share of the mean square. The second one has the
median of what is wrong with an element, as a share of that element, and the third one the elements
that are sent as zero, though they are not.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import lightcc.torch as hvd

WAYS: dict[str, Any] = {
    "int8": hvd.Compression.int8,
    "fp8": hvd.Compression.fp8,
    "E5M2": None,
    "int4": hvd.Compression.int4,
}
BLOCK = 128
COUNT = 1 << 18
RATE = 6e-3


class Error(NamedTuple):
    """What compression does to some tensors."""

    energy: float  # Mean square of what is left, as a share of the mean square.
    median: float  # Of what is left of an element, as a share of it.
    zeros: float  # Share of the elements.


def gradients(steps: int) -> dict[str, list[torch.Tensor]]:
    """Returns the gradients of a transformer by kind of layer."""
    from convergence_tasks import TASKS

    task = TASKS["transformer"]()
    torch.manual_seed(0)
    model = task.make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    inputs, labels = task.train
    for step in range(steps + 1):
        if step > 0:
            optimizer.step()
        optimizer.zero_grad()
        chosen = torch.randint(len(inputs), (task.batch,))
        nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen].flatten()).backward()
    kinds: dict[str, list[torch.Tensor]] = {}
    for name, parameter in model.named_parameters():
        words = {"embedding": "embedding", "attn": "attention", "linear": "feed-forward"}
        kind = next((words[word] for word in words if word in name), "others")
        if parameter.dim() > 1 and parameter.grad is not None:
            kinds.setdefault(f"gradients, {kind}", []).append(parameter.grad.clone())
    return kinds


def drawn() -> dict[str, list[torch.Tensor]]:
    """Returns data from distributions."""
    torch.manual_seed(1)
    normal = torch.randn(COUNT)
    heavy = torch.distributions.StudentT(2.0).sample((COUNT,))
    return {
        "normal": [normal],
        "Student's t, 2 degrees of freedom": [heavy],
        "normal, each by 10^-u, u from 0 to 3": [normal * 10 ** (-3 * torch.rand(COUNT))],
        "normal, each by 10^-u, u from 0 to 6": [normal * 10 ** (-6 * torch.rand(COUNT))],
    }


def by_torch(x: torch.Tensor) -> torch.Tensor:
    """Returns `x` as E5M2 with a scale for each block, rounded up to the upper 16 bits."""
    flat = nn.functional.pad(x.flatten(), (0, -x.numel() % BLOCK)).view(-1, BLOCK)
    exact = flat.abs().amax(dim=1, keepdim=True) / torch.finfo(torch.float8_e5m2).max
    keys = (exact.contiguous().view(torch.int32) + 0xFFFF) & ~0xFFFF
    scales = keys.view(torch.float32)
    codes = torch.where(scales > 0, flat / scales, 0.0).to(torch.float8_e5m2)
    return (codes.float() * scales).flatten()[: x.numel()].view(x.shape)


def error_of(way: str, label: str, tensors: list[torch.Tensor]) -> Error:
    """Returns what a way does to tensors, each with nothing kept back before."""
    sent = []
    for index, x in enumerate(tensors):
        mine = x if hvd.rank() == 0 else torch.zeros_like(x)
        if WAYS[way] is None:
            sent.append(by_torch(x).flatten())
        else:
            name = f"{way}.{label}.{index}"
            sent.append(hvd.allreduce(mine, name=name, op=hvd.Sum, compression=WAYS[way]).flatten())
    x = torch.cat([tensor.flatten() for tensor in tensors]).double()
    left = x - torch.cat(sent).double()
    some = x != 0
    return Error(
        float(left.square().sum() / x.square().sum()),
        float((left[some] / x[some]).abs().median()),
        float((left[some] == x[some]).double().mean()),
    )


def measure(steps: int) -> None:
    """What each rank does; the first one writes tables."""
    os.environ["LIGHT_HOST_ID"] = os.environ["LIGHT_RANK"]
    os.environ["LIGHT_TOPK_THRESHOLD"] = "0"
    hvd.init()
    torch.set_num_threads(1)
    data = {**drawn(), **gradients(steps)}
    rows = {
        label: [error_of(way, label, tensors) for way in WAYS] for label, tensors in data.items()
    }
    if hvd.stats()["compressed_tensors"] == 0:
        msg = "nothing was compressed, so there is nothing to measure"
        raise RuntimeError(msg)
    if hvd.rank() == 0:
        for field, title in (
            ("energy", "mean squared error / mean square"),
            ("median", "error of an element, median"),
            ("zeros", "sent as zero"),
        ):
            lines = ["| " + " | ".join([title, *WAYS]) + " |", "|---" * (len(WAYS) + 1) + "|"]
            for label, errors in rows.items():
                cells = [f"{100 * getattr(error, field):.3g}%" for error in errors]
                lines.append("| " + " | ".join([label, *cells]) + " |")
            sys.stdout.write("\n".join(lines) + "\n\n")
    hvd.shutdown()


def main() -> int:
    """Does what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="of training before gradients")
    arguments = parser.parse_args()
    if "LIGHT_RANK" in os.environ:
        measure(arguments.steps)
        return 0
    launcher = str(Path(sys.executable).with_name("lightccrun"))
    command = [launcher, "-np", "2", "--no-prefix", sys.executable, *sys.argv]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
