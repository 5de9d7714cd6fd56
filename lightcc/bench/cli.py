"""The command line of `python -m lightcc.bench`.

python -m lightcc.bench [allreduce] --sizes 4K:256M -np 2
python -m lightcc.bench allreduce --model resnet50,vgg16 --peer gloo,openmpi
python -m lightcc.bench cluster --link 1g --sizes 64M --peer gloo,mpich   (as root)
python -m lightcc.bench setup-peers

`cluster` is `allreduce` with other defaults: 2 hosts of 2 ranks, in place, the two-level and the
flat all-reduce beside one another.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

from lightcc._flags import Parser
from lightcc.bench import cases, report
from lightcc.bench.arguments import delay, names, positive, rate, variants
from lightcc.bench.cluster import ClusterError, make_hosts
from lightcc.bench.facts import machine_facts
from lightcc.bench.measure import Effort, run_case
from lightcc.bench.models import MODELS
from lightcc.bench.peers import DEFAULT_DIRECTORY, LIGHTCC, PEERS, PeerError, setup
from lightcc.bench.variants import COLLECTIVES, Variant
from lightcc.bench.workers import WorkerGroup

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from lightcc.bench.cluster import Cluster, NominalHosts


_VARIANTS = "what to measure instead of lightcc's default: " + ", ".join(COLLECTIVES)
_NOMINAL = "ranks limit themselves by LIGHT_TCP_RATE; no peers"


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the measuring command."""
    parser = Parser(
        prog="python -m lightcc.bench",
        usage="%(prog)s [COLLECTIVE | cluster | setup-peers] [options]",
        description="Measures collectives on this machine, on ranks that it starts. "
        "'cluster' is allreduce between hosts, "
        "'setup-peers' installs the libraries for --peer.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("collective", choices=cases.COLLECTIVES)
    add("-np", "--num-proc", type=positive, default=2, metavar="N", help="ranks (2)")
    add("--sizes", default="4K:64M", metavar="A:B", help="A to B by 4, or a list (4K:64M)")
    add("--inplace", action="store_true", help="allreduce in place")
    add("--model", type=names(tuple(MODELS), "model"), metavar="NAMES", help="gradients of models")
    add("--peer", type=names(tuple(PEERS), "peer"), metavar="NAMES", help="also measure these")
    add("--variants", type=variants(COLLECTIVES), metavar="V,V:VARIABLE=VALUE", help=_VARIANTS)
    add("--dir", type=Path, default=DEFAULT_DIRECTORY, help="where setup-peers put them (.peers)")
    add("--hosts", type=positive, default=1, metavar="N", help="network namespaces, as root (1)")
    add("--link", type=rate, default="1g", metavar="RATE", help="rate of each host's link (1g)")
    add("--delay", type=delay, metavar="TIME", help="one-way delay of each link, such as 25ms")
    add("--tcp-rate", action="store_true", help="hosts in name only, without root: " + _NOMINAL)
    add("--rounds", type=positive, default=5, help="rounds in which each library is measured (5)")
    add("--iterations", type=positive, help="timed calls of a round (depends on the size)")
    add("--json", type=Path, metavar="FILE", help="also write JSON lines")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns 1 if a result was wrong, lightcc failed or a peer is missing."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["setup-peers"]:
        return _setup_peers(words[1:])
    parser = make_parser()
    if words[:1] == ["cluster"]:
        words[0] = "allreduce"
        two = [COLLECTIVES["2d"], COLLECTIVES["flat"]]
        parser.set_defaults(num_proc=4, hosts=2, sizes="1M,16M,64M", inplace=True, variants=two)
    elif not words or (words[0].startswith("-") and words[0] not in ("-h", "--help")):
        words.insert(0, "allreduce")
    args = parser.parse_args(words)
    if args.model and args.collective != "allreduce":
        parser.error("--model is for allreduce")
    try:
        planned = _plan(args)
    except cases.SizeError as error:
        parser.error(f"--sizes: {error}")
    if args.num_proc % args.hosts != 0:
        parser.error(f"--hosts {args.hosts} does not divide the {args.num_proc} ranks (-np)")
    wanted = [*(args.variants or [COLLECTIVES[LIGHTCC]])]
    wanted += [COLLECTIVES[name] for name in args.peer or []]
    if any(variant.ratio for variant in wanted) and args.collective != "allreduce":
        parser.error("2d+topk is for allreduce")
    if args.tcp_rate and any(v.library == LIGHTCC and not v.uses_tcp for v in wanted):
        parser.error("--tcp-rate limits lightcc's TCP; variants over another network need --hosts")
    with contextlib.ExitStack() as stack:
        file = report.open_json(args.json, stack)
        try:
            hosts = make_hosts(
                args.hosts, args.link, stack, nominal=args.tcp_rate, delay=args.delay
            )
        except ClusterError as error:
            _say(f"--hosts: {error}")
            return 1
        groups, missing = _start(wanted, args, stack, hosts)
        rows = _measure(planned, groups, args, file, hosts) if groups else []
    failed = missing or any(row.errors or (row.library not in PEERS and row.note) for row in rows)
    return 1 if failed else 0


def _setup_peers(words: list[str]) -> int:
    parser = Parser(
        prog="python -m lightcc.bench setup-peers",
        description="Makes a virtual environment for each peer and installs it with pip.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PEERS))
    parser.add_argument("--dir", type=Path, default=DEFAULT_DIRECTORY)
    args = parser.parse_args(words)
    for name in args.names:
        if name not in PEERS:
            parser.error(f"'{name}' is no peer to install; there are {', '.join(PEERS)}")
    return 1 if setup(args.names or list(PEERS), args.dir) else 0


def _plan(args: argparse.Namespace) -> list[cases.Case]:
    if args.model:
        return [cases.model_case(name) for name in args.model]
    return [
        cases.size_case(args.collective, size, args.num_proc, inplace=args.inplace)
        for size in cases.parse_sizes(args.sizes)
    ]


def _start(
    wanted: list[Variant],
    args: argparse.Namespace,
    stack: contextlib.ExitStack,
    hosts: Cluster | NominalHosts | None,
) -> tuple[list[WorkerGroup], bool]:
    """Starts the ranks of every variant; says which are missing."""

    def start(variant: Variant) -> WorkerGroup | None:
        try:
            return stack.enter_context(WorkerGroup(variant, args.num_proc, args.dir, hosts))
        except (PeerError, ImportError, RuntimeError) as error:
            _say(f"{variant.label} cannot be measured: {error}")
            return None

    groups = [group for variant in wanted if (group := start(variant)) is not None]
    return groups, len(groups) < len(wanted)


def _measure(
    planned: list[cases.Case],
    groups: list[WorkerGroup],
    args: argparse.Namespace,
    file: IO[str] | None,
    hosts: Cluster | NominalHosts | None,
) -> list[report.Row]:
    facts = machine_facts() | {"libraries": {group.name: group.version for group in groups}}
    if file is not None:
        report.write_json(file, "machine", facts)
    out = sys.stdout
    out.write(f"# {facts['cpu']}, {facts['cores_allowed']} cores, Linux {facts['kernel']}\n")
    if facts["load_average"] > facts["cores_allowed"] / 2:
        out.write(f"# busy: load {facts['load_average']:.1f}, so times are too long and vary\n")
    for group in groups:
        out.write(f"# {group.name}: {group.version}\n")
    mode = "in place" if planned[0].inplace else "out of place"
    out.write(f"# {args.collective} of float32, {args.num_proc} ranks, {mode};")
    out.write(" times of the slowest rank, bandwidths in GB/s\n")
    if hosts is not None:
        out.write(f"# {hosts.describe()}\n")
    out.write(report.table_header(hosts=hosts is not None) + "\n")
    ratios = {group.name: group.ratio for group in groups}
    effort = Effort(rounds=args.rounds, iterations=args.iterations)
    rows = []
    for case in planned:
        if case.model:
            out.write(f"# {case.model}: {len(case.counts)} gradients, all in place\n")
            out.flush()
        measured = run_case(case, groups, effort, hosts)
        base = groups[0].name
        for row in report.make_rows(case, args.num_proc, measured, hosts, base=base, ratios=ratios):
            rows.append(row)
            out.write(report.table_line(row, hosts=hosts is not None) + "\n")
            out.flush()
            if file is not None:
                report.write_json(file, "result", row)
    errors = sum(row.errors for row in rows)
    slower = " (* a library's slower way)" if args.model else ""
    out.write(f"# wrong elements: {errors}{slower}\n")
    return rows


def _say(text: str) -> None:
    sys.stderr.write(f"lightcc.bench: {text}\n")
