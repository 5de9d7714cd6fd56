"""What a rank of tools/chaos_elastic.py runs: `chaos_ranks.py FOLDER STORY`, the latter as JSON.

Ranks add up what is the same on any number of ranks, although each gives something else: so the sum
over all steps is known, whoever took part. Two tensors travel dense, and as top-k lists that have
room for all that is not zero. A third one is top-k with large residuals, where only replicas can be
compared with one another. Ranks of torch take samples from an `ElasticSampler`, and count them in
the state: after an epoch all must have been seen, and none twice but to make it even.

A rank writes into `notes.WORKER` what it does, a line for each event. It goes on until FOLDER has a
file `stop`, and takes long for each step while there is a file `lag.WORKER`. SIGUSR1 has it write
its stacks to `stacks.PID`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import lightcc as hvd

if TYPE_CHECKING:
    from collections.abc import Iterator

ELEMENTS = 1500
STEP_S = 0.01
LAG_S = 0.3
#: Replicas are compared as users would do it, too.
CHECK_COMMITS = 3
#: Every so manyth element of the second tensor is not zero.
SPARSE = 100
SAMPLES = 80
MAX_RANKS = 10  # Jobs with torch have no more.


def bases(step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns what a step adds to each of the three tensors."""
    dense = np.arange(ELEMENTS, dtype=np.float64) % 7 + step
    sparse = np.zeros(ELEMENTS, np.float32)
    sparse[step % SPARSE :: SPARSE] = step % 50 + 1
    rest = np.random.default_rng(step).standard_normal(ELEMENTS).astype(np.float32)
    return dense, sparse, rest


def expected(steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns what the first two tensors are after so many steps."""
    dense, sparse = np.zeros(ELEMENTS), np.zeros(ELEMENTS, np.float32)
    for step in range(steps):
        more = bases(step)
        dense += more[0]
        sparse += more[1]
    return dense, sparse


def share(base: np.ndarray) -> np.ndarray:
    """Returns what this rank gives: over all ranks that is `base`, as many times as ranks."""
    away = 2 * hvd.rank() - (hvd.size() - 1)
    return np.where(base != 0, base + base.dtype.type(away), base)


def part_of(base: np.ndarray) -> np.ndarray:
    """Returns what this rank gives: over all ranks that is `base`."""
    others = hvd.size() * (hvd.size() - 1) // 2
    mine = hvd.rank() or base - base.dtype.type(others)
    return np.where(base != 0, mine, base).astype(base.dtype)


class Notes:
    """The file of this rank."""

    def __init__(self, folder: Path) -> None:
        """Opens it, and says who writes it."""
        self.folder = folder
        self.worker = os.environ["LIGHT_WORKER"]
        self._file = (folder / f"notes.{self.worker}").open("a", buffering=1)
        self.say("start", os.getpid(), os.environ["LIGHT_HOSTNAME"])

    def compute(self) -> None:
        """Takes as long as a step does."""
        is_slow = (self.folder / f"lag.{self.worker}").exists()
        time.sleep(LAG_S if is_slow else STEP_S)

    def say(self, what: str, *words: object) -> None:
        """Writes one line."""
        self._file.write(" ".join([what, f"{time.monotonic():.4f}", *map(str, words)]) + "\n")


def step_of(state: Any, notes: Notes, compression: Any) -> tuple[np.ndarray, ...]:
    """Makes one step; returns what the tensors become."""
    dense, sparse, rest = bases(state.step)
    size = hvd.size()
    sums = hvd.allreduce(share(dense), op=hvd.Sum, name="dense") / size
    if not np.array_equal(sums, dense):
        notes.say("wrong", "dense", state.step)
    lists = hvd.allreduce(share(sparse), op=hvd.Sum, name="sparse", compression=compression) / size
    if not np.array_equal(lists, sparse):
        notes.say("wrong", "sparse", state.step)
    sent = hvd.allreduce(share(rest), op=hvd.Sum, name="rest", compression=compression)
    return state.dense + sums, state.sparse + lists, state.rest + sent


def go_on(notes: Notes, state: Any, check: float, commit_steps: int) -> bool:
    """Ends a step: commits, compares replicas by a number; returns whether there is another one."""
    state.step += 1
    notes.say("step", hvd.basics.current_epoch().number, state.step, hvd.size())
    if state.step % commit_steps == 0:
        state.commit()
    wish = np.array([not (notes.folder / "stop").exists(), check, -check])
    wish = hvd.allreduce(wish, op=hvd.Max, name="more")
    if wish[1] != -wish[2]:
        notes.say("wrong", "replicas", state.step)
    return bool(wish[0])


def take_samples(notes: Notes, state: Any) -> Iterator[None]:
    """Takes one sample in each step, as an epoch does, and counts those of all ranks."""
    while True:
        for index, mine in enumerate(state.sampler):
            taken = hvd.allgather(np.array([mine]), name="samples")
            state.sampler.record_batch(index, 1)
            state.seen = state.seen + np.bincount(taken, minlength=SAMPLES)
            yield
        if state.seen.min() < 1 or state.seen.sum() >= SAMPLES + MAX_RANKS:
            notes.say("wrong", "epoch", state.step)
        state.sampler.set_epoch(state.sampler.epoch + 1)
        state.seen = np.zeros(SAMPLES, np.int64)


def options_of(story: dict[str, Any]) -> dict[str, Any]:
    """Returns how the training function is run."""
    return {
        "recovery": str(story["recovery"]),
        "check_replicas": CHECK_COMMITS,
        "keep_commits": int(story["keep"]),
    }


def train_with_torch(notes: Notes, story: dict[str, Any]) -> None:
    """Trains a model whose gradients are the shares of the ranks, and whose optimizer adds up."""
    import torch

    from lightcc import torch as hvd_torch

    torch.set_num_threads(1)
    model = torch.nn.ParameterDict(
        {
            "dense": torch.nn.Parameter(torch.zeros(ELEMENTS, dtype=torch.float64)),
            "sparse": torch.nn.Parameter(torch.zeros(ELEMENTS)),
        }
    )
    hvd.init()
    topk = hvd_torch.Compression.topk(0.1) if story["topk"] else hvd_torch.Compression.none
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = hvd_torch.DistributedOptimizer(
        optimizer, model.named_parameters(), compression=topk, op=hvd.Sum
    )
    state: Any = hvd_torch.elastic.TorchState(
        model,
        optimizer,
        sampler=hvd_torch.elastic.ElasticSampler(range(SAMPLES)),
        seen=np.zeros(SAMPLES, np.int64),
        step=0,
    )

    @hvd_torch.elastic.run(**options_of(story))
    def loop(state: Any) -> None:
        notes.say("begin", hvd.basics.current_epoch().number, state.step, hvd.size())
        samples = take_samples(notes, state)
        more = True
        while more:
            notes.compute()
            next(samples)
            optimizer.zero_grad()
            given = [torch.from_numpy(part_of(base)) for base in bases(state.step)[:2]]
            loss = sum((model[name] * g).sum() for name, g in zip(model, given, strict=True))
            loss.backward()
            optimizer.step()
            check = float(sum(value.detach().sum() for value in model.values()))
            more = go_on(notes, state, check, int(story["commit_steps"]))

    loop(state)
    dense, sparse = expected(state.step)
    tensors = [model[name].detach().numpy() for name in model]
    # All gradients are compressed, or none.
    is_right = story["topk"] or np.array_equal(-tensors[0], dense)
    if not (is_right and np.array_equal(-tensors[1], sparse)):
        notes.say("wrong", "result", state.step)
    notes.say("result", state.step)


def train(notes: Notes, story: dict[str, Any]) -> None:
    """Trains until it is told to stop."""
    topk = hvd.Compression.topk(0.1) if story["topk"] else hvd.Compression.none
    hvd.init()
    state: Any = hvd.elastic.ObjectState(
        hvd.broadcast_object,
        hvd.rank,
        step=0,
        dense=np.zeros(ELEMENTS),
        sparse=np.zeros(ELEMENTS, np.float32),
        rest=np.zeros(ELEMENTS, np.float32),
    )

    @hvd.elastic.run(**options_of(story))
    def loop(state: Any) -> None:
        notes.say("begin", hvd.basics.current_epoch().number, state.step, hvd.size())
        more = True
        while more:
            notes.compute()
            state.dense, state.sparse, state.rest = step_of(state, notes, topk)
            more = go_on(notes, state, float(state.rest.sum()), int(story["commit_steps"]))

    loop(state)
    dense, sparse = expected(state.step)
    if not (np.array_equal(state.dense, dense) and np.array_equal(state.sparse, sparse)):
        notes.say("wrong", "result", state.step)
    notes.say("result", state.step)


if __name__ == "__main__":
    with contextlib.ExitStack() as stack:
        folder = Path(sys.argv[1])
        stacks = stack.enter_context((folder / f"stacks.{os.getpid()}").open("w"))
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        about = json.loads(sys.argv[2])
        (train_with_torch if about["torch"] else train)(Notes(folder), about)
