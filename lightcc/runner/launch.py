"""`lightccrun`: from a command line to a running job.

The steps: check the command line (`arguments`), choose where the rendezvous store listens
(`network`), start it with a fresh secret, start one agent per host, and hand them to `job`.
Without a launcher a script is a job of one rank; nothing here is needed for that.
"""

from __future__ import annotations

import importlib
import os
import shlex
import signal
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightcc import _addresses
from lightcc._discovery import variables
from lightcc.runner.agent import agent
from lightcc.runner.agent.agent_job import job_for, job_of_worker
from lightcc.runner.agent.link import Link, ProcessLink
from lightcc.runner.arguments import InfoRequest, LaunchOptions, StacksRequest, StoreRequest, parse
from lightcc.runner.environment import default_environment, forwarded_environment, make_secret
from lightcc.runner.hosts import number_ranks
from lightcc.runner.job import Job
from lightcc.runner.launched_job import LaunchedJob
from lightcc.runner.listening import launch_listening
from lightcc.runner.network import (
    NetworkError,
    StorePlan,
    await_names,
    free_port,
    host_and_port,
    is_local,
    plan_store,
)
from lightcc.runner.store import StoreServer, port_of, start_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightcc.runner.driver import Start
    from lightcc.runner.elastic_options import ElasticOptions

_THREADS = "set for each rank, as it was not set; without it each would use all cores of its host"
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve_store(request: StoreRequest) -> int:
    """Serves the store of a job whose ranks somebody else starts, until a signal ends it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING_SIGNALS)  # Before the store has its thread.
    own = [name for name in ("LIGHT_SECRET", "LIGHT_SECRET_FILE") if os.environ.get(name)]
    try:
        secret = variables.secret(os.environ) if own else make_secret()
        store = start_store(request.host, secret, request.port)
    except (ImportError, ValueError, RuntimeError, OSError) as error:
        return _fail(f"--store: {error}", code=2)
    shown = f"{own[0]} as it is here" if own else f"LIGHT_SECRET={secret}"
    sys.stdout.write(f"LIGHT_RENDEZVOUS={store.address}\n{shown}\n")
    sys.stdout.flush()
    sys.stderr.write("lightccrun: serving the store of one job; Ctrl-C ends it\n")
    signal.sigwait(_ENDING_SIGNALS)
    store.stop()
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the launcher; `argv` without the program's name. Returns the exit code."""
    options = parse(sys.argv[1:] if argv is None else argv)
    if isinstance(options, InfoRequest):
        return _show_build(check_build=options.check_build)
    if isinstance(options, StacksRequest):
        stacks: Any = importlib.import_module("lightcc.top.stacks")
        return int(stacks.show(options.job))
    if isinstance(options, StoreRequest):
        return serve_store(options)
    return launch(options)


def launch(
    options: LaunchOptions, rank_input: bytes = b"", on_end: Callable[[Job], None] | None = None
) -> int:
    """Runs a job to its end and returns the exit code.

    Args:
        options: What to run, and where.
        rank_input: What every rank finds on its standard input.
        on_end: Gets the job when it has ended. With an input, ranks can write to the descriptor
            that `frames.RESULT_FD` names, and the job has what they wrote.
    """
    try:
        return _launch(options, rank_input, on_end)
    except KeyboardInterrupt:  # Before or after the job, which handles the signal itself.
        return 128 + signal.SIGINT


def _launch(options: LaunchOptions, rank_input: bytes, on_end: Callable[[Job], None] | None) -> int:
    is_fixed = options.listen is None and options.elastic is None
    if not rank_input and not is_fixed and _is_fed():
        who = "lightcc-worker" if options.listen is not None else "an elastic job"
        sys.stderr.write(f"lightccrun: nobody reads standard input: ranks of {who} have none\n")
    if options.listen is not None:
        return launch_listening(options, options.listen, rank_input, on_end)
    if options.elastic is not None:
        return _launch_elastic(options, options.elastic, rank_input, on_end)
    hosts = list(dict.fromkeys(slot.host for slot in options.slots))
    secret = make_secret()
    if os.environ.get("K_MPI_JOB_ROLE") == "launcher":  # Set by Kubeflow's MPI operator.
        await_names(hosts, options.start_timeout_s)
    try:
        plan = plan_store(hosts, options.interfaces)
        store = start_store(plan.bind, secret)
    except NetworkError as error:
        return _fail(str(error), code=2)
    except (ImportError, RuntimeError, OSError) as error:
        return _fail(f"cannot start the rendezvous store: {error}", code=1)
    defaults = default_environment(options.slots, os.environ)
    threads = [f"{name}={value}: {_THREADS}" for name, value in defaults.items()]
    for note in options.notes + (threads if options.verbose else []):
        sys.stderr.write(f"lightccrun: {note}\n")
    links: list[Link] = []
    stdin_fd = None if rank_input else _open_input(hosts[0], options)
    port = free_port()
    try:
        for host in hosts:
            environment = _environment(host) | defaults
            rendezvous = _advertised(plan, host, store)
            master = plan.advertised[host] if is_local(hosts[0]) else hosts[0].rpartition("@")[2]
            job = job_for(host, options, environment, rendezvous, secret, (master, port))
            argv = _agent_argv(host, options)
            try:
                links.append(ProcessLink(host, argv, job, rank_input, stdin_fd))
                stdin_fd = None  # The first host has rank 0.
            except OSError as error:
                return _fail(f"cannot start {argv[0]} for host {host}: {error}", code=1)
        try:
            running = Job(options, links)
        except OSError as error:  # A file of --output-filename failed.
            return _fail(f"cannot start the job: {error}", code=1)
        code = running.run()
        if on_end is not None:
            on_end(running)
        return code
    finally:
        for link in links:
            link.close_stdin()
        store.stop()


def _launch_elastic(
    options: LaunchOptions,
    elastic: ElasticOptions,
    rank_input: bytes,
    on_end: Callable[[Job], None] | None,
) -> int:
    """Runs an elastic job. Where hosts come from a script, the store listens on all interfaces."""
    secret = make_secret()
    try:
        plan = plan_store(list(elastic.hosts), options.interfaces)
        bind = plan.bind if elastic.script is None else _addresses.every_address()
        store = start_store(bind, secret)
    except NetworkError as error:
        return _fail(str(error), code=2)
    except (ImportError, RuntimeError, OSError) as error:
        return _fail(f"cannot start the rendezvous store: {error}", code=1)
    for note in options.notes:
        sys.stderr.write(f"lightccrun: {note}\n")

    def make_job(start: Start) -> dict[str, Any]:
        found = plan
        if start.host not in plan.advertised:
            found = plan_store([start.host], options.interfaces)
        slots = number_ranks(list(start.hosts))
        environment = _environment(start.host) | default_environment(slots, os.environ)
        rendezvous = _advertised(found, start.host, store)
        return job_of_worker(start, options, environment, rendezvous, secret)

    def make_link(start: Start) -> Link:
        argv = _agent_argv(start.host, options)
        return ProcessLink(start.host, argv, make_job(start), rank_input)

    core = importlib.import_module("lightcc._core")
    own = host_and_port(_addresses.to_dial(bind), port_of(store))
    try:
        client = core.StoreClient(own, secret)
        running = LaunchedJob(options, elastic, client, make_link, make_job)
        code = running.run()
        if on_end is not None:
            on_end(running)
        return code
    finally:
        store.stop()


def _is_fed() -> bool:
    """Whether standard input is neither a terminal nor /dev/null, but a pipe, a file or such."""
    try:
        return not stat.S_ISCHR(os.fstat(0).st_mode)
    except OSError:
        return False  # It is closed.


def _open_input(host: str, options: LaunchOptions) -> int | None:
    """Returns a copy of standard input for rank 0, unless that is on another host."""
    if not is_local(host):
        if _is_fed():
            sys.stderr.write(f"lightccrun: nobody reads standard input: rank 0 is on {host}\n")
        return None
    try:
        if os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp():
            return None  # A job in the background leaves the terminal alone.
        copy = os.dup(0)
    except OSError:
        return None  # It is closed.
    reads_it = options.command[-1] == "-" or len(options.command) == 1
    if len(options.slots) > 1 and reads_it and _is_fed():
        sys.stderr.write("lightccrun: rank 0 alone reads standard input; others find it empty\n")
    return copy


def _advertised(plan: StorePlan, host: str, store: StoreServer) -> str:
    return host_and_port(plan.advertised[host], port_of(store))


def _environment(host: str) -> dict[str, str]:
    return {} if is_local(host) else forwarded_environment(os.environ)


def _agent_argv(host: str, options: LaunchOptions) -> list[str]:
    if is_local(host):
        return [sys.executable, "-I", "-S", str(Path(agent.__file__).resolve())]
    timeout_s = max(1, round(options.start_timeout_s))
    argv = ["ssh", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={timeout_s}"]
    argv += ["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"]
    if options.ssh.port is not None:
        argv += ["-p", str(options.ssh.port)]
    if options.ssh.identity_file is not None:
        argv += ["-i", str(options.ssh.identity_file)]
    # The working directory is entered first so that a lightcc beside the script is found.
    remote = [
        f"cd {shlex.quote(str(Path.cwd()))}",
        f"exec {shlex.quote(sys.executable)} -m lightcc.runner.agent.remote",
    ]
    return [*argv, "--", host, " && ".join(remote)]


def _show_build(*, check_build: bool) -> int:
    doctor = importlib.import_module("lightcc.doctor")
    sys.stdout.write(doctor.build_text() if check_build else f"{doctor.lightcc.__version__}\n")
    return 0


def _fail(text: str, *, code: int) -> int:
    sys.stderr.write(f"lightccrun: error: {text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
