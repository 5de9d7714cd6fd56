"""Hosts for a benchmark on one machine: network namespaces, joined by shaped links to one switch.

Each host is a namespace with one interface, `eth0`, whose cable ends at a bridge in a namespace of
its own. Both ends of a cable pass at most the link's rate (tc's token bucket filter), as a cloud's
virtual machines do. Needs root, iproute2's `ip` and `tc`, and a kernel with veth, bridge and tbf;
whatever is missing is an error that says so. Leaving the `with` block removes everything, also when
a signal ends the benchmark (`signals`).

Where links have a delay, `delay_link` is the switch, a process that needs /dev/net/tun and no tc.

Where there is no root, `NominalHosts` stand in: ranks on this host that share no memory and limit
themselves what they send (LIGHT_TCP_RATE). Only lightcc has that, so peers cannot be beside it.

What is not emulated: several machines' processors and memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shlex
import shutil
import subprocess
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lightcc.bench import delay_link

if TYPE_CHECKING:
    from collections.abc import Callable

    T = TypeVar("T")

_CLONE_NEWNET = 0x40000000
_RATE = re.compile(r"^(\d+(?:\.\d+)?)([mg])(?:bit)?$", re.IGNORECASE)
_DELAY = re.compile(r"^(\d+(?:\.\d+)?)(us|ms|s)$", re.IGNORECASE)
# A token bucket must hold what passes between two of its ticks, and one segment of 64 KiB.
_BURST_S = 0.5e-3
_MIN_BURST_BYTES = 128 << 10
_QUEUE_S, _MIN_QUEUE_BYTES = 20e-3, 2500_000  # A switch has its memory, however slow its links.


class ClusterError(RuntimeError):
    """The hosts cannot be made; the text says what is missing."""


def parse_rate(text: str) -> float:
    """Returns the bits per second of "1g", "2.5g", "200m" (powers of 1000).

    Raises:
        ValueError: The text is none of these, or below 1 Mb/s or above 400 Gb/s.
    """
    match = _RATE.match(text)
    rate = float(match[1]) * {"m": 1e6, "g": 1e9}[match[2].lower()] if match else 0.0
    if not 1e6 <= rate <= 400e9:
        msg = f"'{text}' is no rate: expected 1m to 400g (bits per second), such as 200m or 2.5g"
        raise ValueError(msg)
    return rate


def parse_delay(text: str) -> float:
    """Returns the seconds of "25ms", "800us" or "1s".

    Raises:
        ValueError: The text is none of these, or not above 0, or above 10 s.
    """
    match = _DELAY.match(text)
    delay_s = float(match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[match[2].lower()] if match else 0
    if not 0 < delay_s <= 10:
        msg = f"'{text}' is no delay: expected above 0 to 10s (one way), such as 25ms or 800us"
        raise ValueError(msg)
    return delay_s


def in_namespace(name: str, function: Callable[[], T]) -> T:
    """Returns what `function` returns in a thread that is in the network namespace `name`.

    Threads and sockets that it makes stay there.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            enter_namespace(name)
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread.
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def enter_namespace(name: str) -> None:
    """Moves the calling thread, and those that it starts from now on, into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", name).open(encoding="ascii") as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), f"setns: {name}")


class Cluster:
    """`num_hosts` namespaces on links of `rate` bits per second. Enter it to make them.

    With `delay`, everything arrives so many seconds later than it would.
    """

    kind = "network namespaces on this one"

    def __init__(self, num_hosts: int, rate: float, *, delay: float | None = None) -> None:
        """Prepares; nothing is made yet."""
        base = f"lightcc-bench-{os.getpid()}"
        self.names = [f"{base}-{host}" for host in range(num_hosts)]
        self.addresses = [f"10.78.0.{host + 1}" for host in range(num_hosts)]
        self.rate = rate
        self.delay = delay
        self.switch = f"{base}-switch"
        self._link: subprocess.Popen[str] | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Cluster:  # noqa: PYI034 - Self needs Python 3.11.
        if os.geteuid() != 0:
            msg = "hosts are network namespaces, which need root"
            raise ClusterError(msg)
        for tool in ("ip", "tc") if self.delay is None else ("ip",):
            if shutil.which(tool) is None:
                msg = f"'{tool}' is not installed (Debian: iproute2)"
                raise ClusterError(msg)
        with contextlib.ExitStack() as stack:
            for name in [self.switch, *self.names] if self.delay is None else self.names:
                # First, since a signal may come between any two lines.
                stack.callback(_remove, name)
                _call("ip", "netns", "add", name)
                _call("ip", "-n", name, "link", "set", "lo", "up")
            if self.delay is None:
                _call("ip", "-n", self.switch, "link", "add", "switch", "type", "bridge")
                _call("ip", "-n", self.switch, "link", "set", "switch", "up")
                for host in range(len(self.names)):
                    self._plug_in(host)
            else:
                self._join(self.delay, stack)
            for name, address in zip(self.names, self.addresses, strict=True):
                _call("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
                _call("ip", "-n", name, "link", "set", "eth0", "up")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _plug_in(self, host: int) -> None:
        name, switch, port = self.names[host], self.switch, f"port{host}"
        peer = ("peer", "name", port, "netns", switch)
        _call("ip", "-n", name, "link", "add", "eth0", "type", "veth", *peer)
        _call("ip", "-n", switch, "link", "set", port, "master", "switch", "up")
        self._shape(host)

    def _join(self, delay: float, stack: contextlib.ExitStack) -> None:
        """Starts the process that is the switch where links have a delay."""
        taps: list[int] = []
        try:
            open_tap = partial(delay_link.open_tap, "eth0")
            taps.extend(in_namespace(name, open_tap) for name in self.names)
            self._link = delay_link.start(self.rate, delay, taps)
        except OSError as error:
            msg = f"a delay needs TAP interfaces, by /dev/net/tun: {error}"
            raise ClusterError(msg) from error
        finally:
            for tap in taps:
                os.close(tap)
        stack.callback(self._link.communicate)  # Closes its input, and waits for its end.

    def set_rate(self, rate: float) -> None:
        """Gives all links another rate, while nothing is under way."""
        if rate != self.rate:
            self.rate = rate
            if self._link is not None:
                print(rate, file=self._link.stdin, flush=True)
                return
            for host in range(len(self.names)):
                self._shape(host)

    def _shape(self, host: int) -> None:
        burst = max(_MIN_BURST_BYTES, int(self.rate / 8 * _BURST_S))
        queue = max(_MIN_QUEUE_BYTES, int(self.rate / 8 * _QUEUE_S))
        shape = ("tbf", "rate", f"{self.rate:.0f}bit", "burst", str(burst), "limit", str(queue))
        for namespace, interface in ((self.names[host], "eth0"), (self.switch, f"port{host}")):
            where = ("tc", "-n", namespace, "qdisc", "replace", "dev", interface, "root")
            _call(*where, *shape)

    def describe(self) -> str:
        """Returns what the hosts are, for the head of a table."""
        delay = "" if self.delay is None else f", {self.delay * 1e3:g} ms one way"
        return f"{len(self.names)} hosts, {self.kind}, {self.rate / 1e9:g} Gb/s each way{delay}"

    def switch_processor_s(self) -> float:
        """Returns the processor time that delaying frames has taken; 0 where there is no delay."""
        if self._link is None:
            return 0.0
        words = Path(f"/proc/{self._link.pid}/stat").read_text(encoding="ascii").split()
        return (int(words[13]) + int(words[14])) / os.sysconf("SC_CLK_TCK")

    def host_of(self, rank: int, num_ranks: int) -> int:
        """Returns the host of a rank: neighbours share one."""
        return rank * len(self.names) // num_ranks

    def command(self, host: int) -> list[str]:
        """Returns the words that start what follows them on `host`."""
        return ["ip", "netns", "exec", self.names[host]]

    def environment(self, rank: int, num_ranks: int) -> dict[str, str]:
        """Returns what a rank of lightcc must be told beside where it is: nothing."""
        del rank, num_ranks
        return {}

    def mpi_command(self, host: int) -> list[str]:
        """Returns the words that start an MPI's launcher on `host`.

        An MPI looks for shared memory by host name, process and IPC namespace, and would find it
        between our hosts: its launcher gets these for itself and its ranks. The address serves as
        name, because it resolves everywhere.
        """
        alone = ("--uts", "--ipc", "--pid", "--fork", "--mount-proc", "--kill-child")
        name = f'echo {self.addresses[host]} > /proc/sys/kernel/hostname; exec "$@"'
        return [*self.command(host), "unshare", *alone, "sh", "-c", name, "sh"]

    def remote_shell(self) -> str:
        """Returns a script that runs a command on a host, called as `ssh ADDRESS COMMAND` is."""
        cases = "".join(
            f'{address}) exec {shlex.join(self.mpi_command(host))} sh -c "$*" ;;\n'
            for host, address in enumerate(self.addresses)
        )
        return '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1\nshift\n' + (
            f'case "$host" in\n{cases}esac\necho "no such host: $host" >&2\nexit 1\n'
        )

    def sent_bytes(self) -> list[int]:
        """Returns what each host has sent, with all headers, since it was made."""

        def read() -> int:
            lines = Path("/proc/thread-self/net/dev").read_text(encoding="ascii").splitlines()
            words: Any = next(line.split() for line in lines if line.strip().startswith("eth0:"))
            return int(words[9])

        return [in_namespace(name, read) for name in self.names]


class NominalHosts:
    """Hosts in name only: ranks of different ones share no memory, and each sends its share.

    A link's rate is divided among the ranks of its host beforehand (LIGHT_TCP_RATE limits a rank),
    and the limit also holds for what ranks of one host send to each other over TCP. Two levels do
    neither suffer from the one nor do the other; a flat all-reduce does, and looks slower than on
    a real link.
    """

    kind = "in name only, ranks limited by LIGHT_TCP_RATE, peers left out"

    def __init__(self, num_hosts: int, rate: float) -> None:
        """`rate` is of a host's link, in bits per second."""
        self.names = [f"lightcc-bench-{host}" for host in range(num_hosts)]
        self.rate = rate

    def set_rate(self, rate: float) -> None:
        """Gives all links another rate, for ranks that start from now on."""
        self.rate = rate

    def describe(self) -> str:
        """Returns what the hosts are, for the head of a table."""
        return f"{len(self.names)} hosts, {self.kind}, {self.rate / 1e9:g} Gb/s out of each"

    def host_of(self, rank: int, num_ranks: int) -> int:
        """Returns the host of a rank: neighbours share one."""
        return rank * len(self.names) // num_ranks

    def environment(self, rank: int, num_ranks: int) -> dict[str, str]:
        """Returns what a rank of lightcc must be told."""
        share = self.rate / 8 * len(self.names) / num_ranks
        return {
            "LIGHT_HOST_ID": self.names[self.host_of(rank, num_ranks)],
            "LIGHT_TCP_RATE": f"{max(1, share):.0f}",
        }


def make_hosts(
    num_hosts: int,
    rate: float,
    stack: contextlib.ExitStack,
    *,
    nominal: bool,
    delay: float | None = None,
) -> Cluster | NominalHosts | None:
    """Returns hosts that `stack` removes again; None for one host.

    Raises:
        ClusterError: There is no root, or no tool, to make them; or a delay has no hosts.
    """
    if delay is not None and (num_hosts == 1 or nominal):
        msg = "a delay (--delay) is that of links between several hosts, which need root"
        raise ClusterError(msg)
    if num_hosts == 1:
        return None
    if nominal:
        return NominalHosts(num_hosts, rate)
    return stack.enter_context(Cluster(num_hosts, rate, delay=delay))


def _remove(namespace: str) -> None:
    if Path("/run/netns", namespace).exists():
        _call("ip", "netns", "del", namespace)


def _call(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    except subprocess.CalledProcessError as error:
        msg = f"'{' '.join(command)}' failed: {error.stderr.strip()}"
        raise ClusterError(msg) from error
