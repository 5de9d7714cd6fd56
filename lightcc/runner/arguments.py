"""lightccrun's command line: horovodrun's flags, each either honoured or refused with the reason.

Nothing is started here. `parse` returns what to do as plain data; every mistake ends in one clear
line on standard error and exit code 2 (argparse's).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lightcc.runner.hosts import Host, HostError, assign_slots, parse_hosts, read_hostfile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightcc.runner.hosts import Slot

_MPI = "lightccrun starts the ranks itself; to launch with MPI, run `mpirun ... python train.py`"
_CYCLE = "lightcc has no cycle to tune: it is event-driven; leave the flag out"
_ELASTIC = "elastic jobs are not there yet; start a fixed number of ranks with -np"
_TIMELINE = "the timeline is not there yet; leave the flag out"
_HIERARCHY = "the engine chooses the algorithm by topology; leave the flag out"

# Flags of horovodrun that this version refuses.
REFUSED_FLAGS = {
    "--mpi": _MPI,
    "--jsrun": _MPI,
    "--mpi-args": _MPI,
    "--tcp": _MPI,
    "--binding-args": _MPI,
    "--mpi-threads-disable": _MPI,
    "--no-mpi-threads-disable": _MPI,
    "--cycle-time-ms": _CYCLE,
    "--min-np": _ELASTIC,
    "--min-num-proc": _ELASTIC,
    "--max-np": _ELASTIC,
    "--max-num-proc": _ELASTIC,
    "--slots-per-host": _ELASTIC,
    "--elastic-timeout": _ELASTIC,
    "--reset-limit": _ELASTIC,
    "--blacklist-cooldown-range": _ELASTIC,
    "--host-discovery-script": _ELASTIC,
    "--timeline-filename": _TIMELINE,
    "--timeline-mark-cycles": _TIMELINE,
    "--no-timeline-mark-cycles": _TIMELINE,
    "--hierarchical-allreduce": _HIERARCHY,
    "--no-hierarchical-allreduce": _HIERARCHY,
    "--hierarchical-allgather": _HIERARCHY,
    "--no-hierarchical-allgather": _HIERARCHY,
    "--torus-allreduce": _HIERARCHY,
    "--no-torus-allreduce": _HIERARCHY,
    "--num-nccl-streams": "this version has no GPU path",
    "--thread-affinity": "bind the ranks with taskset or numactl in the command instead",
    "--config-file": "configuration files are not supported; give flags or environment variables",
}

DEFAULT_START_TIMEOUT_S = 30.0
LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")


@dataclass(frozen=True)
class SshOptions:
    """How to reach other hosts."""

    port: int | None
    identity_file: Path | None


@dataclass(frozen=True)
class LaunchOptions:
    """A checked command line."""

    command: list[str]
    slots: list[Slot]
    environment: dict[str, str]  # What tuning flags mean to the ranks.
    ssh: SshOptions
    interfaces: list[str]
    output_directory: Path | None
    prefix: bool
    timestamps: bool
    verbose: bool
    start_timeout_s: float


@dataclass(frozen=True)
class InfoRequest:
    """--version or --check-build: print and leave."""

    check_build: bool


def _at_least(minimum: float, convert: Callable[[str], float], unit: str) -> Callable[[str], float]:
    def parse_number(text: str) -> float:
        try:
            value = convert(text)
        except ValueError:
            value = minimum - 1
        if not minimum <= value < 2**31:
            msg = f"'{text}' is not {unit} (at least {minimum:g})"
            raise argparse.ArgumentTypeError(msg)
        return value

    return parse_number


_RANKS = _at_least(1, int, "a number of ranks")
_SECONDS = _at_least(0.1, float, "a number of seconds")
_SECONDS_OR_NEVER = _at_least(0, float, "a number of seconds")
_MEBIBYTES = _at_least(0, int, "a number of MiB")


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser; `lightccrun --help` is its text."""
    parser = argparse.ArgumentParser(
        prog="lightccrun",
        usage="lightccrun -np N [-H host:slots,...] [options] command [arguments ...]",
        description="Starts one process per rank, on one host or several, and ends them together.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-v", "--version", action="store_true", help="print the version and leave")
    add("-cb", "--check-build", action="store_true", help="print what was found and leave")
    add("-np", "--num-proc", type=_RANKS, metavar="N", help="ranks to start (default: all slots)")
    add("--verbose", action="store_true", help="tell what the launcher does")
    add("--start-timeout", type=_SECONDS, metavar="S", help="for hosts and ranks to start (30)")
    add("--network-interfaces", metavar="A,B", help="NICs to use; local rank i uses the i-th")
    add("--gloo", action="store_true", help="accepted: lightcc's own controller is in its place")
    add("--horovod", action="store_true", help="`import horovod` gives lightcc in the ranks")
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)

    where = parser.add_argument_group("hosts").add_argument
    where("-H", "--hosts", metavar="A:2,B:2", help="hosts and their slots")
    where("-hostfile", "--hostfile", type=Path, metavar="FILE", help="lines of 'name slots=N'")
    where("-p", "--ssh-port", type=_at_least(1, int, "a port"), metavar="PORT")
    where("-i", "--ssh-identity-file", type=Path, metavar="FILE")

    output = parser.add_argument_group("output").add_argument
    output(
        "--output-filename", type=Path, metavar="DIR", help="also write DIR/rank.N/stdout|stderr"
    )
    output("--no-prefix", action="store_true", help="do not begin lines with [rank]<stream>:")
    output(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        action="store_true",
        help="begin lines with the time, too",
    )

    tuning = parser.add_argument_group("tuning (sets the ranks' environment)").add_argument
    tuning("--fusion-threshold-mb", type=_MEBIBYTES, metavar="MB")
    tuning("--cache-capacity", type=_at_least(0, int, "a number of tensors"), metavar="N")
    tuning("--disable-cache", action="store_true")
    tuning("--autotune", dest="autotune", action="store_true", default=None)
    tuning("--no-autotune", dest="autotune", action="store_false", default=None)
    tuning("--autotune-log-file", metavar="FILE")
    tuning("--autotune-warmup-samples", type=_at_least(0, int, "a number of samples"), metavar="N")
    tuning("--autotune-steps-per-sample", type=_at_least(1, int, "a number of steps"), metavar="N")
    tuning(
        "--autotune-bayes-opt-max-samples",
        type=_at_least(1, int, "a number of settings"),
        metavar="N",
    )
    tuning("--autotune-gaussian-process-noise", metavar="X", help="accepted, without effect")
    tuning("--stall-check", dest="stall_check", action="store_true", default=None)
    tuning("--no-stall-check", dest="stall_check", action="store_false", default=None)
    tuning("--stall-check-warning-time-seconds", type=_SECONDS, metavar="S")
    tuning("--stall-check-shutdown-time-seconds", type=_SECONDS_OR_NEVER, metavar="S")
    tuning("--gloo-timeout-seconds", type=_SECONDS, metavar="S")
    tuning("--log-level", choices=LOG_LEVELS, type=str.upper)
    tuning("--log-hide-timestamp", "--log-without-timestamp", action="store_true")
    tuning("--log-with-timestamp", "--no-log-hide-timestamp", action="store_true")
    for flag in REFUSED_FLAGS:
        add(flag, nargs="?", const="", help=argparse.SUPPRESS)
    return parser


def parse(argv: Sequence[str]) -> LaunchOptions | InfoRequest:
    """Checks a command line; on a mistake prints it and leaves with exit code 2."""
    parser = make_parser()
    args = parser.parse_args(argv)
    for flag, reason in REFUSED_FLAGS.items():
        if getattr(args, flag.lstrip("-").replace("-", "_")) is not None:
            parser.error(f"{flag}: {reason}")
    if args.version or args.check_build:
        return InfoRequest(check_build=args.check_build)
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        parser.error("no command to run, for example: lightccrun -np 2 python train.py")
    if args.hosts is not None and args.hostfile is not None:
        parser.error("--hosts and --hostfile: give one of them")
    if args.disable_cache and args.cache_capacity is not None:
        parser.error("--cache-capacity and --disable-cache: give one of them")
    try:
        slots = assign_slots(_hosts(args, parser), _integer(args.num_proc))
    except HostError as error:
        parser.error(str(error))
    if args.ssh_identity_file is not None and not args.ssh_identity_file.is_file():
        parser.error(f"--ssh-identity-file: {args.ssh_identity_file} is not a file")
    interfaces = args.network_interfaces.split(",") if args.network_interfaces else []
    if "" in interfaces:
        parser.error(f"--network-interfaces: '{args.network_interfaces}' has an empty name")
    return LaunchOptions(
        command=command,
        slots=slots,
        environment=_tuning_environment(args, interfaces),
        ssh=SshOptions(_integer(args.ssh_port), args.ssh_identity_file),
        interfaces=interfaces,
        output_directory=args.output_filename,
        prefix=not args.no_prefix,
        timestamps=args.prefix_output_with_timestamp,
        verbose=args.verbose,
        start_timeout_s=args.start_timeout or DEFAULT_START_TIMEOUT_S,
    )


def _integer(value: float | None) -> int | None:
    return None if value is None else int(value)


def _hosts(args: argparse.Namespace, parser: argparse.ArgumentParser) -> list[Host]:
    if args.hosts is not None:
        return parse_hosts(args.hosts)
    if args.hostfile is not None:
        return read_hostfile(args.hostfile)
    if args.num_proc is None:
        parser.error("-np says how many ranks to start; it is needed without --hosts or --hostfile")
    return [Host("localhost", int(args.num_proc))]


def _tuning_environment(args: argparse.Namespace, interfaces: list[str]) -> dict[str, str]:
    """Returns the variables that the given flags stand for; flags not given set nothing."""
    values: dict[str, object] = {
        "HOROVOD_CACHE_CAPACITY": 0 if args.disable_cache else _integer(args.cache_capacity),
        "HOROVOD_STALL_CHECK_TIME_SECONDS": _plain(args.stall_check_warning_time_seconds),
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": _plain(args.stall_check_shutdown_time_seconds),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": _plain(args.gloo_timeout_seconds),
        "HOROVOD_START_TIMEOUT": _plain(args.start_timeout),
        "LIGHT_LOG_LEVEL": None if args.log_level is None else args.log_level.lower(),
        "LIGHT_IFACE": ",".join(interfaces) or None,
        "NCCL_SOCKET_IFNAME": ",".join(interfaces) or None,
        "LIGHTCC_HOROVOD": 1 if args.horovod else None,
        "HOROVOD_AUTOTUNE": None if args.autotune is None else int(args.autotune),
        "HOROVOD_AUTOTUNE_LOG": args.autotune_log_file,
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": _integer(args.autotune_warmup_samples),
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": _integer(args.autotune_steps_per_sample),
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": _integer(args.autotune_bayes_opt_max_samples),
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": args.autotune_gaussian_process_noise,
    }
    if args.fusion_threshold_mb == 0:
        values["LIGHT_FUSION_STRATEGY"] = "none"  # What a threshold of zero means to Horovod.
    elif args.fusion_threshold_mb is not None:
        values["LIGHT_FUSION_THRESHOLD"] = int(args.fusion_threshold_mb) << 20
    if args.stall_check is not None:
        values["HOROVOD_STALL_CHECK_DISABLE"] = 0 if args.stall_check else 1
    if args.log_hide_timestamp:
        values["HOROVOD_LOG_HIDE_TIME"] = 1
    elif args.log_with_timestamp:
        values["HOROVOD_LOG_HIDE_TIME"] = 0
    return {name: str(value) for name, value in values.items() if value is not None}


def _plain(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:g}"
