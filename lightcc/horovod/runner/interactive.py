"""`horovod.run`: calls a function on the ranks of a new job, from a script or a notebook."""

from __future__ import annotations

import argparse
import sys
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lightcc.horovod import alias
from lightcc.horovod.runner.elastic import driver
from lightcc.runner.arguments import LaunchOptions, checked, make_parser
from lightcc.runner.call import CallError, call_on_ranks, rank_command
from lightcc.runner.launch import launch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightcc.runner.elastic_options import ElasticOptions


class _HorovodArgs(argparse.Namespace):
    """What `horovod.runner.launch.parse_args` returns for an empty command line, with one rank."""

    def __init__(self) -> None:
        super().__init__(**vars(make_parser().parse_args([])))
        self.num_proc = 1
        self.command = None
        self.run_func: Callable[[], Any] | None = None
        self.executable: str | None = None


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: tuple[int, int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls `func(*args, **kwargs)` on the ranks of a new job and returns the results by rank.

    The ranks are fresh processes; `func` calls `hvd.init()` itself. Everything that travels is
    pickled, with cloudpickle where that is installed. What ranks print appears here, each line
    with the rank's number. When a rank fails, the others are ended.

    Args:
        func: What every rank calls.
        args: Its positional arguments.
        kwargs: Its named arguments.
        num_proc: Number of ranks.
        min_num_proc: Makes the job elastic: ranks without which it does not go on. The results are
            then those of so many ranks.
        max_num_proc: Ranks at most.
        slots: Of a host that the script names without slots.
        reset_limit: How often the ranks may change.
        cooldown_range: Seconds that a host or slot which failed is not used, at first and at most.
        hosts: Where to run, for example "node-a:2,node-b:2"; by default on this host.
        hostfile: A file with lines "name slots=N"; not together with `hosts`.
        host_discovery_script: A command that prints lines "host:slots"; makes the job elastic.
        start_timeout: Seconds that hosts and ranks have to start, 30 by default.
        ssh_port: Port of ssh on the other hosts.
        ssh_identity_file: The private key for ssh.
        disable_cache: As Horovod's launcher checks nothing in advance here, without effect.
        output_filename: A folder that gets the ranks' output as files, too.
        verbose: Whether the launcher tells what it does.
        use_gloo: Without effect: it is what lightcc does.
        use_mpi: Without effect but for a line: lightcc starts the ranks itself.
        mpi_args: As `use_mpi`.
        network_interface: Old spelling of `network_interfaces`, separated by commas.
        network_interfaces: NICs to use; local rank i uses the i-th.
        executable: The interpreter of the ranks; this one by default.
        np: Old spelling of `num_proc`.
        min_np: Old spelling of `min_num_proc`.
        max_np: Old spelling of `max_num_proc`.

    Raises:
        ValueError: An argument is not allowed.
        NotImplementedError: An argument asks for an elastic job.
        TypeError: `func` or its arguments cannot be pickled.
        RuntimeError: A rank failed; its exception is the cause.
    """
    if use_gloo and use_mpi:
        msg = "use_gloo and use_mpi: give one of them"
        raise ValueError(msg)
    asked = _HorovodArgs()
    asked.num_proc = _renamed("np", np, "num_proc", num_proc)
    asked.min_num_proc = _renamed("min_np", min_np, "min_num_proc", min_num_proc)
    asked.max_num_proc = _renamed("max_np", max_np, "max_num_proc", max_num_proc)
    asked.slots = slots
    asked.reset_limit = reset_limit
    asked.cooldown_range = cooldown_range
    asked.hosts = hosts
    asked.hostfile = hostfile
    asked.host_discovery_script = host_discovery_script
    asked.start_timeout = start_timeout
    asked.ssh_port = ssh_port
    asked.ssh_identity_file = ssh_identity_file
    del disable_cache  # The checks' cache; on the command line it is the response cache.
    asked.output_filename = output_filename
    asked.verbose = verbose
    asked.use_gloo = use_gloo
    asked.use_mpi = use_mpi or None
    asked.mpi_args = mpi_args
    nics = _renamed("network_interface", network_interface, "network_interfaces", None)
    asked.nics = nics or (",".join(network_interfaces) if network_interfaces else None)
    asked.run_func = lambda: func(*args, **(kwargs or {}))
    asked.executable = executable
    results: list[Any] = start(asked, (func, tuple(args), kwargs or {}))
    return results


def start(
    asked: argparse.Namespace,
    call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None = None,
) -> Any:
    """Runs the job that `asked` describes, as `make_parser` names things, to its end.

    Args:
        asked: The description; `run_func`, where there is one, goes before the command.
        call: The function of `run_func` with its arguments, where they are known apart.

    Returns:
        The results of a function by rank; `None` for a command.

    Raises:
        ValueError: The description is not allowed.
        NotImplementedError: It asks for an elastic job.
        RuntimeError: A rank or the launcher failed.
    """
    function = getattr(asked, "run_func", None)
    if function is None:
        options = _options(asked)
        reasons: list[str] = []
        code = launch(options, on_end=lambda job: reasons.append(job.failure()[0]))
        if code != 0:
            raise RuntimeError(_failed("".join(reasons) or f"exit code {code}"))
        return None
    executable = getattr(asked, "executable", None) or sys.executable
    options = _options(argparse.Namespace(**vars(asked) | {"command": rank_command(executable)}))
    function, args, kwargs = call or (function, (), {})
    try:
        return call_on_ranks(function, args, kwargs, options)
    except CallError as error:
        raise RuntimeError(_failed(str(error))) from (error.__cause__ or error)


def _options(asked: argparse.Namespace) -> LaunchOptions:
    options = checked(asked)
    if not isinstance(options, LaunchOptions):
        msg = "version, check_build and store start no job: use lightccrun"
        raise ValueError(msg)  # noqa: TRY004 - a value is wrong, not a type.
    if options.elastic is not None:
        options = replace(options, elastic=_with_horovods_rules(options.elastic, asked))
    if alias.is_installed():
        options.environment.setdefault("LIGHTCC_HOROVOD", "1")
    return options


def _with_horovods_rules(elastic: ElasticOptions, asked: argparse.Namespace) -> ElasticOptions:
    timeout_s = getattr(asked, "elastic_timeout", None) or driver.ELASTIC_TIMEOUT_SECS
    settings = replace(
        elastic.settings, elastic_timeout_s=float(timeout_s), notify_early=True, lose_host=True
    )
    interval_s = driver.DISCOVER_HOSTS_FREQUENCY_SECS
    return replace(elastic, settings=settings, discovery_interval_s=interval_s)


def _failed(text: str) -> str:
    # Begins as Horovod's text does, which programs look for.
    return (
        "Horovod detected that one or more processes exited with non-zero status, thus causing the "
        f"job to be terminated: {text}"
    )


def _renamed(old_name: str, old: Any, new_name: str, new: Any) -> Any:
    """Returns the value of an argument that has two names, the old one first."""
    if old is None:
        return new
    msg = f"{old_name} is deprecated, use {new_name} instead"
    warnings.warn(msg, DeprecationWarning, stacklevel=3)
    return old
