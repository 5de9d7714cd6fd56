"""What the programs of this folder share: a starter of ranks, and a reporter.

Each program measures one thing, prints a table in Markdown, and stands beside that table with its
command: `convergence` (what compression does to trainings), `start` (what many ranks cost),
`torch_collectives`, `sharded`, `slow_links` and `optimizer` (lightcc beside torch's own ways). They
run where lightcc and the framework are installed. `train` emulates trainings on the ranks of
`lightcc.bench`, which measures what needs no framework.

Ranks are on this host, or on network namespaces whose links are shaped at both ends
(`lightcc.bench.cluster`, needs root). A rank runs the program's own file with `--serve KIND` and
answers requests: a line of JSON in, one out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightcc.bench.cluster import Cluster, in_namespace, parse_delay, parse_rate
from lightcc.bench.peers import clean_environment
from lightcc.bench.signals import ending_in_good_order
from lightcc.runner.environment import make_secret, slot_environment
from lightcc.runner.hosts import number_ranks
from lightcc.runner.store import start_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Variables = list[dict[str, str]]


LEAVE_S = 5.0  # For ranks that have nothing more to do.


def add_rank_arguments(
    parser: argparse.ArgumentParser, *, hosts: int, ranks: int, rounds: int
) -> None:
    """Adds the flags that `Starter` knows, with these defaults."""
    parser.add_argument("--serve", metavar="KIND", help=argparse.SUPPRESS)
    parser.add_argument("--hosts", type=int, default=hosts)
    parser.add_argument("--link", type=parse_rate, default="1g", help="of each host, as 200m or 1g")
    parser.add_argument("--delay", type=parse_delay, help="of each link, one way, as 25ms")
    parser.add_argument("--ranks", type=int, default=ranks)
    parser.add_argument("--rounds", type=int, default=rounds)


class Starter:
    """Starts ranks of one program where its arguments say."""

    def __init__(
        self, file: str, arguments: argparse.Namespace, stack: contextlib.ExitStack
    ) -> None:
        """Makes the hosts, which `stack` removes, as it ends the ranks."""
        self._file, self._stack, self._size = file, stack, arguments.ranks
        self.cluster: Cluster | None = None
        if arguments.hosts > 1:
            self.cluster = stack.enter_context(
                Cluster(arguments.hosts, arguments.link, delay=arguments.delay)
            )
        cluster, size = self.cluster, self._size
        self._hosts = [cluster.host_of(rank, size) if cluster else 0 for rank in range(size)]
        self._addresses = [cluster.addresses[it] if cluster else "127.0.0.1" for it in self._hosts]

    def start(self, kind: str, variables: Variables) -> Ranks:
        """Starts ranks with these variables beside the environment, and waits for them."""
        if self.cluster:
            variables = [{**own, "LIGHT_2D_ALLREDUCE": "1"} for own in variables]
        processes = [
            subprocess.Popen(
                [
                    *(self.cluster.command(host) if self.cluster else []),
                    *(sys.executable, self._file, "--serve", kind),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=clean_environment() | own,
            )
            for host, own in zip(self._hosts, variables, strict=True)
        ]
        return Ranks(processes, self._stack)

    def of_lightcc(self) -> Variables:
        """Starts a store; returns what lightccrun would tell each rank."""
        secret, address = make_secret(), self._addresses[0]
        if self.cluster is None:
            store = start_store(address, secret)
        else:
            store = in_namespace(self.cluster.names[0], lambda: start_store(address, secret))
        self._stack.callback(store.stop)
        slots = number_ranks([str(host) for host in self._hosts])
        return [
            slot_environment(slot, rendezvous=store.address, secret=secret)
            for slot in sorted(slots, key=lambda it: it.rank)
        ]

    def of_torch(self) -> Variables:
        """Returns what torchrun would tell each rank."""
        own = {
            "WORLD_SIZE": str(self._size),
            "MASTER_ADDR": self._addresses[0],
            "MASTER_PORT": str(free_port()),
            "GLOO_SOCKET_IFNAME": "eth0" if self.cluster else "lo",
        }
        return [{**own, "RANK": str(rank)} for rank in range(self._size)]


class Ranks:
    """Ranks of one kind, which answer requests."""

    def __init__(
        self, processes: Sequence[subprocess.Popen[str]], stack: contextlib.ExitStack
    ) -> None:
        """Waits until they are ready; `stack` ends them."""
        self._processes = processes
        stack.callback(self._end)
        self._read()

    def ask(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Returns the ranks' answers."""
        for process in self._processes:
            print(json.dumps(request), file=process.stdin, flush=True)
        return self._read()

    def _read(self) -> list[dict[str, Any]]:
        answers = []
        for rank, process in enumerate(self._processes):
            line = ""
            for line in process.stdout or ():
                if line.startswith("{"):
                    break
            if not line.startswith("{"):
                msg = f"rank {rank} ended; its words are above"
                raise RuntimeError(msg)
            answers.append(json.loads(line))
        return answers

    def _end(self) -> None:
        """Ends the ranks' input, and kills those that do not leave."""
        for process in self._processes:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        deadline = time.monotonic() + LEAVE_S
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.wait()


@contextlib.contextmanager
def starter(file: str, arguments: argparse.Namespace) -> Iterator[Starter]:
    """Yields what starts ranks of a program, and ends them also where a signal ends it."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(ending_in_good_order())
        yield Starter(file, arguments, stack)


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answers requests until its input ends."""
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def bytes_sent() -> int:
    """Returns what this host has sent to others."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return sum(int(it.split()[9]) for it in lines if it.strip().startswith("eth0:"))


def run_on_grid(file: str, words: list[str], variables: dict[str, str]) -> int:
    """Runs a program on four ranks by lightccrun, as two hosts of two; returns its exit code."""
    launcher = str(Path(sys.executable).with_name("lightccrun"))
    command = [launcher, "-np", "4", "--no-prefix", sys.executable, file, *words]
    env = {**os.environ, "LIGHT_2D_ALLREDUCE": "1", **variables}
    return subprocess.run(command, env=env, check=False).returncode


def free_port() -> int:
    """Returns a port that nobody has right now."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


# -- What is shown --------------------------------------------------------------------------------


def times_text(seconds: list[float], unit: float = 1e-3) -> str:
    """Returns the median, and the least in parentheses."""
    return f"{statistics.median(seconds) / unit:.4g} ({min(seconds) / unit:.4g})"


def print_head(*columns: str) -> None:
    """Begins a table."""
    print_row(*columns)
    print("|---" * len(columns) + "|", flush=True)


def print_row(*cells: str) -> None:
    """Prints a row of a table."""
    print(f"| {' | '.join(cells)} |", flush=True)
