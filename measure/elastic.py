"""Measures what faults and newcomers cost an elastic job, of lightcc and of torchrun.

Usage: elastic.py [--rounds 3] [--ways lightcc,forward,torchrun]
                 [--events rank,rank0,host,join] [--megabytes 0] [--ready 0]

Ranks train a small network (`elastic_ranks.py`); a step takes 20 ms, and the state is
committed, or written to a checkpoint, every tenth step. Two hosts are two agents of this machine:
`lightcc-worker` that has dialled in, or `torchrun` with the c10d rendezvous, as they are by
default.

Events, about step 35, half-way between two commits:

    rank    SIGKILL of the last of 4 ranks on one host
    rank0   SIGKILL of rank 0, likewise
    host    SIGKILL of an agent with its 4 of 8 ranks; later a new one joins
    join    a host of 1 rank joins one of 2; not torchrun. With `--megabytes` their state is so
            large, with `--ready` scripts take so many seconds between init() and training

The ways take turns, and the median of the rounds counts. A round fails unless all ranks hold the
same bits at the end, and unless the world had the sizes that it should have had.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lightcc.bench.peers import clean_environment
from ranks import free_port, print_head, print_row

RANKS = Path(__file__).resolve().parent / "elastic_ranks.py"
BIN = Path(sys.executable).parent
FIRST_STEPS = 35  # Half-way between two commits.
PATIENCE_S = 180.0
_RANK = re.compile(rb"\0(?:LIGHT_|HOROVOD_)?RANK=(\d+)")
ENVIRONMENT = {
    "LIGHT_SECRET": "of a benchmark on one machine",
    "OMP_NUM_THREADS": "1",
    # Else ranks of torch 2.13 that are started anew meet the addresses of those that died.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}


class Line(NamedTuple):
    """A finished step of a rank."""

    when: float
    step: int
    size: int
    life: tuple[str, int]  # The process, and how often it has begun to train.


@dataclass
class Job:
    """A running job, its agents by host, and what its ranks have noted."""

    folder: Path
    stack: contextlib.ExitStack
    settings: dict[str, str] = field(default_factory=dict)  # Variables of its ranks.
    agents: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, argv: list[str]) -> None:
        """Starts an agent or the launcher."""
        environment = clean_environment() | ENVIRONMENT | self.settings
        log = self.stack.enter_context((self.folder / f"log.{name}").open("ab"))
        process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log)
        self.stack.callback(self._kill, process)
        self.agents[name] = process

    def lines(self) -> list[Line]:
        """Returns all finished steps, by time."""
        found = []
        for path in self.folder.glob("steps.*"):
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    when, step, size, begun = line.split()
                    life = (path.suffix, int(begun))
                    found.append(Line(float(when), int(step), int(size), life))
        return sorted(found)

    def wait_for(self, size: int, after: float = 0.0, steps: int = 1) -> list[Line]:
        """Waits until worlds of `size` ranks have finished so many steps after a time."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            lines = self.lines()
            if len({it.step for it in lines if it.size == size and it.when > after}) >= steps:
                return lines
            time.sleep(0.05)
        logs = "".join(path.read_text()[-2000:] for path in self.folder.glob("log.*"))
        msg = f"no world of {size} ranks has finished {steps} steps:\n{logs}"
        raise RuntimeError(msg)

    def kill_host(self, name: str) -> float:
        """Kills an agent and its ranks; returns when."""
        process = self.agents.pop(name)
        victims = [*children(process.pid), process.pid]
        when = time.monotonic()
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        return when

    def end(self, size: int) -> None:
        """Has the ranks stop, and checks that they hold the same bits.

        Agents are not waited for: torchrun's wait minutes for one that was killed.
        """
        (self.folder / "stop").touch()
        until = time.monotonic() + PATIENCE_S
        while len(list(self.folder.glob("end.*"))) < size and time.monotonic() < until:
            time.sleep(0.05)
        digests = [path.read_text() for path in self.folder.glob("end.*")]
        if len(digests) != size or len(set(digests)) != 1:
            msg = f"{len(digests)} ranks ended, with {len(set(digests))} different replicas"
            raise RuntimeError(msg)

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            for pid in children(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.kill()
            process.wait()


def children(pid: int) -> list[int]:
    """Returns the descendants of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *children(child)]
    return found


def rank_of(pid: int) -> int:
    """Returns the rank with which a process was started; -1 if it is no rank."""
    try:
        words = b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return -1
    if str(RANKS) not in Path(f"/proc/{pid}/cmdline").read_text():
        return -1
    found = _RANK.search(words)
    return int(found[1]) if found else -1  # The agent of torchrun has none.


# -- How jobs are started -------------------------------------------------------------------------


def is_served(port: int) -> bool:
    """Returns whether somebody listens there."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


class Lightcc:
    """lightccrun, with workers that dial in where there are two hosts."""

    recovery = "rollback"

    def __init__(self, job: Job) -> None:
        """Prepares the way."""
        self._job = job
        self._command = [sys.executable, str(RANKS), self.recovery, str(job.folder)]
        self._port = free_port()

    def start_one_host(self, ranks: int) -> None:
        """Starts a job on one host."""
        flags = ["-np", str(ranks), "--min-np", "2"]
        self._job.start("launcher", [str(BIN / "lightccrun"), *flags, *self._command])

    def start_hosts(self, names: list[str], slots: int) -> None:
        """Starts a job on hosts that may go and come."""
        flags = ["--listen", f"127.0.0.1:{self._port}", "-np", str(slots * len(names))]
        flags += ["--min-np", str(slots)]
        self._job.start("launcher", [str(BIN / "lightccrun"), *flags, *self._command])
        for name in names:
            self.join(name, slots)

    def join(self, name: str, slots: int) -> None:
        """Has a host join."""
        argv = ["--join", f"127.0.0.1:{self._port}", "--name", name, "--slots", str(slots)]
        self._job.start(name, [str(BIN / "lightcc-worker"), *argv])


class Forward(Lightcc):
    """The same, where each step is committed and survivors go on from the last one."""

    recovery = "forward"


class Torchrun:
    """torchrun with DistributedDataParallel on gloo."""

    def __init__(self, job: Job) -> None:
        """Prepares the way."""
        self._job = job
        self._port = free_port()

    def start_one_host(self, ranks: int) -> None:
        """Starts a job on one host."""
        self._start("launcher", ["--nnodes", "1"], ranks)

    def start_hosts(self, names: list[str], slots: int) -> None:
        """Starts a job on hosts that may go and come. The first one serves the rendezvous."""
        for name in names:
            self.join(name, slots)
            until = time.monotonic() + PATIENCE_S
            while time.monotonic() < until and not is_served(self._port):
                time.sleep(0.1)

    def join(self, name: str, slots: int) -> None:
        """Has a host join."""
        self._start(name, ["--nnodes", "1:2"], slots)

    def _start(self, name: str, flags: list[str], ranks: int) -> None:
        flags += ["--nproc-per-node", str(ranks), "--max-restarts", "9", "--rdzv-id", "bench"]
        flags += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self._port}"]
        command = [str(RANKS), "torchrun", str(self._job.folder)]
        self._job.start(name, [str(BIN / "torchrun"), *flags, *command])


Way = Lightcc | Torchrun
WAYS: dict[str, type[Way]] = {"lightcc": Lightcc, "forward": Forward, "torchrun": Torchrun}

# -- What happens to them -------------------------------------------------------------------------


class Cost(NamedTuple):
    """What one event has cost."""

    pause_s: float  # From a fault to the next step that is finished; the longest one of a join.
    lost: int  # Finished steps that were done again.
    full_s: float  # From the event to the first step with all ranks.


def cost_of(job: Job, when: float, size: int) -> Cost:
    """Waits until the world has `size` ranks again after a fault; returns what it took."""
    before = [line for line in job.lines() if line.when <= when]
    lives = {line.life for line in before}
    lines = [it for it in job.wait_for(size, when, FIRST_STEPS) if it.life not in lives]
    last = max(line.step for line in before)
    full = next(line for line in lines if line.size == size)
    return Cost(lines[0].when - when, last + 1 - lines[0].step, full.when - when)


def cost_of_join(job: Job, when: float, size: int) -> Cost:
    """Waits until the world has `size` ranks; returns how long nobody finished a step meanwhile."""
    lines = job.wait_for(size, when, FIRST_STEPS)
    full = next(line for line in lines if line.size == size and line.when > when)
    last = max(line.step for line in lines if line.size < size)
    times = [line.when for line in lines if line.when > when - 1]
    pause = max(after - before for before, after in itertools.pairwise(times))
    return Cost(pause, last + 1 - full.step, full.when - when)


def lose_rank(job: Job, way: Way, rank: int) -> dict[str, Cost]:
    """Kills one of four ranks; it comes back."""
    way.start_one_host(4)
    job.wait_for(4, steps=FIRST_STEPS)
    victims = [pid for pid in children(job.agents["launcher"].pid) if rank_of(pid) == rank]
    os.kill(victims[-1], signal.SIGKILL)  # Those before have started it.
    cost = cost_of(job, time.monotonic(), 4)
    job.end(4)
    return {f"rank {rank} of 4 is killed": cost}


def lose_host(job: Job, way: Way) -> dict[str, Cost]:
    """Kills one of two hosts of four ranks; another one joins."""
    way.start_hosts(["a", "b"], 4)
    job.wait_for(8, steps=FIRST_STEPS)
    when = job.kill_host("b")
    lost = cost_of(job, when, 4)
    begin = time.monotonic()
    way.join("c", 4)
    joined = cost_of_join(job, begin, 8)
    job.end(8)
    return {
        "a host is killed: 8 to 4 ranks": lost,
        "a host joins: 4 to 8 ranks": joined,
    }


def join_host(job: Job, way: Way) -> dict[str, Cost]:
    """Has a host of one rank join a host of two."""
    way.start_hosts(["a"], 2)
    job.wait_for(2, steps=FIRST_STEPS)
    begin = time.monotonic()
    way.join("b", 1)
    joined = cost_of_join(job, begin, 3)
    job.end(3)
    return {"a host joins: 2 to 3 ranks": joined}


EVENTS = {
    "rank": lambda job, way: lose_rank(job, way, 3),
    "rank0": lambda job, way: lose_rank(job, way, 0),
    "host": lose_host,
    "join": join_host,
}


def main() -> int:
    """Measures, and prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--events", default="rank,rank0,host")
    parser.add_argument("--megabytes", type=float, default=0)
    parser.add_argument("--ready", type=float, default=0)
    args = parser.parse_args()
    large = {"BENCH_MEGABYTES": str(args.megabytes), "BENCH_READY": str(args.ready)}
    ways = args.ways.split(",")
    costs: dict[tuple[str, str], list[Cost]] = {}
    for _ in range(args.rounds):
        for event in args.events.split(","):
            for name in ways:
                with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
                    job = Job(Path(folder), stack, large)
                    for text, cost in EVENTS[event](job, WAYS[name](job)).items():
                        costs.setdefault((text, name), []).append(cost)
                        sys.stderr.write(f"{name}: {text}: {cost}\n")
    print_head("event", "launcher", "pause", "steps lost", "until all ranks train")
    for (text, name), found in costs.items():
        pause, lost, full = (statistics.median(values) for values in zip(*found, strict=True))
        print_row(text, name, f"{pause:.2f} s", f"{lost:g}", f"{full:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
