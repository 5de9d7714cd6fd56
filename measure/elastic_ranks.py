"""What a rank of measure/elastic.py runs: `elastic_ranks.py WAY FOLDER`.

The same small network in all ways, on the same data. Each rank writes a line to its own file in
FOLDER when it has finished a step: time, step, world's size, and how often it has begun to train.
Every `COMMIT_STEPS` steps the state is committed, or written to a checkpoint. Ranks end at the same
step once FOLDER has a file `stop`, and write a digest of their parameters.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

COMMIT_STEPS = 10
# For lightcc's ranks: what parameters and Adam's state take, and the time between init() and
# training, in which scripts make models and read data.
STATE_BYTES = float(os.environ.get("BENCH_MEGABYTES", "0")) * 1e6
READY_S = float(os.environ.get("BENCH_READY", "0"))
BATCH = 32
# A step takes this, as an accelerator's work would: ranks share two cores.
COMPUTE_S = 0.02


def make_model() -> nn.Module:
    """Returns the network, the same on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


class Large(nn.Module):
    """Many parameters, each of which has a gradient in each step."""

    def __init__(self, inner: nn.Module) -> None:
        """Adds parameters to a network."""
        super().__init__()
        count = round(STATE_BYTES / 3 / (4 << 20))  # Adam has two values for each.
        self.inner = inner
        self.large = nn.ParameterList(torch.randn(1 << 20) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the network's values."""
        values: torch.Tensor = self.inner(x)
        for it in self.large:
            values = values + it.mean()
        return values


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    """Returns the loss of a step, whose data does not depend on the rank."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, 64, generator=generator)
    time.sleep(COMPUTE_S)
    return nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))


class Notes:
    """The file of this rank."""

    def __init__(self, folder: Path) -> None:
        """Opens it."""
        self._folder = folder
        self._file = (folder / f"steps.{os.getpid()}").open("a", buffering=1)
        self.begun = 0

    def finished(self, step: int, size: int) -> None:
        """Notes that a step has been finished."""
        self._file.write(f"{time.monotonic()} {step} {size} {self.begun}\n")

    def wants_to_stop(self) -> torch.Tensor:
        """Returns 1 if the benchmark has asked for the end."""
        return torch.tensor([float((self._folder / "stop").exists())])

    def end(self, model: nn.Module) -> None:
        """Notes what the parameters are at the end."""
        digest = hashlib.sha256()
        for value in model.state_dict().values():
            digest.update(value.numpy().tobytes())
        path = self._folder / f"end.{os.getpid()}"
        path.with_name(f"new.{os.getpid()}").write_text(digest.hexdigest())
        path.with_name(f"new.{os.getpid()}").rename(path)


def train_with_lightcc(folder: Path, recovery: str) -> None:
    """Trains under `lightccrun --min-np`; a training that rolls forward commits each step."""
    import lightcc.torch as hvd

    commit_steps = 1 if recovery == "forward" else COMMIT_STEPS
    model: nn.Module = make_model()
    notes = Notes(folder)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if STATE_BYTES:
        model = Large(model)
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    hvd.init()
    time.sleep(READY_S)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, step=0)

    @hvd.elastic.run(recovery=recovery)
    def train(state: Any) -> None:
        notes.begun += 1
        while not hvd.allreduce(notes.wants_to_stop(), op=hvd.Max, name="stop").item():
            optimizer.zero_grad()
            loss_of(model, state.step).backward()
            optimizer.step()
            state.step += 1
            notes.finished(state.step, hvd.size())
            if state.step % commit_steps == 0:
                state.commit()

    train(state)
    notes.end(model)


def train_with_torchrun(folder: Path) -> None:
    """Trains under torchrun, which starts all ranks anew after each change."""
    from torch import distributed as dist

    notes, path = Notes(folder), folder / "checkpoint.pt"
    module = make_model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    dist.init_process_group("gloo")
    step = 0
    if path.exists():
        saved = torch.load(path)
        module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    model = nn.parallel.DistributedDataParallel(module)
    notes.begun += 1
    while True:
        stop = notes.wants_to_stop()
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop.item():
            break
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        step += 1
        notes.finished(step, dist.get_world_size())
        if step % COMMIT_STEPS == 0 and dist.get_rank() == 0:
            saved = {"model": module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(saved | {"step": step}, path.with_suffix(".new"))
            path.with_suffix(".new").rename(path)
    notes.end(module)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "torchrun":
        train_with_torchrun(Path(sys.argv[2]))
    else:
        train_with_lightcc(Path(sys.argv[2]), sys.argv[1])
