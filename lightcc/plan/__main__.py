"""`python -m lightcc.plan --model resnet50 --hosts 16 --link 25g`: see docs/running/plan.md."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lightcc._flags import Parser
from lightcc.bench.arguments import positive, rate, share
from lightcc.bench.layer_table import GRADIENT_BYTES, TableError, read_table
from lightcc.plan import report
from lightcc.plan.costs import Costs, CostsError
from lightcc.plan.simulator import predict, where_time_goes
from lightcc.plan.site import Site, SlowHost, Variant
from lightcc.plan.ways import local_ways, ways
from lightcc.plan.workload import from_parameters, from_table, from_timeline
from lightcc.timeline.trace import TraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightcc.plan.workload import Workload

_MAX_FACTOR, _MAX_PARAMETERS = 1e6, 1e13
_OVERSUBSCRIPTION = "rates of a rack's hosts over that of its up-link (1)"


def _number(text: str, what: str, min_value: float, max_value: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not min_value <= value <= max_value:
        msg = f"'{text}' is not a number {what}"
        raise argparse.ArgumentTypeError(msg)
    return value


def _from_1(text: str, max_value: float = _MAX_FACTOR) -> float:
    return _number(text, f"from 1 to {max_value:g}", 1, max_value)


def _seconds(text: str) -> float:
    return _number(text, "of seconds", 1e-9, _MAX_FACTOR)


def _count(text: str) -> int:
    return int(_from_1(text, _MAX_PARAMETERS))


def _slow_host(text: str) -> SlowHost:
    """HOST:COMPUTE or HOST:COMPUTE:LINK."""
    host, *factors = text.split(":")
    if not host.isdecimal() or not 1 <= len(factors) <= 2:
        msg = f"'{text}' is not HOST:COMPUTE or HOST:COMPUTE:LINK, such as 3:1.5"
        raise argparse.ArgumentTypeError(msg)
    return SlowHost(int(host), *map(_from_1, factors))


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command."""
    parser = Parser(
        prog="python -m lightcc.plan",
        usage="%(prog)s --model NAME --hosts N --gpus N --link RATE [options]",
        description="Predicts the step of a training on hosts that are not there yet.",
        allow_abbrev=False,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", metavar="NAME", help="a model of the table")
    what.add_argument("--parameters", type=_count, metavar="N", help="such as 7e9, with --compute")
    what.add_argument("--trace", type=Path, metavar="FILE", help="a timeline that rank 0 recorded")
    add = parser.add_argument
    add("--hosts", type=positive, required=True, metavar="N")
    ranks = ("--gpus", "--ranks-per-host")
    add(*ranks, type=positive, required=True, metavar="N", help="ranks on each host")
    add("--link", type=rate, required=True, metavar="RATE", help="a host's link, such as 25g")
    add("--tcp", type=rate, metavar="RATE", help="what TCP reaches on it (the link's rate)")
    add("--oversubscription", type=_from_1, default=1.0, metavar="X", help=_OVERSUBSCRIPTION)
    add("--rack", type=positive, default=16, metavar="N", help="hosts in a rack (16)")
    add("--slow-host", type=_slow_host, action="append", default=[], metavar="H:X[:Y]",
        help="host H computes X times as long, and its link is Y times as slow")  # fmt: skip
    add("--compute", type=_seconds, metavar="S", help="seconds of a step without communication")
    add("--topk-ratio", type=share, default=0.01, metavar="R", help="what top-k sends (0.01)")
    add("--layers", type=Path, metavar="FILE", help="table of models to use instead")
    add("--costs", type=Path, metavar="FILE", help="JSON of costs, as --json shows them")
    add("--memory", type=_seconds, metavar="GB", help="memory of a rank: compare ways of sharding")
    add("--module", type=_count, metavar="N", help="parameters of FSDP2's largest module")
    add("--steps", type=_count, metavar="N", help="of a training: compare local steps with int4")
    add("--where", action="store_true", help="say where the time goes")
    add("--json", action="store_true", help="print JSON")
    return parser


def variants_of(site: Site, ratio: float) -> list[Variant]:
    """Returns what is compared on `site`."""
    int8, int4 = ({"LIGHT_QUANTIZE_ALLREDUCE": kind} for kind in ("int8", "int4"))
    topk = {"LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_TOPK_RATIO": f"{ratio:g}"}
    found = [
        Variant("2d (default)"),
        Variant("flat", two_level=False, variables={"LIGHT_2D_ALLREDUCE": "0"}),
        Variant("one ring", two_level=False, ring=True),
        Variant("2d, no fusion", fusion="none", variables={"LIGHT_FUSION_STRATEGY": "none"}),
        Variant("2d, as Horovod", fusion="horovod", variables={"LIGHT_FUSION_STRATEGY": "horovod"}),
        Variant("2d, int8", compression="int8", variables=int8),
        Variant("2d, int4", compression="int4", variables=int4),
        Variant(f"2d, top-k {ratio:.3g}", compression="topk", ratio=ratio, variables=topk),
    ]
    if site.tcp_bps < site.link_bps:
        found.append(Variant("2d, HARP or RDMA", line_rate=True, variables={"LIGHT_NET": "harp"}))
    return [one for one in found if one.two_level or one.ring or site.gpus > 1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit code."""
    parser = make_parser()
    args = parser.parse_args(arguments)
    if args.tcp is not None and args.tcp > args.link:
        parser.error(f"--tcp {args.tcp:g} is more than the link's {args.link:g} bits per second")
    if args.parameters is not None and args.compute is None:
        parser.error("--parameters needs --compute: nobody knows what their step takes")
    if args.steps is not None and args.hosts == 1:
        parser.error("--steps needs at least two hosts: local steps are those of a host")
    for slow in args.slow_host:
        if slow.host >= args.hosts:
            parser.error(f"--slow-host {slow.host}: there are hosts 0 to {args.hosts - 1}")
    try:
        sys.stdout.write(_report(args))
    except (TableError, TraceError, CostsError, OSError) as error:
        sys.stderr.write(f"python -m lightcc.plan: {error}\n")
        return 1
    return 0


def _report(args: argparse.Namespace) -> str:
    workload = _workload(args)
    if args.compute is not None:
        workload = workload.lasting(args.compute)
    costs = Costs() if args.costs is None else Costs.read(args.costs)
    tcp, slow = args.tcp or args.link, tuple(args.slow_host)
    site = Site(args.hosts, args.gpus, args.link, tcp, args.rack, args.oversubscription, slow)
    if args.memory is not None:
        largest = max(it.num_bytes for it in workload.gradients) // GRADIENT_BYTES
        found = ways(workload, site, costs, module=args.module or largest)
        return report.shards(workload, site, found, args.memory * 1e9)
    if args.steps is not None:
        return report.local(workload, site, local_ways(workload, site, costs, args.steps))
    variants = variants_of(site, args.topk_ratio)
    steps = [predict(workload, variant, site, costs) for variant in variants]
    where = where_time_goes(workload, variants[0], site, costs) if args.where else None
    if args.json:
        return json.dumps(report.as_dict(workload, site, costs, steps) | {"where_s": where}) + "\n"
    return report.text(workload, site, steps, where)


def _workload(args: argparse.Namespace) -> Workload:
    if args.parameters is not None:
        return from_parameters(args.parameters)
    if args.trace is not None:
        return from_timeline(args.trace)
    table = read_table(args.layers)
    if args.model not in table:
        msg = f"--model: '{args.model}' is not in the table; there are {', '.join(table)}"
        raise TableError(msg)
    return from_table(table[args.model])


if __name__ == "__main__":
    sys.exit(main())
