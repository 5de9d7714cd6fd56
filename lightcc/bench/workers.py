"""The parent's end of one variant's ranks: starts them, asks, and collects their answers.

Ranks are fresh processes that connect to a Unix socket in a private directory (an MPI launcher
would not pass a pipe on). They are asked all at once and answer in a line each; between requests
they sleep. Leaving the `with` block closes the connections and, should that not be enough, kills
the processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightcc.bench.cluster import Cluster, in_namespace
from lightcc.bench.peers import DEFAULT_DIRECTORY, LIGHTCC, PeerError, clean_environment, find
from lightcc.runner.environment import make_secret, slot_environment
from lightcc.runner.hosts import number_ranks
from lightcc.runner.store import start_store

if TYPE_CHECKING:
    from io import BufferedRWPair

    from lightcc.bench.cluster import NominalHosts
    from lightcc.bench.peers import Installed
    from lightcc.bench.variants import Variant
    from lightcc.runner.store import StoreServer

_START_S = 120.0
_ANSWER_S = 3600.0  # Emulated steps on slow links take minutes; a rank that dies is seen at once.
_LEAVE_S = 10.0
_LEAVE_AT_ONCE_S = 1.0  # In the middle of something.
_TAIL_BYTES = 2000
_BARRIER_LINE_BYTES = 64
_WORKER = Path(__file__).with_name("worker.py")


class WorkerGroup:
    """One variant's ranks. Enter it to start them."""

    def __init__(
        self,
        variant: Variant,
        num_ranks: int,
        directory: Path = DEFAULT_DIRECTORY,
        hosts: Cluster | NominalHosts | None = None,
    ) -> None:
        """Prepares `num_ranks` ranks of `variant`, whose peer is one set up in `directory`.

        The ranks run on `hosts`, or all on this one.

        Raises:
            PeerError: The peer is not installed, or cannot run on such hosts.
        """
        self.name = variant.label
        self.ratio = variant.ratio
        self.version = ""
        self._num_ranks = num_ranks
        self._hosts_given = hosts
        self._cluster = hosts if isinstance(hosts, Cluster) else None
        self._variables = dict(variant.environment)
        peer = variant.library
        self._installed = find(peer, directory) if peer != LIGHTCC else None
        if self._installed is not None and hosts is not None and self._cluster is None:
            msg = f"{peer} does not know LIGHT_TCP_RATE: its links would not be shaped"
            raise PeerError(msg)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lines: list[BufferedRWPair] = []
        self._cleanup = contextlib.ExitStack()
        self._leave_s = _LEAVE_AT_ONCE_S
        self._home = Path()

    def __enter__(self) -> WorkerGroup:  # noqa: PYI034 - Self needs Python 3.11.
        with contextlib.ExitStack() as cleanup:
            self._home = Path(tempfile.mkdtemp(prefix="lightcc-bench-"))
            cleanup.callback(shutil.rmtree, self._home, ignore_errors=True)
            (self._home / "barrier").write_bytes(bytes(_BARRIER_LINE_BYTES * self._num_ranks))
            listener = cleanup.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(self._home / "socket"))
            listener.listen(self._num_ranks)
            cleanup.callback(self._stop)
            self._start(cleanup)
            self._accept(listener, cleanup)
            self._leave_s = _LEAVE_S
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            self._leave_s = _LEAVE_AT_ONCE_S
        self._cleanup.close()

    def ask(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Sends `request` to every rank and returns their answers in rank order.

        Raises:
            PeerError: A rank died, did not answer, or said that it failed.
        """
        data = json.dumps(request).encode() + b"\n"
        with self._as_peer_error():
            for line in self._lines:
                line.write(data)
                line.flush()
            answers = [self._read(line) for line in self._lines]
        for rank, answer in enumerate(answers):
            if "failed" in answer:
                msg = f"{self.name}: rank {rank} failed: {answer['failed']}"
                raise PeerError(msg)
        return answers

    # -- Processes --------------------------------------------------------------------------------

    def _start(self, cleanup: contextlib.ExitStack) -> None:
        backend = self._installed.peer.backend if self._installed else LIGHTCC
        files = [str(self._home / name) for name in ("socket", "barrier")]
        worker = [str(_WORKER), backend, *files]
        python = str(self._installed.python) if self._installed else sys.executable
        if self._installed is not None and self._installed.peer.launcher:
            environment = clean_environment() | dict(self._installed.peer.environment)
            launcher = self._launcher(self._installed)
            self._spawn([*launcher, python, *worker], environment | self._variables)
            return
        environments = [clean_environment() for _ in range(self._num_ranks)]
        if self._installed is None:
            secret, path = make_secret(), os.pathsep.join(it or "." for it in sys.path)
            store = self._start_store(secret)
            cleanup.callback(store.stop)
            for slot in number_ranks([str(host) for host in self._hosts()]):
                environments[slot.rank] |= slot_environment(
                    slot, rendezvous=store.address, secret=secret
                )
                environments[slot.rank]["PYTHONPATH"] = path  # The lightcc of this process.
                if self._hosts_given is not None:
                    environments[slot.rank] |= self._hosts_given.environment(
                        slot.rank, self._num_ranks
                    )
        for rank, environment in enumerate(environments):
            if self._installed is not None:
                environment |= dict(self._installed.peer.environment)
            environment |= self._variables | {
                "BENCH_RANK": str(rank),
                "BENCH_SIZE": str(self._num_ranks),
                "BENCH_STORE": str(self._home / "store"),
                "GLOO_SOCKET_IFNAME": "eth0"
                if self._cluster
                else environment.get("GLOO_SOCKET_IFNAME", "lo"),
            }
            self._spawn([*self._on_host(rank), python, *worker], environment)

    def _on_host(self, rank: int) -> list[str]:
        """Returns the words that start what follows them where a rank is to be."""
        return self._cluster.command(self._hosts()[rank]) if self._cluster else []

    def _hosts(self) -> list[int]:
        """Returns the host of each rank."""
        n, hosts = self._num_ranks, self._hosts_given
        return [hosts.host_of(rank, n) if hosts else 0 for rank in range(n)]

    def _start_store(self, secret: str) -> StoreServer:
        if self._cluster is None:
            return start_store("127.0.0.1", secret)
        address = self._cluster.addresses[0]
        return in_namespace(self._cluster.names[0], lambda: start_store(address, secret))

    def _launcher(self, mpi: Installed) -> list[str]:
        """Returns the words that start an MPI's ranks, on whatever hosts there are."""
        if self._cluster is None:
            return mpi.launcher(self._num_ranks)
        if not mpi.peer.on_hosts:
            msg = f"{self.name} cannot be spread over namespaces"
            raise PeerError(msg)
        hosts, addresses = self._hosts(), self._cluster.addresses
        agent = self._home / "agent"
        agent.write_text(self._cluster.remote_shell(), encoding="utf-8")
        agent.chmod(0o700)
        listed = ",".join(f"{a}:{hosts.count(host)}" for host, a in enumerate(addresses))
        command = mpi.launcher(self._num_ranks, listed, str(agent))
        return [*self._cluster.mpi_command(0), *command]

    def _spawn(self, argv: list[str], environment: dict[str, str]) -> None:
        with (self._home / "errors").open("ab") as errors:
            process = subprocess.Popen(  # noqa: S603 - interpreters of this machine.
                argv,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
        self._processes.append(process)

    def _accept(self, listener: socket.socket, cleanup: contextlib.ExitStack) -> None:
        deadline = time.monotonic() + _START_S
        found: dict[int, BufferedRWPair] = {}
        while len(found) < self._num_ranks:
            if select.select([listener], [], [], 0.1)[0]:
                connection = cleanup.enter_context(listener.accept()[0])
                connection.settimeout(_ANSWER_S)
                lines = cleanup.enter_context(connection.makefile("rwb"))
                with self._as_peer_error():
                    hello = self._read(lines)
                found[int(hello["rank"])] = lines
                self.version = str(hello["version"])
            elif time.monotonic() > deadline:
                self._raise(f"{len(found)} of {self._num_ranks} ranks started in {_START_S:g} s")
            elif any(process.poll() for process in self._processes):
                self._raise("a rank ended at once")
        self._lines = [found[rank] for rank in range(self._num_ranks)]

    def _read(self, lines: BufferedRWPair) -> dict[str, Any]:
        text = lines.readline()
        if not text:
            self._raise("a rank died")
        answer: dict[str, Any] = json.loads(text)
        return answer

    @contextlib.contextmanager
    def _as_peer_error(self) -> Any:
        try:
            yield
        except (OSError, ValueError) as error:
            self._raise(str(error) or type(error).__name__, error)

    def _raise(self, what: str, cause: Exception | None = None) -> None:
        tail = (self._home / "errors").read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
        msg = f"{self.name}: {what}" + (f"; it said:\n{tail}" if tail else "")
        raise PeerError(msg) from cause

    def _signal(self, number: int) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def _stop(self) -> None:
        """Waits for the ranks, which leave when their connections close; kills what stays.

        Where something went wrong they are in the middle of it, and are not waited for.
        """
        for lines in self._lines:
            with contextlib.suppress(OSError):
                lines.close()
        deadline = time.monotonic() + self._leave_s
        if self._leave_s < _LEAVE_S:
            # An MPI's launcher ends its ranks when it is asked to, but not when it is killed.
            self._signal(signal.SIGTERM)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
