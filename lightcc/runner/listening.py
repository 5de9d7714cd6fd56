"""`lightccrun --listen`: jobs on hosts whose workers dial in.

The hosts are the workers, in the order in which they have come. A job of fixed ranks waits until
there are enough slots, and refuses whoever comes later. An elastic job takes workers at any time.

Ranks have the environment of their worker. Of the launcher's they get what concerns lightcc
(`dialed_environment`), since it travels over a connection that is not encrypted. The secret does
not travel: workers have it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import selectors
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lightcc import _addresses
from lightcc._addresses import host_and_port
from lightcc._discovery import variables
from lightcc.runner.agent import frames
from lightcc.runner.agent.agent_job import job_for, job_of_worker
from lightcc.runner.agent.link import DialedLink, Link
from lightcc.runner.agent.worker import secret_variables
from lightcc.runner.dial.listener import Listener
from lightcc.runner.dial.seal import SealError
from lightcc.runner.environment import default_environment, dialed_environment, make_secret
from lightcc.runner.hosts import Host, assign_slots, number_ranks
from lightcc.runner.job import Job
from lightcc.runner.launched_job import LaunchedJob
from lightcc.runner.network import free_port
from lightcc.runner.store import StoreServer, port_of, start_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lightcc.runner.arguments import LaunchOptions, ListenOptions
    from lightcc.runner.dial.handshake import Joiner
    from lightcc.runner.driver import Start
    from lightcc.runner.elastic_options import ElasticOptions

_STARTED = "the job has started, and its ranks are fixed"
_CHUNK_BYTES = 65536


def launch_listening(
    options: LaunchOptions,
    listen: ListenOptions,
    rank_input: bytes,
    on_end: Callable[[Job], None] | None,
) -> int:
    """Runs a job to its end and returns the exit code; parameters as of `launch.launch`."""
    try:
        path = None if listen.secret_file is None else str(listen.secret_file)
        if listen.secret_file is not None and not listen.secret_file.exists():
            _make_secret_file(listen.secret_file)
        secret = variables.secret(secret_variables(path))
        listener = Listener(listen.host, listen.port, secret)
    except (ValueError, OSError) as error:
        return _fail(f"--listen: {error}", code=2)
    try:
        store = start_store(listener.host, secret)
    except (ImportError, RuntimeError) as error:
        listener.stop()
        return _fail(f"cannot start the rendezvous store: {error}", code=1)
    for note in options.notes:
        sys.stderr.write(f"lightccrun: {note}\n")
    sys.stderr.write(f"lightccrun: workers join by lightcc-worker --join {listener.address}\n")
    try:
        if listen.address_file is not None:
            _write_at_once(listen.address_file, listener.address)
        job: Job
        if options.elastic is not None:
            job = _elastic_job(options, options.elastic, listener, store, secret, rank_input)
        else:
            links = _Gathering(listener).wait_for(listen.num_proc, listen.timeout_s)
            job = _fixed_job(options, listen.num_proc, links, store, rank_input)
        code = job.run()
        listener.refuse("the job is over")
        if isinstance(job, LaunchedJob):
            job.dismiss()
    except (TimeoutError, OSError) as error:
        return _fail(str(error), code=1)
    else:
        if on_end is not None:
            on_end(job)
        return code
    finally:
        listener.stop()
        store.stop()


def _fixed_job(
    options: LaunchOptions,
    num_proc: int,
    links: dict[DialedLink, int],
    store: StoreServer,
    rank_input: bytes,
) -> Job:
    hosts = [Host(link.host, slots) for link, slots in links.items()]
    options = replace(options, slots=assign_slots(hosts, num_proc))
    needed = {slot.host for slot in options.slots}
    first, port = next(iter(links)), free_port()
    for link in links:
        if link.host in needed:
            rendezvous = host_and_port(link.reached_at, port_of(store))
            # A worker beside the launcher is where the launcher is.
            is_here = _addresses.is_loopback(first.address)
            master = (link.reached_at if is_here else first.address, port)
            environment = dialed_environment(os.environ)
            job = job_for(link.host, options, environment, rendezvous, "", master)
            job |= {"cwd": ".", "defaults": default_environment(options.slots, {})}
            link.send_input(rank_input)
            link.send_job(job)
        else:
            link.close_stdin()
    return Job(options, list(links))


def _elastic_job(
    options: LaunchOptions,
    elastic: ElasticOptions,
    listener: Listener,
    store: StoreServer,
    secret: str,
    rank_input: bytes,
) -> LaunchedJob:
    reached_at: dict[str, str] = {}

    def make_job(start: Start) -> dict[str, Any]:
        rendezvous = host_and_port(reached_at[start.host], port_of(store))
        environment = dialed_environment(os.environ)
        defaults = default_environment(number_ranks(list(start.hosts)), {})
        job = job_of_worker(start, options, environment, rendezvous, "")
        return job | {"cwd": ".", "defaults": defaults}

    def make_link(start: Start) -> Link:
        msg = f"its worker has left before worker {start.worker} was started"
        raise OSError(msg)

    def on_join(joiner: Joiner) -> None:
        reached_at[joiner.name] = joiner.reached_at
        link = DialedLink(joiner, listener.forget)
        link.send_input(rank_input)
        job.add_link(link, joiner.worker.slots)

    own = _addresses.to_dial(listener.host)
    core = importlib.import_module("lightcc._core")
    client = core.StoreClient(host_and_port(own, port_of(store)), secret)
    job = LaunchedJob(options, elastic, client, make_link, make_job)
    listener.serve(on_join)
    return job


class _Gathering:
    """Waits until the workers that are there have enough slots."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._joiners: queue.SimpleQueue[Joiner] = queue.SimpleQueue()
        self._links: dict[DialedLink, int] = {}
        self._wake_read, self._wake_write = os.pipe()

    def wait_for(self, num_proc: int, timeout_s: float) -> dict[DialedLink, int]:
        """Returns the links with their slots, in the order in which they came.

        Raises:
            TimeoutError: There were not enough slots in time.
        """
        self._listener.serve(self._on_join)
        until = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            while sum(self._links.values()) < num_proc:
                left = until - time.monotonic()
                if left <= 0:
                    raise TimeoutError(self._too_few(num_proc, timeout_s))
                for key, _ in selector.select(left):
                    if key.data is None:
                        os.read(self._wake_read, 1)
                        link = self._take(self._joiners.get())
                        selector.register(link.stdout_fd, selectors.EVENT_READ, link)
                    elif not self._is_there(key.data):
                        selector.unregister(key.fd)
                        del self._links[key.data]
                        key.data.end()
        self._listener.refuse(_STARTED)
        while not self._joiners.empty():  # Too late, but in: the job dismisses them.
            self._take(self._joiners.get())
        return self._links

    def _on_join(self, joiner: Joiner) -> None:
        self._joiners.put(joiner)
        os.write(self._wake_write, b"x")

    def _take(self, joiner: Joiner) -> DialedLink:
        link = DialedLink(joiner, self._listener.forget)
        self._links[link] = joiner.worker.slots
        return link

    @staticmethod
    def _is_there(link: DialedLink) -> bool:
        """Reads what a worker says before the job; returns whether it will take part."""
        try:
            data = os.read(link.stdout_fd, _CHUNK_BYTES)
            found = link.receive(data)
        except (OSError, SealError, frames.FrameError):
            return False
        return bool(data) and all(frame.kind != frames.DRAIN for frame in found)

    def _too_few(self, num_proc: int, timeout_s: float) -> str:
        there = ", ".join(f"{link.host}:{slots}" for link, slots in self._links.items())
        return (
            f"-np {num_proc} needs {num_proc} slots, but after {timeout_s:g} s (--start-timeout) "
            f"the workers that have dialled in are: {there or 'none'}"
        )


def _make_secret_file(path: Path) -> None:
    """Makes a file with a new secret, which nobody else may read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(make_secret() + "\n")
    sys.stderr.write(f"lightccrun: {path} has a new secret; workers need it as well\n")


def _write_at_once(path: Path, text: str) -> None:
    """Makes a file, which nobody sees without its text."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _fail(text: str, *, code: int) -> int:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"lightccrun: error: {text}\n")
    return code
