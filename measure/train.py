"""Measures training steps with emulated computing and real gradients.

    python measure/train.py --models vgg16 --time-scale 10   (as root)

Several hosts of few ranks stand for as many hosts of eight GPUs: what must leave a host does not
depend on how many ranks share it. All times of the computing are multiplied by `--time-scale` S and
the links are S times slower, so that the share of communication in a step stays what it is, and
this machine's processors, which stand for all hosts' ones, have S times as long for it.

Everything is measured in one run, in turns. `none`, a step without communication, is what
efficiencies refer to. `horovod@tcp` is Horovod's schedule on links of the rate that TCP must have
reached in the published run (`layer_table.Training.implied_tcp_rate`), the other variants have the
line's rate. Beside lightcc's variants is what `lightcc.plan` predicts with `--costs`.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import train_report
from lightcc.bench import report
from lightcc.bench.arguments import delay, names, positive, rate, variants
from lightcc.bench.cases import SizeError, parse_size
from lightcc.bench.cluster import ClusterError, make_hosts, parse_rate
from lightcc.bench.facts import machine_facts
from lightcc.bench.layer_table import TableError, Training, read_table
from lightcc.bench.measure import WireMeter, differing
from lightcc.bench.peers import DEFAULT_DIRECTORY, LIGHTCC, PeerError
from lightcc.bench.signals import ending_in_good_order
from lightcc.bench.variants import ALGORITHMS, Variant
from lightcc.bench.workers import WorkerGroup
from lightcc.plan.costs import Costs, CostsError
from lightcc.plan.sequencer import MAX_BUCKET
from lightcc.plan.simulator import predict
from lightcc.plan.site import Site, Variant as PlannedVariant
from lightcc.plan.workload import from_table
from train_report import Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightcc.bench.cluster import Cluster, NominalHosts

_STEPS = Path(__file__).resolve().with_name("train_steps.py")


@dataclass(frozen=True)
class Scheduled(Variant):
    """A variant, and how its gradients are handed over (`train_steps`)."""

    schedule: str = "layers"
    at_tcp_rate: bool = False  # The link has the rate that TCP reached on it.


SCHEDULES = {
    variant.label: variant
    for variant in (
        Scheduled("none", schedule="none", environment=ALGORITHMS["2d"].environment),
        Scheduled("horovod", "gloo", schedule="horovod"),
        Scheduled("horovod@tcp", "gloo", schedule="horovod", at_tcp_rate=True),
        Scheduled("ddp", "gloo", schedule="ddp"),
        *(Scheduled(name, environment=it.environment) for name, it in ALGORITHMS.items()),
    )
}
_DEFAULT_VARIANTS = "none,horovod,horovod@tcp,ddp,flat,2d,2d+topk"
_DEFAULT_MODELS = ("vgg16", "resnet50")
_CYCLE_S = 1e-3  # Horovod's HOROVOD_CYCLE_TIME.
#: Whose implied rate a model without published figures is given.
_RATE_OF_OTHERS = "resnet50"


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command."""
    parser = argparse.ArgumentParser(
        description="Emulates training steps: computing sleeps, gradients are real.",
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    default_models = list(_DEFAULT_MODELS)
    add("--models", type=lambda text: text.split(","), default=default_models, metavar="NAMES")
    add("--variants", type=variants(SCHEDULES), default=_DEFAULT_VARIANTS, metavar="V,V:NAME=VALUE",
        help="of " + ", ".join(SCHEDULES))  # fmt: skip
    add("--hosts", type=positive, default=2, metavar="N")
    add("--ranks-per-host", type=positive, default=4, metavar="N")
    add("--link", type=rate, metavar="RATE", help="of a host, unscaled (None: as published)")
    add("--delay", type=delay, metavar="TIME", help="of each link, one way, unscaled")
    add("--time-scale", type=float, default="10", metavar="S", help="computing S times slower")
    add("--tcp-rate", action="store_true",
        help="hosts in name only, without root: ranks limit themselves by LIGHT_TCP_RATE; "
        "variants on gloo are left out")  # fmt: skip
    add("--horovod-fusion", default="128M", metavar="SIZE", help="HOROVOD_FUSION_THRESHOLD")
    add("--steps", type=positive, default=5, help="timed ones in a turn")
    add("--warmup", type=positive, default=2, help="steps before them")
    add("--rounds", type=positive, default=3, help="turns of every variant")
    add("--layers", type=Path, metavar="FILE", help="another table")
    add("--costs", type=Path, metavar="FILE", help="of lightcc.plan (None: its defaults)")
    add("--dir", type=Path, default=DEFAULT_DIRECTORY, help="where setup-peers put gloo")
    add("--json", type=Path, metavar="FILE", help="also write JSON lines")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns 1 if a result was wrong or a variant of lightcc failed."""
    parser = make_parser()
    args = parser.parse_args(argv)
    try:
        table = read_table(args.layers)
        args.horovod_fusion = parse_size(args.horovod_fusion)
        args.costs = Costs() if args.costs is None else Costs.read(args.costs)
        trainings = [table[name] for name in names(tuple(table), "model")(",".join(args.models))]
    except (TableError, SizeError, CostsError, argparse.ArgumentTypeError) as error:
        parser.error(str(error))
    args.num_ranks = args.hosts * args.ranks_per_host
    with contextlib.ExitStack() as stack:
        file = report.open_json(args.json, stack)
        try:
            first = args.link or parse_rate(trainings[0].link)
            hosts = make_hosts(
                args.hosts,
                first / args.time_scale,
                stack,
                nominal=args.tcp_rate,
                delay=args.delay and args.delay * args.time_scale,
            )
        except ClusterError as error:
            _say(f"{error} (--tcp-rate needs no root)")
            return 1
        if hosts is None:
            parser.error("--hosts: a link needs at least 2 hosts")
        rows = Run(args, stack, hosts, file).measure(trainings)
    failed = not rows or any(row.errors or (row.library == LIGHTCC and row.note) for row in rows)
    return 1 if failed else 0


def make_plan(training: Training, variant: Scheduled, args: argparse.Namespace) -> dict[str, Any]:
    """Returns what a rank must know of its steps; times are scaled."""
    return {
        "model": training.name,
        "schedule": variant.schedule,
        "ratio": variant.ratio,
        "forward_s": training.forward_s * args.time_scale,
        "layers": [
            {"backward_s": layer.backward_s * args.time_scale, "gradients": layer.counts[::-1]}
            for layer in reversed(training.layers)
        ],
        "cycle_s": _CYCLE_S * args.time_scale,
        "fusion_bytes": args.horovod_fusion,
        "steps": args.steps,
        "warmup": args.warmup,
        "check": False,
    }


def predicted_step(
    training: Training, variant: Scheduled, link_bps: float, args: argparse.Namespace
) -> float | None:
    """Returns the scaled seconds of a step that `lightcc.plan` predicts; None: it cannot."""
    variables = dict(variant.environment)
    fusion = variables.get("LIGHT_FUSION_STRATEGY", "auto_fusion")
    if variant.library != LIGHTCC or variant.schedule == "none" or fusion not in MAX_BUCKET:
        return None
    codes = variables.get("LIGHT_QUANTIZE_ALLREDUCE", "")
    planned = PlannedVariant(
        variant.label,
        two_level=variables.get("LIGHT_2D_ALLREDUCE") != "0",
        compression="topk" if variant.ratio else codes,
        ratio=variant.ratio or 0.01,
        fusion=fusion,
    )
    rate = link_bps / args.time_scale
    site = Site(args.hosts, args.ranks_per_host, rate, rate)
    workload = from_table(training)
    return predict(
        workload.lasting(workload.step_s * args.time_scale), planned, site, args.costs
    ).step_s


class Run:
    """All ranks of all variants, and what they measured."""

    def __init__(
        self,
        args: argparse.Namespace,
        stack: contextlib.ExitStack,
        hosts: Cluster | NominalHosts,
        file: IO[str] | None,
    ) -> None:
        """Ranks are started when they are first needed; `stack` ends them."""
        self._args = args
        self._stack = stack
        self._hosts = hosts
        self._file = file
        self._groups: dict[Any, WorkerGroup | str] = {}
        self._implied = {
            name: rates[0]
            for name, training in read_table().items()
            if (rates := training.implied_tcp_rate()) is not None
        }

    def measure(self, trainings: list[Training]) -> list[train_report.Row]:
        """Measures every model; prints a table for each."""
        args = self._args
        facts = machine_facts()
        if self._file is not None:
            report.write_json(self._file, "machine", facts)
        out = sys.stdout
        out.write(f"# {facts['cpu']}, {facts['cores_allowed']} cores, Linux {facts['kernel']}\n")
        out.write(f"# {args.hosts} hosts of {args.ranks_per_host} ranks, {self._hosts.kind}; ")
        out.write(f"time scale {args.time_scale:g}, links {args.time_scale:g} times slower\n")
        rows = []
        for training in trainings:
            out.write(train_report.heading(training, self._line_rate(training)) + "\n")
            out.flush()
            for row in train_report.make_rows(training, self._measure_model(training), vars(args)):
                rows.append(row)
                out.write(train_report.table_line(row) + "\n")
                if self._file is not None:
                    report.write_json(self._file, "training", vars(row))
            out.flush()
        return rows

    def _measure_model(self, training: Training) -> list[Steps]:
        plan = []
        for variant in self._args.variants:
            link = self._link(training, variant)
            predicted = predicted_step(training, variant, link, self._args)
            plan.append((variant, Steps(variant.label, variant.library, link, predicted)))
        for turn in range(self._args.rounds):
            for variant, steps in plan:
                if not steps.note:
                    self._take_turn(training, variant, steps, check=turn == 0)
        return [steps for _, steps in plan]

    def _take_turn(
        self, training: Training, variant: Scheduled, steps: Steps, *, check: bool
    ) -> None:
        request = make_plan(training, variant, self._args) | {"check": check}
        self._hosts.set_rate(steps.link_bps / self._args.time_scale)
        group = self._group(variant)
        if isinstance(group, str):
            steps.note = group
            return
        try:
            with WireMeter(self._hosts) as meter:
                answers = group.ask({"program": str(_STEPS), "plan": request})
                meter.note(answers)
        except PeerError as error:
            steps.note = str(error)
            return
        steps.times_s += [max(times) for times in zip(*(a["times"] for a in answers), strict=True)]
        steps.cpu_s += [sum(answer["cpu_s"] for answer in answers) / len(answers)]
        steps.errors += sum(answer["errors"] for answer in answers)
        steps.errors += differing(answers)
        steps.calls += self._args.warmup + self._args.steps + (variant.schedule != "none") * check
        steps.wire_bytes += meter.bytes

    def _line_rate(self, training: Training) -> float:
        return float(self._args.link or parse_rate(training.link))

    def _link(self, training: Training, variant: Scheduled) -> float:
        """Returns the link's rate of a variant, unscaled."""
        if not variant.at_tcp_rate:
            return self._line_rate(training)
        implied = self._implied.get(training.name, self._implied[_RATE_OF_OTHERS])
        return min(implied, self._line_rate(training))

    def _group(self, variant: Scheduled) -> WorkerGroup | str:
        """Returns the ranks of a variant, or why there are none."""
        args = self._args
        # Ranks that limit themselves read their limit when they start.
        rate_of_ranks = self._hosts.rate if args.tcp_rate else None
        key = (variant.library, variant.environment, rate_of_ranks)
        if key not in self._groups:
            group = WorkerGroup
            try:
                self._groups[key] = self._stack.enter_context(
                    group(variant, args.num_ranks, args.dir, self._hosts)
                )
            except (PeerError, ImportError, RuntimeError) as error:
                _say(f"{variant.label} cannot be measured: {error}")
                self._groups[key] = str(error)
        return self._groups[key]


def _say(text: str) -> None:
    sys.stderr.write(f"train: {text}\n")


if __name__ == "__main__":
    with ending_in_good_order():
        sys.exit(main())
