"""Ranks of a benchmark of torch.distributed, on this host or on emulated ones.

Hosts are network namespaces whose links are shaped at both ends (`lightcc.bench.cluster`), which
needs root. Each rank runs the benchmark's own file with `--rank PLAN`, PLAN being JSON.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from lightcc.bench.cluster import Cluster, parse_rate
from lightcc.bench.peers import clean_environment
from lightcc.bench.signals import ending_in_good_order

if TYPE_CHECKING:
    import argparse

PORT = 29511  # In namespaces all ports are free; on one host this one must be.


def add_rank_arguments(parser: argparse.ArgumentParser, *, ranks: int, hosts: int) -> None:
    """Adds the flags that `start_ranks` knows, with these defaults."""
    parser.add_argument("--rank", metavar="PLAN", help="for the ranks themselves")
    parser.add_argument("--ranks", type=int, default=ranks)
    parser.add_argument("--hosts", type=int, default=hosts)
    parser.add_argument("--link", default="1g", help="of each host, such as 200m or 1g")


def start_ranks(file: str, plan: dict[str, Any], arguments: argparse.Namespace) -> int:
    """Runs the ranks of a plan to their end; returns 1 where one failed."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(ending_in_good_order())
        cluster = None
        if arguments.hosts > 1:
            cluster = stack.enter_context(Cluster(arguments.hosts, parse_rate(arguments.link)))
        processes = []
        for rank in range(arguments.ranks):
            host = cluster.host_of(rank, arguments.ranks) if cluster else 0
            variables = {
                "RANK": str(rank),
                "WORLD_SIZE": str(arguments.ranks),
                "MASTER_ADDR": cluster.addresses[0] if cluster else "127.0.0.1",
                "MASTER_PORT": str(PORT),
                "GLOO_SOCKET_IFNAME": "eth0" if cluster else "lo",
                **({"LIGHT_2D_ALLREDUCE": "1"} if cluster else {}),
            }
            words = [*(cluster.command(host) if cluster else []), sys.executable, file]
            process = subprocess.Popen(
                [*words, "--rank", json.dumps(plan)], env=clean_environment() | variables
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        codes = [process.wait() for process in processes]
    return int(any(codes))
