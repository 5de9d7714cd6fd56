"""A Slurm of several nodes: each is a network namespace with a host name and a slurmd."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING

from iproute import ip
from launchers import end, munge, run, slurm_programs, slurm_settings, start, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NETWORK = "10.88.8"
#: What makes a namespace a machine: a name of its own, and the names of the others.
_AS_HOST = 'hostname "$1"; mount --bind "$2" /etc/hosts; shift 2; exec "$@"'


class Nodes:
    """The controller `ctl` and the nodes n1, n2, ...; commands run on the controller."""

    def __init__(self, stack: contextlib.ExitStack, directory: Path, count: int) -> None:
        self.directory = directory
        self.names = [f"n{i}" for i in range(1, count + 1)]
        self.variables = {"SLURM_CONF": str(directory / "slurm.conf")}
        self._stack = stack
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._addresses = {"ctl": f"{_NETWORK}.1"}
        self._addresses |= {name: f"{_NETWORK}.{10 + i}" for i, name in enumerate(self.names)}
        hosts = "".join(f"{address} {name}\n" for name, address in self._addresses.items())
        (directory / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        self._make_network()
        self._configure()

    def _namespace(self, name: str) -> str:
        return f"lightcc-{os.getpid()}-{name}"

    def _make_network(self) -> None:
        for name in self._addresses:
            ip("netns", "add", self._namespace(name))
            self._stack.callback(ip, "netns", "del", self._namespace(name))
            ip("-n", self._namespace(name), "link", "set", "lo", "up")
        controller = self._namespace("ctl")
        ip("-n", controller, "link", "add", "br0", "type", "bridge")
        ip("-n", controller, "address", "add", f"{self._addresses['ctl']}/24", "dev", "br0")
        ip("-n", controller, "link", "set", "br0", "up")
        for name in self.names:
            there = ("name", "eth0", "netns", self._namespace(name))
            ip("-n", controller, "link", "add", name, "type", "veth", "peer", *there)
            ip("-n", controller, "link", "set", name, "master", "br0", "up")
            address = ("address", "add", f"{self._addresses[name]}/24", "dev", "eth0")
            ip("-n", self._namespace(name), *address)
            ip("-n", self._namespace(name), "link", "set", "eth0", "up")

    def _configure(self) -> None:
        directory = self.directory
        for name in self.names:  # Nodes do not share /tmp, where PMIx has folders of fixed names.
            (directory / f"tmp.{name}").mkdir()
        nodes = "".join(
            f"NodeName={name} NodeAddr={self._addresses[name]} CPUs=4 State=UNKNOWN\n"
            for name in self.names
        )
        (directory / "slurm.conf").write_text(f"""\
{slurm_settings(directory)}SlurmctldHost=ctl({self._addresses["ctl"]})
SlurmdSpoolDir={directory}/spool.%n
SlurmdPidFile={directory}/slurmd.%n.pid
SlurmdLogFile={directory}/slurmd.%n.out
SlurmdParameters=config_overrides
TmpFS={directory}/tmp.%n
ReturnToService=2
SlurmdTimeout=10
KillWait=5
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
{nodes}PartitionName=all Nodes=ALL Default=YES State=UP PriorityTier=5 PreemptMode=OFF
PartitionName=low Nodes=ALL State=UP PriorityTier=1 PreemptMode=CANCEL GraceTime=30
PartitionName=high Nodes=ALL State=UP PriorityTier=10 PreemptMode=OFF
""")

    def _as_host(self, name: str, *argv: str) -> list[str]:
        enter = ["nsenter", f"--net=/run/netns/{self._namespace(name)}"]
        enter += ["unshare", "--uts", "--mount", "sh", "-ec", _AS_HOST, "sh"]
        return [*enter, name, str(self.directory / "hosts"), *argv]

    def start(self, name: str) -> None:
        """Starts a node, or one that has died once more."""
        if name != "ctl":
            ip("-n", self._namespace(name), "link", "set", "eth0", "up")
        argv = ["slurmctld", "-D", "-c"] if name == "ctl" else ["slurmd", "-D"]
        argv = self._as_host(name, *argv)
        daemon = start(self._stack, argv, self.directory, self.variables, log=name)
        self._daemons[name] = daemon

    def lose(self, name: str) -> None:
        """Has a node die: the others hear nothing more of it, and nothing is left of it."""
        ip("-n", self._namespace(name), "link", "set", "eth0", "down")
        pids = ip("netns", "pids", self._namespace(name)).split()
        subprocess.run(["kill", "-KILL", *pids], check=True)
        end(self._daemons[name])

    def run(self, *argv: str, code: int | None = 0) -> str:
        """Runs a command of Slurm to its end; returns what it printed."""
        return run(*self._as_host("ctl", *argv), code=code, variables=self.variables).stdout

    def wait_until_idle(self, names: list[str] | None = None) -> None:
        """Waits until nodes are ready for a job."""
        wanted = set(self.names if names is None else names)
        idle = ("sinfo", "--noheader", "--states=idle", "--responding", "--Node", "--format=%n")
        wait_for(lambda: wanted <= set(self.run(*idle, code=None).split()), self.directory)


@contextlib.contextmanager
def slurm_of_nodes(directory: Path, count: int) -> Iterator[Nodes]:
    """Serves Slurm on `count` nodes of 4 CPUs each."""
    slurm_programs()
    with contextlib.ExitStack() as stack:
        nodes = Nodes(stack, directory, count)
        munge(stack, directory)
        for name in ("ctl", *nodes.names):
            nodes.start(name)
        nodes.wait_until_idle()
        yield nodes
