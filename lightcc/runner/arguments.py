"""lightccrun's command line: horovodrun's flags, each honoured, noted or refused.

A flag that has no meaning here costs one line and nothing else (`flags.NOTED`). A flag whose
absence would change what the job does is refused with the reason (`flags.REFUSED`).

Nothing is started here. `parse` returns what to do as plain data; every mistake ends in one clear
line on standard error and exit code 2 (argparse's). `checked` does the same for arguments that did
not come from a command line, and raises instead.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lightcc._flags import Parser
from lightcc._warnings import programs_not_there
from lightcc.runner import elastic_arguments, flags
from lightcc.runner.dial.handshake import DEFAULT_PORT, split_address
from lightcc.runner.grace import SIGNAL_GRACE_S
from lightcc.runner.hosts import Host, assign_slots, parse_hosts, read_hostfile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightcc.runner.elastic_options import ElasticOptions
    from lightcc.runner.hosts import Slot

DEFAULT_START_TIMEOUT_S = 30.0
DEFAULT_JOIN_TIMEOUT_S = 600.0  # For workers that somebody else starts.
_STORE = re.compile(r"^((?P<plain>[^:\[\]]+)|\[(?P<bracketed>[^\]]+)\])(:(?P<port>\d{1,5}))?$")
_MAX_PORT = 65535
LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")


@dataclass(frozen=True)
class SshOptions:
    """How to reach other hosts."""

    port: int | None
    identity_file: Path | None


@dataclass(frozen=True)
class ListenOptions:
    """Where workers dial in."""

    host: str  # "": every address of this machine.
    port: int
    secret_file: Path | None  # None: LIGHT_SECRET or LIGHT_SECRET_FILE.
    num_proc: int
    timeout_s: float  # For so many slots to be there.
    address_file: Path | None = None  # Gets the address, once workers can dial in.


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
    notes: list[str]  # One line for each flag without effect.
    elastic: ElasticOptions | None = None  # With it there are no slots yet.
    listen: ListenOptions | None = None  # With it neither.
    grace_s: float = SIGNAL_GRACE_S  # From SIGTERM to SIGKILL.


@dataclass(frozen=True)
class InfoRequest:
    """--version or --check-build: print and leave."""

    check_build: bool


@dataclass(frozen=True)
class StacksRequest:
    """--stacks: show where the ranks of this machine are."""

    job: str  # "": of all jobs.


@dataclass(frozen=True)
class StoreRequest:
    """--store: serve the store of ranks that somebody else starts."""

    host: str
    port: int  # 0: the kernel chooses.


class ArgumentsError(ValueError):
    """The arguments ask for something that is not allowed; the text is one line."""


class NotThereError(ArgumentsError, NotImplementedError):
    """They ask for something of horovodrun's that lightccrun does not have."""


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


def _number_after_p(text: str) -> float:
    return _RANKS(text.removeprefix("p"))


_SECONDS = _at_least(0.1, float, "a number of seconds")
_SECONDS_OR_NEVER = _at_least(0, float, "a number of seconds")
_PORT = _at_least(1, int, "a port")
_MILLISECONDS = _at_least(0, float, "a number of milliseconds")
_MEBIBYTES = _at_least(0, int, "a number of MiB")


def make_parser(prog: str = "lightccrun") -> argparse.ArgumentParser:
    """Returns the parser; `lightccrun --help` is its text.

    Its results have the names that Horovod's own parser gives them, as far as both have the flag.
    """
    parser = Parser(
        prog=prog,
        usage=f"{prog} -np N [-H host:slots,...] [options] command [arguments ...]",
        description="Starts one process per rank, on one host or several, and ends them together.",
        epilog=flags.help_text(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        conflict_handler="resolve",  # Horovod has its own version, and -v.
    )
    add = parser.add_argument
    add("-v", "--version", action="store_true", help="print the version and exit")
    add("-cb", "--check-build", action="store_true", help="print what was found and exit")
    ranks = ("-np", "--num-proc", "--np")
    add(*ranks, type=_RANKS, metavar="N", help="ranks to start (default: all slots)")
    # As mpirun's; besides, `-np2` is `-n` with the value "p2" to argparse.
    add("-n", dest="num_proc", type=_number_after_p, help=argparse.SUPPRESS)
    per_node = ("--nproc-per-node", "--nproc_per_node")
    add(*per_node, type=_RANKS, metavar="N", help="the same on one host, as torchrun calls it")
    add("--verbose", action="store_true", help="say what the launcher does")
    add("--start-timeout", type=_SECONDS, metavar="S", help="seconds for the start (30)")
    add(
        "--grace",
        type=_SECONDS_OR_NEVER,
        default=SIGNAL_GRACE_S,
        metavar="S",
        help=f"seconds that ranks have after SIGTERM ({SIGNAL_GRACE_S:g})",
    )
    add(
        *("--network-interfaces", "--network-interface"),
        dest="nics",
        metavar="A,B",
        help="NICs to use; local rank i uses the i-th",
    )
    add(
        "--store",
        metavar="HOST[:PORT]",
        help="start no ranks: serve the store of a job whose LIGHT_* variables you set yourself",
    )
    add(
        "--stacks",
        nargs="?",
        const="",
        metavar="JOB",
        help="show the stacks of all ranks on this host, and exit",
    )
    add("--gloo", dest="use_gloo", action="store_true", help="accepted: it is what lightcc does")
    add("--horovod", action="store_true", help="`import horovod` gives lightcc in the ranks")
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)

    where = parser.add_argument_group("hosts").add_argument
    where("-H", "--hosts", metavar="A:2,B:2", help="hosts and their slots")
    where("-hostfile", "--hostfile", type=Path, metavar="FILE", help="lines of 'name slots=N'")
    where(
        "--listen",
        nargs="?",
        const=f":{DEFAULT_PORT}",
        metavar="HOST:PORT",
        help="wait for hosts that connect with lightcc-worker, instead of ssh",
    )
    where(
        "--secret-file",
        type=Path,
        metavar="FILE",
        help="shared secret that workers must present (LIGHT_SECRET, LIGHT_SECRET_FILE)",
    )
    where("-p", "--ssh-port", type=_PORT, metavar="PORT")
    where("-i", "--ssh-identity-file", type=Path, metavar="FILE")

    output = parser.add_argument_group("output").add_argument
    output(
        *("--output-filename", "--log-dir"),
        type=Path,
        metavar="DIR",
        help="also write DIR/rank.N/stdout|stderr",
    )
    output("--tag-output", action="store_true", help="accepted: it is what lightccrun does")
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
    tuning("--timeline-filename", metavar="FILE", help="rank 0 records a timeline into FILE")
    tuning("--timeline-mark-cycles", dest="mark_cycles", action="store_true", default=None)
    tuning("--no-timeline-mark-cycles", dest="mark_cycles", action="store_false", default=None)
    tuning("--stall-check", dest="no_stall_check", action="store_false", default=None)
    tuning("--no-stall-check", dest="no_stall_check", action="store_true", default=None)
    tuning("--stall-check-warning-time-seconds", type=_SECONDS, metavar="S")
    tuning("--stall-check-shutdown-time-seconds", type=_SECONDS_OR_NEVER, metavar="S")
    tuning("--gloo-timeout-seconds", type=_SECONDS, metavar="S")
    tuning("--log-level", choices=LOG_LEVELS, type=str.upper)
    tuning("--log-hide-timestamp", "--log-without-timestamp", action="store_true")
    tuning("--log-with-timestamp", "--no-log-hide-timestamp", action="store_true")
    tuning("--cycle-time-ms", type=_MILLISECONDS, metavar="MS", help="for the strategy horovod")
    elastic_arguments.add_flags(parser, _RANKS)
    for flag in flags.NOTED + flags.REFUSED:
        flag.add_to(parser)
    return parser


def parse(
    argv: Sequence[str], prog: str = "lightccrun"
) -> LaunchOptions | InfoRequest | StacksRequest | StoreRequest:
    """Checks a command line; on a mistake prints it and leaves with exit code 2."""
    parser = make_parser(prog)
    args = parser.parse_args(argv)
    try:
        return checked(args)
    except ArgumentsError as error:
        parser.error(str(error))


def checked(args: argparse.Namespace) -> LaunchOptions | InfoRequest | StacksRequest | StoreRequest:
    """Returns what `args`, which have the names of `make_parser`, ask for.

    Raises:
        ArgumentsError: They ask for something that is not allowed.
        NotThereError: They ask for something that lightccrun does not have.
    """
    for flag in flags.REFUSED:
        if flag.is_given(args):
            raise NotThereError(flag.line())
    if (per_node := getattr(args, "nproc_per_node", None)) is not None:
        _take_per_node(args, per_node)
    _check_numbers(args)
    if args.version or args.check_build:
        return InfoRequest(check_build=bool(args.check_build))
    if (job := getattr(args, "stacks", None)) is not None:
        return StacksRequest(job)
    try:
        Path.cwd()
    except OSError as error:
        msg = "the working directory was deleted: change to one that is there"
        raise ArgumentsError(msg) from error
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if args.store is not None:
        return _store_request(args.store, command)
    listen = _listen_options(args)
    if not command:
        msg = "no command to run, for example: lightccrun -np 2 python train.py"
        raise ArgumentsError(msg)
    _check_program(command[0])
    if args.hosts is not None and args.hostfile is not None:
        msg = "--hosts and --hostfile: give one of them"
        raise ArgumentsError(msg)
    if args.disable_cache and args.cache_capacity is not None:
        msg = "--cache-capacity and --disable-cache: give one of them"
        raise ArgumentsError(msg)
    try:
        elastic = elastic_arguments.elastic_options(
            args,
            None if listen else lambda: _hosts(args),
            args.start_timeout or DEFAULT_START_TIMEOUT_S,
        )
        has_slots = elastic is None and listen is None
        slots = assign_slots(_hosts(args), _integer(args.num_proc)) if has_slots else []
    except ValueError as error:
        raise ArgumentsError(str(error)) from error
    if args.ssh_identity_file is not None and not Path(args.ssh_identity_file).is_file():
        msg = f"--ssh-identity-file: {args.ssh_identity_file} is not a file"
        raise ArgumentsError(msg)
    interfaces = args.nics.split(",") if args.nics else []
    if "" in interfaces:
        msg = f"--network-interfaces: '{args.nics}' has an empty name"
        raise ArgumentsError(msg)
    return LaunchOptions(
        command=command,
        slots=slots,
        environment=tuning_environment(args, interfaces),
        ssh=SshOptions(_integer(args.ssh_port), _path(args.ssh_identity_file)),
        interfaces=interfaces,
        output_directory=_path(args.output_filename),
        prefix=not args.no_prefix,
        timestamps=bool(args.prefix_output_with_timestamp),
        verbose=bool(args.verbose),
        start_timeout_s=args.start_timeout or DEFAULT_START_TIMEOUT_S,
        notes=flags.notes(args) + programs_not_there(os.environ),
        elastic=elastic,
        listen=listen,
        grace_s=args.grace,
    )


def _take_per_node(args: argparse.Namespace, per_node: float) -> None:
    """Takes the ranks of a host for those of the job, where that is one host."""
    if args.num_proc is not None or args.hosts or args.hostfile or args.listen:
        msg = "--nproc-per-node is for one host; of several, slots say it: --hosts a:2,b:2"
        raise ArgumentsError(msg)
    args.num_proc = per_node


def _listen_options(args: argparse.Namespace) -> ListenOptions | None:
    """Returns what --listen asks for.

    Raises:
        ArgumentsError: It cannot be used, or not with the other flags.
    """
    get = vars(args)
    text, secret_file = get.get("listen"), get.get("secret_file")
    if text is None:
        if secret_file is not None:
            msg = "--secret-file is for --listen, whose workers prove what is in it"
            raise ArgumentsError(msg)
        return None
    for name in ("hosts", "hostfile", "host_discovery_script"):
        if get.get(name) is not None:
            flag = f"--{name.replace('_', '-')}"
            msg = f"--listen: workers that dial in are the hosts; give it without {flag}"
            raise ArgumentsError(msg)
    if ":" not in text:
        msg = f"--listen: '{text}' is not HOST:PORT; where a command follows, add :{DEFAULT_PORT}"
        raise ArgumentsError(msg)
    try:
        host, port = split_address(text)
    except ValueError as error:
        msg = f"--listen: {error}"
        raise ArgumentsError(msg) from error
    num_proc = _integer(args.num_proc) or _integer(get.get("min_num_proc"))
    if num_proc is None:
        msg = "--listen: -np says how many slots must have dialled in before ranks are started"
        raise ArgumentsError(msg)
    timeout_s = args.start_timeout or DEFAULT_JOIN_TIMEOUT_S
    return ListenOptions(host, port, _path(secret_file), num_proc, timeout_s)


def _store_request(text: str, command: list[str]) -> StoreRequest:
    if command:
        msg = f"--store starts no ranks: '{command[0]}' would not run"
        raise ArgumentsError(msg)
    match = _STORE.match(text)
    host = (match["plain"] or match["bracketed"]) if match else ""
    port = int(match["port"] or 0) if match else 0
    if not host or port > _MAX_PORT:
        msg = f"--store: '{text}' is not HOST or HOST:PORT, such as 10.0.0.1:29400"
        raise ArgumentsError(msg)
    return StoreRequest(host, port)


def _check_program(name: str) -> None:
    """Refuses a Python file that cannot be run as a program, as somebody forgot `python`."""
    if name.endswith(".py") and Path(name).is_file() and shutil.which(name) is None:
        msg = f"'{name}' cannot be run as a program; did you mean python {name}?"
        raise ArgumentsError(msg)


def _check_numbers(args: argparse.Namespace) -> None:
    """Refuses what the parser would have refused, had it seen the value."""
    for name, check in (("num_proc", _RANKS), ("start_timeout", _SECONDS), ("ssh_port", _PORT)):
        value = getattr(args, name)
        try:
            if value is not None:
                setattr(args, name, check(str(value)))
        except argparse.ArgumentTypeError as error:
            msg = f"{name}: {error}"
            raise ArgumentsError(msg) from error


def _integer(value: float | None) -> int | None:
    return None if value is None else int(value)


def _path(value: str | Path | None) -> Path | None:
    return None if value is None else Path(value)


def _hosts(args: argparse.Namespace) -> list[Host]:
    if args.hosts is not None:
        return parse_hosts(args.hosts)
    if args.hostfile is not None:
        return read_hostfile(Path(args.hostfile))
    if args.num_proc is None:
        msg = "-np says how many ranks to start; it is needed without --hosts or --hostfile"
        raise ArgumentsError(msg)
    return [Host("localhost", int(args.num_proc))]


def tuning_environment(args: argparse.Namespace, interfaces: list[str]) -> dict[str, str]:
    """Returns the variables that the given flags stand for; flags not given set nothing."""
    values: dict[str, object] = {
        "HOROVOD_CYCLE_TIME": _plain(args.cycle_time_ms),
        "HOROVOD_CACHE_CAPACITY": 0 if args.disable_cache else _integer(args.cache_capacity),
        "HOROVOD_STALL_CHECK_TIME_SECONDS": _plain(args.stall_check_warning_time_seconds),
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": _plain(args.stall_check_shutdown_time_seconds),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": _plain(args.gloo_timeout_seconds),
        "HOROVOD_START_TIMEOUT": _plain(args.start_timeout),
        "LIGHT_LOG_LEVEL": None if args.log_level is None else args.log_level.lower(),
        "LIGHT_IFACE": ",".join(interfaces) or None,
        "NCCL_SOCKET_IFNAME": ",".join(interfaces) or None,
        "LIGHTCC_HOROVOD": 1 if args.horovod else None,
        "HOROVOD_TIMELINE": args.timeline_filename,
        "HOROVOD_TIMELINE_MARK_CYCLES": None if args.mark_cycles is None else int(args.mark_cycles),
    }
    if args.fusion_threshold_mb == 0:
        values["LIGHT_FUSION_STRATEGY"] = "none"  # What a threshold of zero means to Horovod.
    elif args.fusion_threshold_mb is not None:
        values["LIGHT_FUSION_THRESHOLD"] = int(args.fusion_threshold_mb) << 20
    if args.no_stall_check is not None:
        values["HOROVOD_STALL_CHECK_DISABLE"] = int(args.no_stall_check)
    if args.log_hide_timestamp:
        values["HOROVOD_LOG_HIDE_TIME"] = 1
    elif args.log_with_timestamp:
        values["HOROVOD_LOG_HIDE_TIME"] = 0
    return {name: str(value) for name, value in values.items() if value is not None}


def _plain(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:g}"
